//! What a load did.

use std::{io, time::Duration};

use serde_json::{Value, json};
use stash::{Bill, Frontier, Outcome, Prices, Requests, Resolved, SinkName};

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
    /// All that was asked of the store.
    pub(super) requests: Requests,
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
            requests: Requests::default(),
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
    pub(super) fn print(&self, out: Output, prices: &Prices, took: Duration) -> io::Result<()> {
        if out.is_json() { out.document(&self.json(prices, took)) } else { out.line(self.text(prices, took)) }
    }

    fn json(&self, prices: &Prices, took: Duration) -> Value {
        json!({
            "sink": self.sink.as_str(),
            "rows_read": self.rows,
            "zero_diffs_dropped": self.zero_diffs,
            "refused_below_upper": self.refused,
            "updates_accepted": self.updates,
            "batches_accepted": self.accepted,
            "batches_trimmed": self.trimmed,
            "batches_dropped": self.dropped,
            "parts": self.parts,
            "inline_runs": self.inline,
            "puts": self.puts,
            "put_bytes": self.put_bytes,
            "requests": self.requests,
            "cost": prices.of(&self.requests).total(),
            "upper": output::frontier(self.upper),
            "complete": self.upper.is_empty(),
            "secs": took.as_secs_f64(),
        })
    }

    fn text(&self, prices: &Prices, took: Duration) -> String {
        let mut lines = vec![("read", output::counted(self.rows, "row", "rows"))];
        if self.zero_diffs > 0 {
            lines.push(("left out", format!("{} with diff 0", output::count(self.zero_diffs))));
        }
        if self.refused > 0 {
            let refused = output::counted(self.refused, "update", "updates");
            lines.push(("skipped", format!("{refused} that are accepted already")));
        }
        let updates = output::counted(self.updates, "update", "updates");
        lines.push(("accepted", format!("{updates} after consolidation")));
        lines.push(("batches", self.batches_text()));
        lines.push(("written", self.written_text()));
        lines.push(("requests", Bill { requests: &self.requests, prices }.to_string()));
        lines.push((
            "upper",
            match self.upper.time() {
                None => "the end: the sink is complete".to_owned(),
                Some(upper) => format!("{upper}: every time below is accepted"),
            },
        ));
        lines.push(("took", format!("{:.1} s", took.as_secs_f64())));
        let lines: String = output::pairs(&lines).lines().map(|line| format!("\n  {line}")).collect();
        format!("loaded into sink {}{lines}", self.sink)
    }

    fn batches_text(&self) -> String {
        let mut text = format!("{} accepted", output::count(self.accepted));
        if self.trimmed > 0 {
            text = format!("{text}, {} trimmed", output::count(self.trimmed));
        }
        if self.dropped > 0 {
            text = format!("{text}, {} dropped (covered already)", output::count(self.dropped));
        }
        text
    }

    fn written_text(&self) -> String {
        let parts = format!(
            "{} of {} in the store ({})",
            output::counted(self.parts, "part", "parts"),
            output::bytes(self.put_bytes),
            output::counted(self.puts, "PUT", "PUTs")
        );
        let inline = format!("{} in the catalog", output::counted(self.inline, "small run", "small runs"));
        match (self.puts + self.parts, self.inline) {
            (0, 0) => "nothing".to_owned(),
            (0, _) => inline,
            (_, 0) => parts,
            _ => format!("{parts}, {inline}"),
        }
    }
}
