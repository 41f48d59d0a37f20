//! What was asked of the store, counted so that the process itself can read it: what a recorder is told, it keeps.
//!
//! These counts decide nothing, so they are no concern of the schedule explorer's (`sync`): std's atomics.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Requests to the store and the bytes they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Requests {
    /// PUTs of objects, failed ones too.
    pub puts: u64,
    /// GETs of objects or ranges.
    pub gets: u64,
    /// Questions for an object's length.
    pub heads: u64,
    /// Listings, by pages of a thousand entries.
    pub lists: u64,
    /// Deletes; a bulk delete counts once.
    pub deletes: u64,
    /// Unpublished uploads that were aborted.
    pub aborts: u64,
    /// Bytes of the PUTs that created their object.
    pub put_bytes: u64,
    /// Bytes that GETs returned.
    pub got_bytes: u64,
}

impl Requests {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Requests) -> Requests {
        let Requests { puts, gets, heads, lists, deletes, aborts, put_bytes, got_bytes } = other;
        Requests {
            puts: self.puts.saturating_add(puts),
            gets: self.gets.saturating_add(gets),
            heads: self.heads.saturating_add(heads),
            lists: self.lists.saturating_add(lists),
            deletes: self.deletes.saturating_add(deletes),
            aborts: self.aborts.saturating_add(aborts),
            put_bytes: self.put_bytes.saturating_add(put_bytes),
            got_bytes: self.got_bytes.saturating_add(got_bytes),
        }
    }
}

/// An operation on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobOp {
    /// A create-only PUT.
    Put,
    /// A read of an object or of a range.
    Get,
    /// A question for the length.
    Head,
    /// A listing.
    List,
    /// A delete of one key or many.
    Delete,
    /// The end of an unpublished upload.
    Abort,
}

impl BlobOp {
    pub(crate) const ALL: [BlobOp; 6] =
        [BlobOp::Put, BlobOp::Get, BlobOp::Head, BlobOp::List, BlobOp::Delete, BlobOp::Abort];

    /// As a label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            BlobOp::Put => "put",
            BlobOp::Get => "get",
            BlobOp::Head => "head",
            BlobOp::List => "list",
            BlobOp::Delete => "delete",
            BlobOp::Abort => "abort",
        }
    }
}

/// [`Requests`] while they are counted.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    puts: AtomicU64,
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    aborts: AtomicU64,
    put_bytes: AtomicU64,
    got_bytes: AtomicU64,
}

impl RequestCounts {
    pub(crate) fn add(&self, op: BlobOp, requests: u64) {
        let count = match op {
            BlobOp::Put => &self.puts,
            BlobOp::Get => &self.gets,
            BlobOp::Head => &self.heads,
            BlobOp::List => &self.lists,
            BlobOp::Delete => &self.deletes,
            BlobOp::Abort => &self.aborts,
        };
        count.fetch_add(requests, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, op: BlobOp, bytes: u64) {
        match op {
            BlobOp::Put => self.put_bytes.fetch_add(bytes, Ordering::Relaxed),
            _ => self.got_bytes.fetch_add(bytes, Ordering::Relaxed),
        };
    }

    pub(crate) fn read(&self) -> Requests {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Requests {
            puts: read(&self.puts),
            gets: read(&self.gets),
            heads: read(&self.heads),
            lists: read(&self.lists),
            deletes: read(&self.deletes),
            aborts: read(&self.aborts),
            put_bytes: read(&self.put_bytes),
            got_bytes: read(&self.got_bytes),
        }
    }
}
