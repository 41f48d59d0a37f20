//! The simulator, tried: seeds replay, fixed seeds hold every promise and reach every path.

mod coverage;
mod determinism;
mod seeds;

use stash_sim::Report;

/// Ends a test by what a seed violated, with the command that replays it.
#[track_caller]
fn holds(report: &Report) {
    if let Some(violated) = &report.violation {
        let last: Vec<String> = report.history.iter().rev().take(40).map(ToString::to_string).collect();
        let last: Vec<&str> = last.iter().rev().map(String::as_str).collect();
        panic!(
            "seed {} ({}) violates {}: {}\n{}\nreplay: stash-admin sim --seed {}",
            report.seed,
            report.kind,
            violated.invariant,
            violated.what,
            last.join("\n"),
            report.seed
        );
    }
}
