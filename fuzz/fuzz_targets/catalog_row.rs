//! See `stash_fuzz::catalog_row`.
#![no_main]

libfuzzer_sys::fuzz_target!(init: stash_fuzz::quiet_caught_panics(), |data: &[u8]| stash_fuzz::catalog_row::run(data));
