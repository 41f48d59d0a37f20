//! No loss, no leak: everything that tries to break the promises, in the size of a change (`--ci`, minutes) or in
//! that of a long run (hours).
//!
//! A job is one command that a person could type. Each prints its own seeds and progress; here they are run one after
//! the other, and a table says what each came to. A job that cannot be run says `SKIPPED` and why; nothing is passed over.
//! What the jobs ask is said once, in `docs/testing.md`.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::repo::Repo;

/// One command in its two sizes.
struct Job {
    name: &'static str,
    /// What it asks, for people.
    asks: &'static str,
    /// The command of a change, and that of the long run; words are separated by spaces. A word `VAR=value` in front is
    /// its environment. `{fresh}` is the first of the fresh seeds.
    ci: &'static [&'static str],
    long: &'static [&'static str],
}

/// All of the workspace with its places and mutants compiled in. The whole workspace, so that what it depends on has the
/// features it has in the tests, and is not compiled once more.
macro_rules! faults {
    () => {
        "--locked --workspace --features stash-sim/faults,stash-crash/faults"
    };
}

const JOBS: [Job; 10] = [
    Job {
        name: "simulator",
        asks: "seeds: content, ownership and progress under faults",
        ci: &[
            "cargo run --release --locked -p stash-admin -- sim --seeds 0..1000",
            "cargo run --release --locked -p stash-admin -- sim --seeds {fresh}..{fresh_end}",
        ],
        long: &["cargo run --release --locked -p stash-admin -- sim --seeds 0..200000"],
    },
    Job {
        name: "mutants",
        asks: "rules broken in the code: the simulator notices each",
        ci: &[concat!("cargo test ", faults!(), " --test mutants --test harm")],
        long: &["cargo test --release --locked -p stash-sim --features faults --test mutants --test harm"],
    },
    Job {
        name: "model",
        asks: "every state of a small world, and its mutants",
        ci: &[
            "cargo run --release --locked -p stash-model",
            "cargo run --release --locked -p stash-model -- --mutants",
        ],
        long: &["cargo run --release --locked -p stash-model -- --config large"],
    },
    Job {
        name: "crash",
        asks: "SIGKILL at named places, full disks, failed syncs, torn logs",
        ci: &[concat!("cargo test ", faults!(), " --test crash")],
        long: &[
            "cargo run --release --locked -p stash-crash --features faults --bin crash-torture -- --runs 5000",
        ],
    },
    Job {
        name: "schedules",
        asks: "orders of threads over what a process shares",
        ci: &["cargo test --release --locked -p stash-batch --features shuttle"],
        long: &["STASH_SCHEDULES=1000000 cargo test --release --locked -p stash-batch --features shuttle"],
    },
    Job {
        name: "fuzz",
        asks: "bytes nobody wrote: parts, descriptors, frames, rows, words",
        ci: &["fuzz/run 30"],
        long: &["fuzz/run 3600"],
    },
    Job {
        name: "flips",
        asks: "altered parts: reported, never returned as rows",
        ci: &[],
        long: &["cargo run --release --locked -p stash-part --example flips -- 200000"],
    },
    Job {
        name: "servers",
        asks: "a bucket and a database that are slowed, cut, refused and killed: for long, and the demo twenty times",
        // In the size of a change it is among the tests.
        ci: &[],
        long: &[
            "STASH_TEST_SERVERS=required STASH_FAULT_SECONDS=60 cargo test --release --locked -p stash-tests --test servers",
            "STASH_TEST_SERVERS=required STASH_DEMO_RUNS=20 cargo test --release --locked -p stash-admin --test servers",
        ],
    },
    Job {
        name: "timely",
        asks: "a snapshot of several gigabytes under a budget of a few megabytes, while its worker goes on",
        // In the size of a change it is among the tests.
        ci: &[],
        long: &["STASH_SNAPSHOT_MB=4000 cargo test --release --locked -p stash-timely --test timely large"],
    },
    Job {
        name: "code-mutants",
        asks: "every small change of the code fails a test",
        ci: &[],
        // What a mutant of one crate breaks, the tests of these notice.
        long: &[
            "cargo mutants --package stash-chain",
            "cargo mutants --package stash-batch --test-package stash-batch,stash-tests",
            "cargo mutants --package stash-catalog --test-package stash-catalog -- --lib",
            "cargo mutants --package stash --test-package stash,stash-tests,stash-sim",
        ],
    },
];

/// How many seeds a change adds that nobody tried before.
const FRESH_SEEDS: u64 = 200;

/// What is asked on the command line.
struct Asked {
    ci: bool,
    fresh: u64,
    only: Vec<String>,
}

