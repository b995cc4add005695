#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_tests::differential::fuzz_messages(data));
