//! Writes the seeds of every target into its corpus: `cargo run --manifest-path fuzz/Cargo.toml --example seeds`.
//! With a folder as argument they go there, each target into a folder of its name.

use std::{fs, io, path::PathBuf};

use stash_fuzz::{TARGETS, replay::corpus_folder};

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    for target in TARGETS {
        let folder =
            folder.as_ref().map_or_else(|| corpus_folder(&target), |folder| folder.join(target.name));
        fs::create_dir_all(&folder)?;
        let seeds = (target.seeds)();
        for (name, seed) in &seeds {
            fs::write(folder.join(name), seed)?;
        }
        println!("{}: {} seeds", target.name, seeds.len());
    }
    Ok(())
}
