//! See `stash_fuzz::descriptor`.
#![no_main]

libfuzzer_sys::fuzz_target!(init: stash_fuzz::quiet_caught_panics(), |data: &[u8]| stash_fuzz::descriptor::run(data));
