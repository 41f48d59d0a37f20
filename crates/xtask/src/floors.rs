//! The floors of the workspace: arrows between crates point down only.
//!
//! - A crate depends on crates of lower floors; those of one floor do not see each other.
//! - `stash-testkit` and `xtask` stand beside the house: nobody depends on them, except for tests.
//! - Some libraries belong to one crate alone, and the crates that compute without waiting stay that way.
//!
//! This table is the one place that says so; ARCHITECTURE.md tells the same to people.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::repo::Repo;

/// Where a crate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Floor {
    /// In the house, counted from the ground.
    At(u8),
    /// Beside it: only tests depend on it.
    Beside,
    /// Only tests or benches: it depends on anything.
    Tests,
}

const FLOORS: [(&str, Floor); 16] = [
    ("stash-types", Floor::At(0)),
    ("stash-chain", Floor::At(1)),
    ("stash-part", Floor::At(1)),
    ("stash-blob", Floor::At(1)),
    ("stash-catalog", Floor::At(1)),
    ("stash-batch", Floor::At(2)),
    ("stash", Floor::At(3)),
    ("stash-sim", Floor::At(4)),
    ("stash-timely", Floor::At(4)),
    ("stash-admin", Floor::At(5)),
    ("stash-testkit", Floor::Beside),
    ("xtask", Floor::Beside),
    ("stash-tests", Floor::Tests),
    ("stash-crash", Floor::Tests),
    ("stash-model", Floor::Tests),
    ("stash-benches", Floor::Tests),
];

/// Libraries and the one crate that may depend on them outside of tests.
const OWNED: [(&str, &str); 4] = [
    ("sqlx", "stash-catalog"),
    ("object_store", "stash-blob"),
    ("parquet", "stash-part"),
    ("clap", "stash-admin"),
];

/// Who else may name an owned library, and why.
const OWNED_TOO: [(&str, &str, &str); 1] =
    [("parquet", "stash-admin", "reads and writes the user's own Parquet files")];

/// Crates that neither wait nor do I/O.
const PURE: [&str; 3] = ["stash-types", "stash-chain", "stash-part"];
/// What would let them.
const IMPURE: [&str; 4] = ["tokio", "futures", "async-trait", "sqlx"];

/// A dependency of a workspace crate.
#[derive(Clone, Debug)]
struct Arrow {
    from: String,
    to: String,
    dev: bool,
}

/// Every arrow that points where it may not.
pub(crate) fn check(repo: &Repo) -> Result<Vec<String>> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(&repo.root)
        .output()
        .context("cargo metadata does not start")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let mut crates = BTreeMap::new();
    for package in packages {
        let name = text(&package["name"])?;
        let arrows = package["dependencies"].as_array().context("a package without dependencies")?;
        let arrows: Result<Vec<Arrow>> = arrows.iter().map(|arrow| read(&name, arrow)).collect();
        crates.insert(name, (text(&package["manifest_path"])?, arrows?));
    }
    Ok(judge(&crates))
}

fn text(value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).context("cargo metadata holds something else than text")
}

fn read(from: &str, dependency: &Value) -> Result<Arrow> {
    let dev = dependency["kind"].as_str() == Some("dev");
    Ok(Arrow { from: from.to_owned(), to: text(&dependency["name"])?, dev })
}

fn floor(name: &str) -> Option<Floor> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

fn judge(crates: &BTreeMap<String, (String, Vec<Arrow>)>) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, _) in FLOORS {
        if !crates.contains_key(name) {
            findings.push(format!("floors: {name} has a floor but is not in the workspace"));
        }
    }
    for (name, (manifest, arrows)) in crates {
        let Some(from) = floor(name) else {
            findings.push(format!("floors: {name} has no floor: give it one in crates/xtask/src/floors.rs"));
            continue;
        };
        if from != Floor::Tests && !manifest.ends_with(&format!("crates/{name}/Cargo.toml")) {
            findings.push(format!("floors: {name} does not lie in crates/{name}"));
        }
        findings.extend(arrows.iter().filter_map(|arrow| refused(from, arrow)));
    }
    findings
}

fn refused(from: Floor, arrow: &Arrow) -> Option<String> {
    let Arrow { from: name, to, dev } = arrow;
    let wrong = |why: &str| Some(format!("floors: {name} -> {to}: {why}"));
    if !dev {
        if let Some((_, owner)) = OWNED.iter().find(|(library, _)| library == to)
            && owner != name
            && from != Floor::Tests
            && !OWNED_TOO.iter().any(|(library, too, _)| library == to && too == name)
        {
            return wrong(&format!("only {owner} depends on it"));
        }
        if PURE.contains(&name.as_str()) && IMPURE.contains(&to.as_str()) {
            return wrong("this crate neither waits nor does I/O");
        }
    }
    match (from, floor(to)?) {
        (_, Floor::Tests) => wrong("nothing depends on tests"),
        (_, Floor::Beside) if *dev && to != "xtask" => None,
        (Floor::Tests, Floor::Beside) if to != "xtask" => None,
        (_, Floor::Beside) => wrong("never a normal dependency"),
        (Floor::Beside | Floor::Tests, Floor::At(_)) => None,
        (Floor::At(from), Floor::At(to)) if to < from => None,
        (Floor::At(from), Floor::At(to)) if to == from => wrong("crates of one floor do not see each other"),
        (Floor::At(_), Floor::At(_)) => wrong("arrows point down only"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(from: &str, to: &str, dev: bool) -> Option<String> {
        refused(floor(from).expect("known"), &Arrow { from: from.to_owned(), to: to.to_owned(), dev })
    }

    #[test]
    fn upward_and_sideways_arrows_are_found_even_between_tests() {
        assert_eq!(judged("stash", "stash-batch", false), None);
        assert!(judged("stash-batch", "stash", false).expect("found").contains("down only"));
        assert!(judged("stash-part", "stash-blob", false).expect("found").contains("one floor"));
        assert!(judged("stash-part", "stash-blob", true).is_some());
    }

    #[test]
    fn the_testkit_is_for_tests_and_xtask_for_nobody() {
        assert_eq!(judged("stash-batch", "stash-testkit", true), None);
        assert!(judged("stash-batch", "stash-testkit", false).is_some());
        assert!(judged("stash-batch", "xtask", true).is_some());
        assert!(judged("stash", "stash-tests", true).is_some());
    }

    #[test]
    fn libraries_with_an_owner_and_pure_crates_are_watched() {
        assert_eq!(judged("stash-catalog", "sqlx", false), None);
        assert!(judged("stash", "sqlx", false).expect("found").contains("stash-catalog"));
        assert!(judged("stash-chain", "tokio", false).expect("found").contains("waits"));
        assert_eq!(judged("stash-chain", "tokio", true), None);
    }

    #[test]
    fn a_crate_without_a_floor_is_found() {
        let crates = BTreeMap::from([("stash-new".to_owned(), ("x/Cargo.toml".to_owned(), Vec::new()))]);
        assert!(judge(&crates).iter().any(|finding| finding.contains("stash-new has no floor")));
    }
}
