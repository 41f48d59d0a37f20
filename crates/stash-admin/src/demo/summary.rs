//! What a demo run came to: counts, the comparison with the oracle, and what is left in the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::Context;
use futures::StreamExt;
use serde::Serialize;
use stash::{
    Bill, BlobEntryKind, BlobPrefix, Prices, Requests, Stash,
    invariants::{Invariant, ensure, i17_no_leak},
};

use super::{
    events::ReplicaEvent,
    feed::Feed,
    stage::Played,
    tally::{Tally, compare},
};

/// Mismatches that are printed in full.
const MISMATCHES_SHOWN: usize = 10;

/// What became of the offers of both replicas.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Batches taken whole.
    pub accepted: u64,
    /// Batches taken from a time on.
    pub trimmed: u64,
    /// Batches covered already.
    pub dropped: u64,
    /// PUTs of the processes that ended by themselves.
    pub puts: u64,
    /// Bytes of them.
    pub put_bytes: u64,
    /// PUTs that the killed process had begun.
    pub puts_of_the_killed: u64,
    /// Of the batches taken: how many came in how many parts.
    pub by_parts: BTreeMap<usize, u64>,
    /// What the processes that ended by themselves asked of the store, by sink.
    pub requests: BTreeMap<String, Requests>,
}

impl Outcomes {
    /// Adds what a process asked of the store.
    pub fn asked(&mut self, requests: BTreeMap<String, Requests>) {
        for (sink, requests) in requests {
            let sum = self.requests.entry(sink).or_default();
            *sum = sum.and(requests);
        }
    }

    /// Counts an offer.
    pub fn count(&mut self, event: &ReplicaEvent) {
        let ReplicaEvent::Resolved { outcome, parts, .. } = event else { return };
        match outcome.as_str() {
            "accepted" => self.accepted += 1,
            "trimmed" => self.trimmed += 1,
            _ => self.dropped += 1,
        }
        if outcome == "accepted" || outcome == "trimmed" {
            *self.by_parts.entry(*parts).or_default() += 1;
        }
    }
}

/// The peak memory of a process.
#[derive(Clone, Debug, Serialize)]
pub struct Peak {
    /// Which process.
    pub process: String,
    /// Its peak resident memory, in bytes.
    pub peak_rss: u64,
    /// The most memory it had reserved for batches, in bytes, where it said so.
    pub peak_budget: Option<u64>,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    seconds: f64,
    updates_delivered: u64,
    bytes_delivered: u64,
    batches_delivered: u64,
    batches_repeated: u64,
    batches_accepted: u64,
    batches_trimmed: u64,
    batches_dropped: u64,
    puts: u64,
    put_bytes: u64,
    puts_of_the_killed: u64,
    parts_per_description: BTreeMap<usize, u64>,
    requests: BTreeMap<String, Requests>,
    processes: Vec<Peak>,
    times_compared: usize,
    updates_in_the_feed: u64,
    live_rows: BTreeMap<String, i128>,
    mismatches: Vec<String>,
    violations: Vec<String>,
    blobs_left: BTreeSet<String>,
}

impl Summary {
    /// Compares what was delivered with the oracle, verifies every sink, and lists the store.
    pub async fn of(
        stash: &Stash,
        feed: &dyn Feed,
        expected: Tally,
        played: Played,
        took: Duration,
    ) -> anyhow::Result<Summary> {
        let Played { delivered, outcomes, mut peaks } = played;
        peaks.push(Peak {
            process: "this one, with the oracle".to_owned(),
            peak_rss: super::events::peak_rss(None),
            peak_budget: None,
        });
        peaks.sort_by(|one, other| one.process.cmp(&other.process));
        stash.drain_deletions().await?;
        let mut violations = Vec::new();
        for table in feed.tables() {
            let report = stash.sink(&table.name).await?.verify(|_| {}).await?;
            violations
                .extend(report.violations.iter().map(|found| format!("{}: {}", found.invariant, found.what)));
        }
        let mismatches = compare(&expected, delivered.tally());
        let blobs_left = left(stash).await?;
        let content = ensure(mismatches.is_empty(), Invariant::I11, || {
            format!("{} mismatches with the oracle", mismatches.len())
        });
        // Everything was acknowledged, so nothing is referenced any more.
        let rest = i17_no_leak(&blobs_left, &BTreeSet::new());
        violations
            .extend([content, rest].into_iter().filter_map(Result::err).map(|broken| broken.to_string()));
        Ok(Summary {
            seconds: took.as_secs_f64(),
            updates_delivered: delivered.updates,
            bytes_delivered: delivered.bytes,
            batches_delivered: delivered.batches,
            batches_repeated: delivered.repeated,
            batches_accepted: outcomes.accepted,
            batches_trimmed: outcomes.trimmed,
            batches_dropped: outcomes.dropped,
            puts: outcomes.puts,
            put_bytes: outcomes.put_bytes,
            puts_of_the_killed: outcomes.puts_of_the_killed,
            parts_per_description: outcomes.by_parts,
            requests: outcomes.requests,
            processes: peaks,
            times_compared: expected.times().len(),
            updates_in_the_feed: expected.update_count(),
            live_rows: feed
                .tables()
                .into_iter()
                .enumerate()
                .map(|(table, named)| (named.name, delivered.tally().content_at(table, feed.end()).rows))
                .collect(),
            mismatches: mismatches.iter().map(ToString::to_string).collect(),
            violations,
            blobs_left,
        })
    }

