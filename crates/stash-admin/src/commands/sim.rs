//! `sim`: the simulator on the command line. Replays a seed with its history, or runs many.
//!
//! It needs no stash and touches none: everything it runs over is simulated. A violated promise is exit code 1.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use stash_sim::Report;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    cli::{Seeds, SimArgs},
    failure::Refusal,
    interrupt::{self, Interrupt},
    output::{self, Output},
};

/// Failures that are told one by one.
const TOLD_MAX: usize = 20;
/// Between two lines of a log.
const LINES_APART: Duration = Duration::from_secs(5);

/// Runs the command.
pub async fn run(args: SimArgs, out: Output) -> anyhow::Result<ExitCode> {
    match (args.seed, args.seeds) {
        (Some(seed), _) => replay(seed, out).await,
        (None, Some(seeds)) => many(seeds, args.jobs.map(|jobs| jobs.get()), out).await,
        (None, None) => Err(Refusal::usage("say which: sim --seed N, or sim --seeds A..B").into()),
    }
}

/// Runs one seed and prints what happened.
async fn replay(seed: u64, out: Output) -> anyhow::Result<ExitCode> {
    let report = tokio::task::spawn_blocking(move || stash_sim::run(seed)).await?;
    if out.is_json() {
        let mut document = serde_json::to_value(&report)?;
        if let Value::Object(fields) = &mut document {
            fields.insert("history".to_owned(), serde_json::to_value(&report.history)?);
        }
        out.document(&document)?;
    } else {
        out.line(report.history.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
        out.line("")?;
        out.line(summary(&report))?;
    }
    Ok(if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn counts<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let counts: Vec<String> = counts.map(|(what, n)| format!("{what} {}", output::count(n))).collect();
    counts.join(", ")
}

fn summary(report: &Report) -> String {
    let Report { seed, kind, faults, counts: done, history, hash, virtual_ms, violation } = report;
    let violated = match violation {
        None => "none: every promise held".to_owned(),
        Some(violated) => format!("{}: {}", violated.invariant, violated.what),
    };
    output::pairs(&[
        ("seed", seed.to_string()),
        ("kind", kind.clone()),
        ("virtual time", format!("{}.{:03} s", virtual_ms / 1000, virtual_ms % 1000)),
        ("events", output::count(output::len(history.len()))),
        ("hash", hash.chars().take(16).collect()),
        ("faults", counts(faults.iter().map(|(kind, n)| (kind.as_str(), *n)))),
        ("done", counts(done.iter().map(|(what, n)| (*what, *n)))),
        ("violated", violated),
    ])
}

/// What many seeds came to.
#[derive(Debug, Default)]
struct Totals {
    seeds: u64,
    faults: u64,
    /// The fewest faults of a seed, and which that was.
    faults_least: Option<(u64, u64)>,
    done: BTreeMap<&'static str, u64>,
    by_fault: BTreeMap<String, u64>,
    failed: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        let faults = report.faults_total();
        self.seeds += 1;
        self.faults += faults;
        let this = (faults, report.seed);
        self.faults_least = Some(self.faults_least.map_or(this, |least| least.min(this)));
        for (what, n) in &report.counts {
            *self.done.entry(what).or_default() += n;
        }
        for (kind, n) in &report.faults {
            *self.by_fault.entry(kind.clone()).or_default() += n;
        }
        if let Some(violated) = &report.violation {
            self.failed.push((report.seed, format!("{}: {}", violated.invariant, violated.what)));
        }
    }
}

/// Runs many seeds on several threads.
async fn many(seeds: Seeds, jobs: Option<usize>, out: Output) -> anyhow::Result<ExitCode> {
    let Seeds { first, end } = seeds;
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let interrupt = Interrupt::listen()?;
    let next = std::sync::Arc::new(AtomicU64::new(first));
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut threads = JoinSet::new();
    for _ in 0..jobs {
        let (next, stop, tell) = (std::sync::Arc::clone(&next), std::sync::Arc::clone(&stop), tell.clone());
        threads.spawn_blocking(move || {
            while !stop.load(Ordering::Acquire) {
                let seed = next.fetch_add(1, Ordering::AcqRel);
                if seed >= end || tell.send(stash_sim::run(seed)).is_err() {
                    return;
                }
            }
        });
    }
    drop(tell);
    let (mut totals, mut progress) = (Totals::default(), Progress::new(out, end - first));
    loop {
        tokio::select! {
            report = told.recv() => match report {
                None => break,
                Some(report) => {
                    totals.add(&report);
                    progress.at(&totals);
                    if let Some(violated) = &report.violation && totals.failed.len() <= TOLD_MAX {
                        progress.say(&format!("seed {} violates {}: {}", report.seed, violated.invariant, violated.what));
                    }
                }
            },
            () = interrupt.wait(), if !stop.load(Ordering::Acquire) => stop.store(true, Ordering::Release),
        }
    }
    while let Some(joined) = threads.join_next().await {
        joined?;
    }
    let took = progress.end();
    totals.failed.sort();
    tell_totals(&totals, took, jobs, out)?;
    Ok(match (totals.failed.is_empty(), interrupt.came()) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => interrupt::EXIT_CODE.into(),
        (true, false) => ExitCode::SUCCESS,
    })
}

