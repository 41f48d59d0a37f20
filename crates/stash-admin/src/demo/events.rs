//! What the processes of a demo tell the one that started them: a line of JSON each.

use std::{collections::BTreeMap, io::Write};

use serde::{Deserialize, Serialize};
use stash::Requests;

use crate::output::Stream;

/// Something a replica did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ReplicaEvent {
    /// It opened an incarnation.
    Opened {
        /// The table's place in the feed.
        table: usize,
        /// The incarnation.
        incarnation: String,
        /// The as-of it was granted.
        as_of: u64,
        /// The chain's upper at that moment.
        floor: u64,
    },
    /// It found the chain complete: there is nothing to write.
    Complete {
        /// The table's place in the feed.
        table: usize,
    },
    /// This process stands still and may be stopped now; it goes on when it is continued (SIGCONT).
    Pausing,
    /// This process stands still and may be killed now.
    Stalled {
        /// Where: in the middle of a PUT, if the feed is large enough for one.
        at: String,
        /// PUTs it has begun.
        puts: u64,
    },
    /// An offer has its outcome.
    Resolved {
        /// The table's place in the feed.
        table: usize,
        /// The description's lower.
        lower: u64,
        /// The description's upper; `u64::MAX` for the end.
        upper: u64,
        /// `accepted`, `trimmed`, `dropped` or `recorded`.
        outcome: String,
        /// Where a trimmed batch begins.
        from: Option<u64>,
        /// Updates offered.
        updates: u64,
        /// Parts offered.
        parts: usize,
        /// Inline runs offered.
        inline: usize,
        /// The chain's upper as it is known now.
        chain_upper: u64,
    },
    /// It was closed and renders anew.
    Reopening {
        /// The table's place in the feed.
        table: usize,
        /// Why.
        reason: String,
    },
    /// All chains are complete and this process ends.
    Done {
        /// Parts it PUT.
        puts: u64,
        /// Bytes of them.
        put_bytes: u64,
        /// Its peak resident memory, in bytes.
        peak_rss: u64,
        /// The most memory it had reserved for batches, in bytes.
        peak_budget: u64,
        /// What it asked of the store, by sink.
        requests: BTreeMap<String, Requests>,
    },
}

/// What the consumer says of what it hands on. Rows follow a `Rows` line as that many bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ConsumerEvent {
    /// A batch begins.
    Begin {
        /// The table's place in the feed.
        table: usize,
        /// Its lower.
        lower: u64,
        /// Its upper.
        upper: u64,
        /// Parts behind it.
        parts: usize,
    },
    /// Updates of the batch: so many bytes of an Arrow IPC stream follow.
    Rows {
        /// The table's place in the feed.
        table: usize,
        /// Bytes that follow.
        bytes: usize,
    },
    /// The batch is whole; it is acknowledged once this is confirmed by a line.
    End {
        /// The table's place in the feed.
        table: usize,
    },
    /// All chains are complete and acknowledged.
    Done {
        /// Its peak resident memory, in bytes.
        peak_rss: u64,
        /// What it asked of the store, by sink.
        requests: BTreeMap<String, Requests>,
    },
}

/// Prints an event as a line; the reader is gone when this fails, and so should be the process.
pub fn emit(event: &impl Serialize) -> anyhow::Result<()> {
    emit_with(event, &[])
}

/// Prints an event and the bytes that belong to it.
pub fn emit_with(event: &impl Serialize, bytes: &[u8]) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut out = Stream(std::io::stdout().lock());
    out.write_all(&line)?;
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// The peak resident memory of a process, in bytes; 0 where the system does not tell.
pub fn peak_rss(process: Option<u32>) -> u64 {
    let path = match process {
        Some(id) => format!("/proc/{id}/status"),
        None => "/proc/self/status".to_owned(),
    };
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
