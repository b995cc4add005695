#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_http1::fuzz_response_head(data));