fn tell_totals(totals: &Totals, took: Duration, jobs: usize, out: Output) -> anyhow::Result<()> {
    let Totals { seeds, faults, faults_least, done, by_fault, failed } = totals;
    let rate = u128::from(*seeds) * 10_000 / took.as_millis().max(1);
    let rate = format!("{}.{}", rate / 10, rate % 10);
    if out.is_json() {
        let failed: Vec<Value> =
            failed.iter().map(|(seed, what)| json!({ "seed": seed, "violated": what })).collect();
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let (least, fewest) = faults_least.unzip();
        out.document(&json!({
            "seeds": seeds, "failed": failed, "faults": faults, "faults_least": least.unwrap_or(0),
            "fewest_faults_seed": fewest, "by_fault": by_fault, "done": done,
            "millis": millis, "jobs": jobs, "seeds_a_second": rate.parse::<f64>().unwrap_or(0.0),
        }))?;
        return Ok(());
    }
    out.line(output::pairs(&[
        ("seeds", format!("{} in {} s, {rate} a second", output::count(*seeds), took.as_secs())),
        (
            "faults",
            match faults_least {
                None => output::count(*faults),
                Some((least, seed)) => format!(
                    "{}, {} or more a seed (seed {seed} has the fewest)",
                    output::count(*faults),
                    output::count(*least)
                ),
            },
        ),
        ("of them", counts(by_fault.iter().map(|(kind, n)| (kind.as_str(), *n)))),
        ("done", counts(done.iter().map(|(what, n)| (*what, *n)))),
        ("failed", output::count(output::len(failed.len()))),
    ]))?;
    for (seed, what) in failed.iter().take(TOLD_MAX) {
        out.line(format!("seed {seed} violates {what}"))?;
        out.line(format!("  replay: stash-admin sim --seed {seed}"))?;
    }
    Ok(())
}

/// How far many seeds are: a bar on a terminal, else a line every few seconds; nothing for machines.
#[derive(Debug)]
struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    seeds: u64,
    begun: Instant,
    told: Instant,
}

impl Progress {
    fn new(out: Output, seeds: u64) -> Progress {
        let bar = (!out.is_json() && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(seeds);
            match ProgressStyle::with_template(
                "seeds     {bar:24} {pos}/{len} {per_sec}, {eta} to go, {wide_msg}",
            ) {
                Ok(style) => bar.set_style(style.progress_chars("=> ")),
                Err(error) => debug_assert!(false, "{error}"),
            }
            bar
        });
        let now = Instant::now();
        Progress { bar, quiet: out.is_json(), seeds, begun: now, told: now }
    }

    fn at(&mut self, totals: &Totals) {
        let failed = output::count(output::len(totals.failed.len()));
        if let Some(bar) = &self.bar {
            bar.set_position(totals.seeds);
            bar.set_message(format!("{} faults, {failed} failed", output::count(totals.faults)));
        } else if !self.quiet && self.told.elapsed() >= LINES_APART {
            self.told = Instant::now();
            let (done, all) = (output::count(totals.seeds), output::count(self.seeds));
            eprintln!("sim: {done} of {all} seeds, {failed} failed, {} s", self.begun.elapsed().as_secs());
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None if self.quiet => {}
            None => eprintln!("sim: {line}"),
        }
    }

    fn end(self) -> Duration {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.begun.elapsed()
    }
}
