#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_store::rules::fuzz_rules(data));
