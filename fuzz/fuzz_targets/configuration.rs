#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_config::fuzz_configuration(data));
