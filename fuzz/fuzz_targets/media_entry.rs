//! libFuzzer's way into [`fuzz_cases::media_entry`], where the invariants are.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_cases::media_entry(data));