    /// Whether everything that was promised held.
    pub fn is_good(&self) -> bool {
        self.mismatches.is_empty() && self.violations.is_empty() && self.blobs_left.is_empty()
    }

    /// Prints it.
    pub fn print(&self, json: bool, prices: &Prices) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self).context("the summary as JSON")?);
            return Ok(());
        }
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        println!();
        let line = |name: &str, value: String| println!("{name:>24}: {value}");
        line("took", format!("{:.1} s", self.seconds));
        line(
            "delivered",
            format!(
                "{} updates, {}, consolidated from {} in the feed",
                self.updates_delivered,
                mib(self.bytes_delivered),
                self.updates_in_the_feed
            ),
        );
        let rows = self.live_rows.iter().map(|(table, rows)| format!("{rows} in {table}"));
        line("rows at the end", rows.collect::<Vec<_>>().join(", "));
        line(
            "batches delivered",
            format!("{}, {} of them handed over twice", self.batches_delivered, self.batches_repeated),
        );
        line(
            "batches offered",
            format!(
                "{} accepted, {} trimmed, {} dropped",
                self.batches_accepted, self.batches_trimmed, self.batches_dropped
            ),
        );
        line(
            "PUTs",
            format!(
                "{}, {} (and {} begun by the process that was killed)",
                self.puts,
                mib(self.put_bytes),
                self.puts_of_the_killed
            ),
        );
        let parts = self.parts_per_description.iter().map(|(parts, batches)| match parts {
            0 => format!("{batches} inline or empty"),
            1 => format!("{batches} with 1 part"),
            parts => format!("{batches} with {parts} parts"),
        });
        line("parts per description", parts.collect::<Vec<_>>().join(", "));
        for (place, (sink, requests)) in self.requests.iter().enumerate() {
            let name = if place == 0 { "requests" } else { "" };
            let mark = if place == 0 { ":" } else { " " };
            println!("{name:>24}{mark} {sink:<26} {}", Bill { requests, prices });
        }
        for (place, peak) in self.processes.iter().enumerate() {
            let budget = peak.peak_budget.map(|bytes| format!(", {} of it for batches", mib(bytes)));
            let name = if place == 0 { "peak RSS" } else { "" };
            println!(
                "{name:>24}{} {:<26} {}{}",
                if place == 0 { ":" } else { " " },
                peak.process,
                mib(peak.peak_rss),
                budget.unwrap_or_default()
            );
        }
        line("content", self.content());
        for mismatch in self.mismatches.iter().take(MISMATCHES_SHOWN) {
            println!("{mismatch}");
        }
        for violation in &self.violations {
            line("violated", violation.clone());
        }
        line("blobs left", self.blobs_left.len().to_string());
        for blob in &self.blobs_left {
            println!("{:>26}{blob}", "");
        }
        Ok(())
    }

    fn content(&self) -> String {
        match self.mismatches.len() {
            0 => format!("equal to the oracle at each of {} times", self.times_compared),
            n => format!("{n} MISMATCHES with the oracle; the first {}:", n.min(MISMATCHES_SHOWN)),
        }
    }
}

/// Everything in the store but the stash's own mark.
async fn left(stash: &Stash) -> anyhow::Result<BTreeSet<String>> {
    let mut left = BTreeSet::new();
    let mut entries = stash.store().list(BlobPrefix::All);
    while let Some(entry) = entries.next().await {
        match entry?.kind {
            BlobEntryKind::Object(key) if Stash::is_own_object(&key) => {}
            BlobEntryKind::Object(key) => drop(left.insert(key.to_string())),
            BlobEntryKind::Upload { key, token } => {
                left.insert(format!("{key} (unpublished, {token})"));
            }
            BlobEntryKind::Foreign(name) => drop(left.insert(name)),
        }
    }
    Ok(left)
}
