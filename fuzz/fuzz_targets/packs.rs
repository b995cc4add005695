#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| iolite::service::fuzz_packs(data));
