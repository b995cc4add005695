#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_http_cache::fuzz_rules(data));
