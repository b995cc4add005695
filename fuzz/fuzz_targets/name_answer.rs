#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_proxy::names::fuzz_answer(data));
