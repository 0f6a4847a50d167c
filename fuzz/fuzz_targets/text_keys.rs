//! libFuzzer's way into [`fuzz_cases::text_keys`], where the invariants are.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_cases::text_keys(data));
