//! See `stash_fuzz::frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(init: stash_fuzz::quiet_caught_panics(), |data: &[u8]| stash_fuzz::frame::run(data));
