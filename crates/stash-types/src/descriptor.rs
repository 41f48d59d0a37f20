//! What is said of a part so that its bytes can be checked before they are believed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A BLAKE3 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names a row schema by content: equal exactly for schemas whose rows can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SchemaFingerprint(pub Digest);

impl fmt::Display for SchemaFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Counts over the updates of a run, or of a piece of one.
///
/// - `min_time ≤ max_time` whenever `update_count > 0`; both are 0 otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFacts {
    /// How many updates, after consolidation within the run.
    pub update_count: u64,
    /// The sum of all diffs.
    pub diff_sum: i128,
    /// The smallest time.
    pub min_time: u64,
    /// The largest time.
    pub max_time: u64,
    /// Bytes of the updates as Arrow columns in memory.
    pub uncompressed_bytes: u64,
}

impl RunFacts {
    /// The facts of both together.
    pub fn and(self, other: RunFacts) -> RunFacts {
        if self.update_count == 0 {
            return other;
        }
        if other.update_count == 0 {
            return self;
        }
        let RunFacts { update_count, diff_sum, min_time, max_time, uncompressed_bytes } = other;
        RunFacts {
            update_count: self.update_count.saturating_add(update_count),
            diff_sum: self.diff_sum.saturating_add(diff_sum),
            min_time: self.min_time.min(min_time),
            max_time: self.max_time.max(max_time),
            uncompressed_bytes: self.uncompressed_bytes.saturating_add(uncompressed_bytes),
        }
    }
}

/// One part as it is described on the wire and in the catalog. It names no shard and no incarnation:
/// the message or row that holds it does, and the receiver completes the key under its own sink.
///
/// - Parts of one run, `(process, run)`, follow one another in row order by `ordinal`.
/// - Runs of one `group` may hold equal rows; different groups are disjoint by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartDescriptor {
    /// The process that wrote it.
    pub process: u32,
    /// Its number within (incarnation, process).
    pub n: u64,
    /// The group of runs that must be merged with one another.
    pub group: u32,
    /// The run, numbered within (process, description).
    pub run: u32,
    /// Its place within the run, from 0.
    pub ordinal: u32,
    /// Bytes of the whole object.
    pub len: u64,
    /// Bytes of its tail: indexes and footer, up to the end of the object.
    pub tail_len: u64,
    /// Digest of the tail.
    pub tail_digest: Digest,
    /// Digest of the whole object.
    pub digest: Digest,
    /// What it holds.
    pub facts: RunFacts,
    /// Bytes in memory of its largest row group: what a reader decodes at once and reserves.
    pub piece_bytes: u64,
    /// The row schema it was written with.
    pub schema: SchemaFingerprint,
}
