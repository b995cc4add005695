#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_http::fuzz_request_head(data));
