//! What a load did.

use std::{io, time::Duration};

use serde_json::json;
use stash::{Frontier, Outcome, Resolved, SinkName};

use super::plan::Plan;
use crate::output::{self, Output};

/// Counts of a load.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    sink: SinkName,
    rows: u64,
    zero_diffs: u64,
    /// Updates of the file below the chain's upper.
    pub(super) refused: u64,
    updates: u64,
    accepted: u64,
    trimmed: u64,
    dropped: u64,
    parts: u64,
    inline: u64,
    /// Parts that were PUT.
    pub(super) puts: u64,
    /// Bytes of them.
    pub(super) put_bytes: u64,
    /// The chain's upper.
    pub(super) upper: Frontier,
}

impl Summary {
    pub(super) fn of(sink: &SinkName, plan: &Plan) -> Summary {
        Summary {
            sink: sink.clone(),
            rows: plan.updates + plan.zero_diffs,
            zero_diffs: plan.zero_diffs,
            refused: 0,
            updates: 0,
            accepted: 0,
            trimmed: 0,
            dropped: 0,
            parts: 0,
            inline: 0,
            puts: 0,
            put_bytes: 0,
            upper: Frontier::MIN,
        }
    }

    /// Counts a batch that has its outcome, and says so to whoever asked for more.
    pub(super) fn resolved(&mut self, resolved: &Resolved) {
        let outcome = match resolved.outcome {
            Some(Outcome::Accepted) => "accepted",
            Some(Outcome::Trimmed { .. }) => "trimmed",
            Some(Outcome::Dropped) | None => "dropped",
        };
        tracing::info!(
            updates = resolved.facts.update_count,
            parts = resolved.parts,
            inline = resolved.inline,
            upper = %resolved.upper,
            "{outcome} {}",
            resolved.description
        );
        self.upper = resolved.upper;
        match outcome {
            "accepted" => self.accepted += 1,
            "trimmed" => self.trimmed += 1,
            // The snapshot of a load that goes on is covered from birth: nothing was offered.
            _ if resolved.facts.update_count == 0 => return,
            _ => {
                self.dropped += 1;
                return;
            }
        }
        self.updates += resolved.facts.update_count;
        self.parts += output::len(resolved.parts);
        self.inline += output::len(resolved.inline);
    }

    /// How many batches have their outcome.
    pub(super) fn batches(&self) -> u64 {
        self.accepted + self.trimmed + self.dropped
    }

    /// Prints it.
    pub(super) fn print(&self, out: Output, took: Duration) -> io::Result<()> {
        let Summary { sink, rows, zero_diffs, refused, updates, accepted, trimmed, dropped, .. } = self;
        let Summary { parts, inline, puts, put_bytes, upper, .. } = self;
        if out.is_json() {
            return out.document(&json!({
                "sink": sink.as_str(),
                "rows_read": rows,
                "zero_diffs_dropped": zero_diffs,
                "refused_below_upper": refused,
                "updates_accepted": updates,
                "batches_accepted": accepted,
                "batches_trimmed": trimmed,
                "batches_dropped": dropped,
                "parts": parts,
                "inline_runs": inline,
                "puts": puts,
                "put_bytes": put_bytes,
                "upper": output::frontier(*upper),
                "complete": upper.is_empty(),
                "secs": took.as_secs_f64(),
            }));
        }
        let mut read = output::counted(*rows, "row", "rows");
        if *zero_diffs > 0 {
            read = format!("{read}, of which {} with diff 0 dropped", output::count(*zero_diffs));
        }
        let mut lines = vec![("read", read)];
        if *refused > 0 {
            lines.push((
                "refused",
                format!(
                    "{} below the upper, which the sink has already",
                    output::counted(*refused, "update", "updates")
                ),
            ));
        }
        lines.push((
            "accepted",
            format!("{} after consolidation", output::counted(*updates, "update", "updates")),
        ));
        let mut batches = format!("{} accepted", output::count(*accepted));
        if *trimmed > 0 {
            batches = format!("{batches}, {} trimmed", output::count(*trimmed));
        }
        if *dropped > 0 {
            batches = format!("{batches}, {} dropped (covered already)", output::count(*dropped));
        }
        lines.push(("batches", batches));
        lines.push((
            "written",
            format!(
                "{} by {} of {}, and {}",
                output::counted(*parts, "part", "parts"),
                output::counted(*puts, "PUT", "PUTs"),
                output::bytes(*put_bytes),
                output::counted(*inline, "inline run", "inline runs")
            ),
        ));
        lines.push((
            "upper",
            if upper.is_empty() {
                "the end: the sink is complete".to_owned()
            } else {
                format!("{upper}: every time below is accepted")
            },
        ));
        lines.push(("took", format!("{:.1} s", took.as_secs_f64())));
        out.line(format!("loaded into sink {sink}\n{}", indent(&output::pairs(&lines))))
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
