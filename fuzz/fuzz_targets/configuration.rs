#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_proxy::config::fuzz_configuration(data));
