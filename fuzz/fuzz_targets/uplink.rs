//! libFuzzer's way into [`fuzz_cases::uplink`], where the invariants are.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_cases::uplink(data));
