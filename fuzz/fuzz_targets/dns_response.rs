#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_dns::fuzz_dns_response(data));
