//! Repository chores: `cargo xtask floors`, `cargo xtask tidy` and `cargo xtask torture`.
//!
//! The first two read the repository and change nothing. They also run as tests of this crate, so that the one test
//! command finds what they find. A chore returns its findings, one line each, all of them at once.

mod documents;
mod floors;
mod repo;
mod sources;
mod torture;

use std::process::ExitCode;

use anyhow::{Result, bail};
use repo::Repo;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next();
    match run(chore.as_deref(), arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Option<&str>, words: impl Iterator<Item = String>) -> Result<()> {
    let findings = match chore {
        Some("floors") => floors::check(&Repo::here())?,
        Some("tidy") => tidy(&Repo::here())?,
        Some("torture") => torture::run(&Repo::here(), words)?,
        _ => bail!(
            "usage: cargo xtask floors   arrows between crates point down only\n       cargo xtask tidy     documents name what exists, files keep the style\n       cargo xtask torture  [--ci] [--fresh SEED] [JOB...]: tries to break the promises, for hours or for minutes"
        ),
    };
    if findings.is_empty() {
        return Ok(());
    }
    bail!("{}\n{} findings", findings.join("\n"), findings.len())
}

/// What stands in files: their form, and what documents say of them.
fn tidy(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = sources::check(repo);
    findings.extend(documents::check(repo));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_between_crates_point_down_only() {
        let findings = floors::check(&Repo::here()).expect("cargo metadata runs");
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }

    #[test]
    fn the_repository_is_tidy() {
        let findings = tidy(&Repo::here()).expect("the repository is read");
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }
}
