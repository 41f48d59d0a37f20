//! Replays the corpora without a fuzzer: every committed input, every seed, and seeded mutations of these.
//!
//! The mutations are those that find most: flipped bits, edges of numbers, cuts, stretches that are zeroed, doubled,
//! or put in from another input. A run is told by (target, count, seed), and the input that breaks a promise is
//! printed as hex before its panic goes on.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use crate::Target;
use crate::input::Random;

/// No mutation grows beyond this.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Where the corpus of a target is.
pub fn corpus_folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The committed corpus of a target, in the order of its names, and then its seeds.
pub fn corpus(target: &Target) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths = fs::read_dir(corpus_folder(target))?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    let committed = paths.iter().map(fs::read).collect::<std::io::Result<Vec<_>>>()?;
    Ok(committed.into_iter().chain((target.seeds)().into_iter().map(|(_, seed)| seed)).collect())
}

/// Runs the corpus of a target and `mutations` mutations of it; returns how many inputs were run.
pub fn replay(target: &Target, mutations: usize, seed: u64) -> std::io::Result<usize> {
    let corpus = corpus(target)?;
    corpus.iter().for_each(|input| run(target, input));
    let mut random = Random::new(seed);
    for _ in 0..mutations {
        run(target, &mutated(&corpus, &mut random));
    }
    Ok(corpus.len() + mutations)
}

fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("target {}, input of {} bytes: {hex}", target.name, input.len());
        resume_unwind(panic);
    }
}

/// An input of the corpus after one to four mutations.
pub fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let pick = |random: &mut Random| corpus.get(random.below(corpus.len())).cloned().unwrap_or_default();
    let mut input = pick(random);
    for _ in 0..1 + random.below(4) {
        let at = random.below(input.len() + 1);
        let end = (at + 1 + random.below(16)).min(input.len());
        match random.below(8) {
            0 | 1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'"', b','][random.below(8)],
            3 => input.truncate(at),
            4 if at < end => input[at..end].fill(0),
            5 if at < end => drop(input.drain(at..end)),
            6 if at < end => {
                let copy = input[at..end].to_vec();
                drop(input.splice(at..at, copy));
            }
            _ => {
                let other = pick(random);
                let from = random.below(other.len() + 1);
                let to = (from + 1 + random.below(64)).min(other.len());
                drop(input.splice(at..at, other[from..to].iter().copied()));
            }
        }
        input.truncate(INPUT_BYTES_MAX);
    }
    input
}