impl Asked {
    fn parse(words: impl Iterator<Item = String>) -> Result<Asked> {
        let mut asked = Asked { ci: false, fresh: 1_000_000, only: Vec::new() };
        let mut words = words;
        while let Some(word) = words.next() {
            match word.as_str() {
                "--ci" => asked.ci = true,
                "--fresh" => {
                    let seed = words.next().context("--fresh wants a seed")?;
                    asked.fresh = seed.parse().with_context(|| format!("{seed:?} is no seed"))?;
                }
                name if JOBS.iter().any(|job| job.name == name) => asked.only.push(word),
                _ => bail!("{word:?} is no job; there are {}", JOBS.map(|job| job.name).join(", ")),
            }
        }
        Ok(asked)
    }

    /// The command with its fresh seeds.
    fn filled(&self, command: &str) -> String {
        let end = self.fresh.saturating_add(FRESH_SEEDS);
        command.replace("{fresh}", &self.fresh.to_string()).replace("{fresh_end}", &end.to_string())
    }

    fn wants(&self, job: &Job) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == job.name)
    }
}

/// What a job came to.
struct Came {
    name: &'static str,
    took: Duration,
    what: String,
}

/// Runs the jobs asked for, all of them if none is named; the findings are those that failed.
pub(crate) fn run(repo: &Repo, words: impl Iterator<Item = String>) -> Result<Vec<String>> {
    let asked = Asked::parse(words)?;
    let mut table = Vec::new();
    let mut findings = Vec::new();
    for job in JOBS.iter().filter(|job| asked.wants(job)) {
        let commands = if asked.ci { job.ci } else { job.long };
        for command in commands {
            let command = asked.filled(command);
            println!("\n--- {}: {}\n    {command}", job.name, job.asks);
            let begun = Instant::now();
            let what = match perform(&repo.root, &command) {
                Ok(Ended::Passed) => "passed".to_owned(),
                Ok(Ended::Skipped) => "SKIPPED, see above".to_owned(),
                Err(error) => {
                    findings.push(format!("{}: {command}: {error:#}", job.name));
                    format!("FAILED: {error:#}")
                }
            };
            let took = begun.elapsed();
            println!("--- {}: {what}, {}s", job.name, took.as_secs());
            table.push(Came { name: job.name, took, what });
        }
    }
    println!();
    for Came { name, took, what } in &table {
        println!("{name:>14}  {:>6}s  {what}", took.as_secs());
    }
    let total: Duration = table.iter().map(|came| came.took).sum();
    println!("{:>14}  {:>6}s", "in all", total.as_secs());
    Ok(findings)
}

/// How a command ended that did not fail.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    Skipped,
}

/// What a command ends with that cannot be run here, after it said why.
const SKIPPED: i32 = 77;

fn perform(root: &Path, command: &str) -> Result<Ended> {
    let mut words = command.split(' ').peekable();
    let mut variables = Vec::new();
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        variables.push((name, value));
        words.next();
    }
    let program = words.next().context("an empty command")?;
    let at = root.join(program);
    let program = if fs::exists(&at).unwrap_or(false) { at.as_os_str() } else { program.as_ref() };
    let mut started = Command::new(program);
    started.args(words).envs(variables).current_dir(root);
    let status = started.status().with_context(|| format!("{command}: does not start"))?;
    match status.code() {
        Some(0) => Ok(Ended::Passed),
        Some(SKIPPED) => Ok(Ended::Skipped),
        _ => bail!("{status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Result<Asked> {
        Asked::parse(words.iter().map(ToString::to_string))
    }

    #[test]
    fn a_job_is_named_and_an_unknown_word_is_refused() {
        let asked_for = asked(&["--ci", "--fresh", "7", "model"]).expect("sound words");
        assert!(asked_for.ci && asked_for.fresh == 7);
        assert_eq!(asked_for.filled("--seeds {fresh}..{fresh_end}"), "--seeds 7..207");
        let wanted: Vec<_> = JOBS.iter().filter(|job| asked_for.wants(job)).map(|job| job.name).collect();
        assert_eq!(wanted, ["model"]);
        assert!(asked(&["modle"]).is_err());
        assert!(asked(&["--fresh", "x"]).is_err());
    }

    #[test]
    fn a_command_that_fails_is_told_and_its_environment_reaches_it() {
        let root = Path::new("/");
        perform(root, "A=1 printenv A").expect("it is there");
        perform(root, "A=1 printenv B").expect_err("it is not there");
        perform(root, "false").expect_err("it fails");
        assert_eq!(perform(root, "true").expect("it does not"), Ended::Passed);
        assert_eq!(perform(root, "sh -c exit\t77").expect("it says so"), Ended::Skipped);
        perform(root, "no-such-program-anywhere").expect_err("it does not start");
    }
}
