#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_files::fuzz_request_path(data));
