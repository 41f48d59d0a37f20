//! Repository chores: `cargo xtask floors` and `cargo xtask tidy`.
//!
//! Both read the repository and change nothing. They also run as tests of this crate, so that the one test
//! command finds what they find. A chore returns its findings, one line each, all of them at once.

mod documents;
mod floors;
mod repo;
mod sources;

use std::process::ExitCode;

use anyhow::{Result, bail};
use repo::Repo;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match run(arguments.next().as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Option<&str>) -> Result<()> {
    let findings = match chore {
        Some("floors") => floors::check(&Repo::here())?,
        Some("tidy") => tidy(&Repo::here())?,
        _ => bail!(
            "usage: cargo xtask floors   arrows between crates point down only\n       cargo xtask tidy     documents name what exists, files keep the style"
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
