#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_fastcgi::fuzz_request_records(data));
