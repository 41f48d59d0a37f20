//! What Stash makes of bytes that nobody vouches for: the bodies of the fuzz targets.
//!
//! A *target* takes bytes and must return: no panic, no hang, no memory beyond what was declared. What it accepts
//! it must accept for good reason, so each body also asserts what then holds (one spelling of an id, the same value
//! read back, the same updates). The bodies are plain functions and build with any compiler; libFuzzer drives
//! them from `fuzz_targets/`, and [`mod@replay`] gives them the committed corpora and seeded mutations of these.
//!
//! | target | the bytes are |
//! |---|---|
//! | [`part`] | a part and the descriptor that travels with it, forged or not |
//! | [`descriptor`] | descriptors, facts and shares that are believed only after their checks |
//! | [`frame`] | wire frames, with right and wrong seals |
//! | [`catalog_row`] | rows of the catalog, schemas, inline runs, the marker of a prefix |
//! | [`ids`] | texts: ids, keys, names, URLs, the words of a command line, change files |
//!
//! `fuzz/corpus/TARGET/` holds what [`seeds`] makes and what the fuzzer found worth keeping; an input that once
//! broke something also stays as a test with a name in the crate that was at fault.

pub mod catalog_row;
pub mod descriptor;
pub mod frame;
pub mod ids;
pub mod input;
pub mod part;
pub mod replay;
pub mod rows;
pub mod seeds;

/// A target: its name, which is also that of its corpus, and its body.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Its body, which panics where a promise is broken.
    pub run: fn(&[u8]),
    /// Inputs that its corpus begins with, by name.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
}

/// All of them.
pub const TARGETS: [Target; 5] = [
    Target { name: "part", run: part::run, seeds: seeds::part },
    Target { name: "descriptor", run: descriptor::run, seeds: seeds::descriptor },
    Target { name: "frame", run: frame::run, seeds: seeds::frame },
    Target { name: "catalog_row", run: catalog_row::run, seeds: seeds::catalog_row },
    Target { name: "ids", run: ids::run, seeds: seeds::ids },
];

/// Keeps panics that the product catches from ending a fuzzer, which takes every panic for a finding. Those that
/// escape still end it.
pub fn quiet_caught_panics() {
    std::panic::set_hook(Box::new(|panic| {
        // Ours are worth a word: they are broken promises. A decoder's are errors like any other.
        if panic.location().is_some_and(|place| !place.file().contains("/registry/")) {
            eprintln!("{panic}");
        }
    }));
}
