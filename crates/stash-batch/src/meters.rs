//! What is measured of a process, by sink, through the `metrics` facade: without a recorder each of it is a no-op.
//!
//! - A sink's handles are made once, when the process first touches the sink, and kept: nothing is looked up or allocated
//!   for an update, a push or a request. So the recorder must be installed before the stash is opened.
//! - The store is asked by shard; [`Meters::name`] says which sink's it is. What belongs to no sink that this process
//!   opened is counted under names that no sink can have: [`NONE`], [`UNKNOWN`], [`SEVERAL`].
//! - `stash-chain` and `stash-part` decide and encode unmeasured: what there is to know is known here.

mod http;
pub mod list;
mod requests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Histogram};
use stash_blob::BlobError;
use stash_types::{BlobKey, BlobPrefix, ShardId};

pub use requests::{BlobOp, Requests};

use self::{
    http::{Heard, HttpMeters},
    requests::RequestCounts,
};
use list::{
    ACKNOWLEDGEMENTS, BLOB_BYTES, BLOB_DURATION, BLOB_REQUESTS, BLOB_RETRIES, DELETIONS, DELIVERIES,
    DESCRIPTION_DURATION, DESCRIPTION_PARTS, EXPIRED_BATCHES, INCARNATIONS_ENDED, INCARNATIONS_OPENED,
    LEASE_RENEWALS, OFFER_CONFLICTS, OFFERED_UPDATES, OFFERS, READ_UPDATES, RELEASED_BATCHES, SHARE_BYTES,
    SHARES, SWEEPS, SWEPT_KEYS, SWEPT_UPLOADS,
};

/// The label of what belongs to the stash itself.
pub const NONE: &str = "(none)";
/// The label of a sink that this process has not opened.
pub const UNKNOWN: &str = "(unknown)";
/// The label of a request that is about several sinks.
pub const SEVERAL: &str = "(several)";

/// What became of an operation on the store, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobOutcome {
    /// It had its effect.
    Ok,
    /// A create-only PUT found the key taken.
    Exists,
    /// There was no such object.
    NotFound,
    /// The store refused it: its permissions say no.
    Denied,
    /// It surely had no effect.
    Failed,
    /// It may have had its effect.
    Unknown,
}

impl BlobOutcome {
    const ALL: [BlobOutcome; 6] = [
        BlobOutcome::Ok,
        BlobOutcome::Exists,
        BlobOutcome::NotFound,
        BlobOutcome::Denied,
        BlobOutcome::Failed,
        BlobOutcome::Unknown,
    ];

    fn word(self) -> &'static str {
        match self {
            BlobOutcome::Ok => "ok",
            BlobOutcome::Exists => "exists",
            BlobOutcome::NotFound => "not_found",
            BlobOutcome::Denied => "denied",
            BlobOutcome::Failed => "failed",
            BlobOutcome::Unknown => "unknown",
        }
    }

    /// What an error says.
    pub fn of(error: &BlobError) -> BlobOutcome {
        match error {
            BlobError::NotFound { .. } => BlobOutcome::NotFound,
            BlobError::Denied { .. } => BlobOutcome::Denied,
            BlobError::Determinate { .. } => BlobOutcome::Failed,
            BlobError::Indeterminate { .. } => BlobOutcome::Unknown,
        }
    }
}

/// How a share travels, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareKind {
    Empty,
    Inline,
    Stashed,
    Failed,
    Dropped,
}

impl ShareKind {
    const ALL: [ShareKind; 5] =
        [ShareKind::Empty, ShareKind::Inline, ShareKind::Stashed, ShareKind::Failed, ShareKind::Dropped];

    fn word(self) -> &'static str {
        match self {
            ShareKind::Empty => "empty",
            ShareKind::Inline => "inline",
            ShareKind::Stashed => "stashed",
            ShareKind::Failed => "failed",
            ShareKind::Dropped => "dropped",
        }
    }
}

/// Handles of one metric, one for each value of a label that is known beforehand.
struct Each<L, H>(Vec<(L, H)>);

impl<L: Copy + PartialEq, H> Each<L, H> {
    fn of(labels: impl IntoIterator<Item = L>, handle: impl Fn(L) -> H) -> Each<L, H> {
        Each(labels.into_iter().map(|label| (label, handle(label))).collect())
    }

    fn with(&self, label: L, then: impl FnOnce(&H)) {
        if let Some((_, handle)) = self.0.iter().find(|(of, _)| *of == label) {
            then(handle);
        }
    }
}

/// The handles of one sink.
pub struct SinkMeters {
    name: String,
    counts: RequestCounts,
    http: HttpMeters,
    requests: Each<(BlobOp, BlobOutcome), Counter>,
    /// Made when they first record: their buckets are most of what a recorder keeps.
    durations: Each<BlobOp, OnceLock<Histogram>>,
    bytes: Each<BlobOp, Counter>,
    retries: Each<BlobOp, Counter>,
    shares: Each<ShareKind, Counter>,
    share_bytes: Each<ShareKind, Counter>,
    deleted: Counter,
    deferred: Counter,
    /// Updates handed to readers.
    pub(crate) read_updates: Counter,
    /// Parts of each offered description.
    pub description_parts: Histogram,
    /// From mint to outcome.
    pub description_duration: Histogram,
    /// Minted without an outcome; published with the other gauges, since a recorder may forget one that is not set.
    descriptions_open: AtomicU64,
    /// Offers that were accepted whole.
    pub accepted: Counter,
    /// Offers that were cut.
    pub trimmed: Counter,
    /// Offers that were covered.
    pub dropped: Counter,
    /// Offers answered with what was recorded before.
    pub recorded: Counter,
    /// Offers that ended in an error.
    pub failed: Counter,
    /// Lost races.
    pub offer_conflicts: Counter,
    /// Updates offered.
    pub offered_updates: Counter,
    /// Incarnations opened.
    pub incarnations_opened: Counter,
    /// Incarnations given up.
    pub incarnations_ended: Counter,
    /// Leases renewed.
    pub lease_renewed: Counter,
    /// Renewals that came too late.
    pub lease_closed: Counter,
    /// Renewals that failed and are tried again.
    pub lease_failed: Counter,
    /// Batches handed to readers.
    pub deliveries: Counter,
    /// Acknowledgements.
    pub acknowledgements: Counter,
    /// Batches unlinked by them.
    pub released_batches: Counter,
    /// Sweeps.
    pub sweeps: Counter,
    /// Keys they queued.
    pub swept_keys: Counter,
    /// Uploads they aborted.
    pub swept_uploads: Counter,
    /// Batches that expired.
    pub expired_batches: Counter,
}

impl SinkMeters {
    fn new(name: &str) -> SinkMeters {
        let pairs = || BlobOp::ALL.into_iter().flat_map(|op| BlobOutcome::ALL.map(|outcome| (op, outcome)));
        // An outcome that an operation cannot have would be a row of zeros for ever.
        let possible = |(op, outcome): &(BlobOp, BlobOutcome)| match outcome {
            BlobOutcome::Exists => *op == BlobOp::Put,
            BlobOutcome::NotFound => matches!(op, BlobOp::Get | BlobOp::Head | BlobOp::Abort),
            BlobOutcome::Ok | BlobOutcome::Denied | BlobOutcome::Failed | BlobOutcome::Unknown => true,
        };
        let moves = [BlobOp::Put, BlobOp::Get];
        SinkMeters {
            name: name.to_owned(),
            counts: RequestCounts::default(),
            http: HttpMeters::default(),
            requests: Each::of(pairs().filter(possible), |(op, outcome)| {
                BLOB_REQUESTS.counter(&[op.word(), outcome.word(), name])
            }),
            durations: Each::of(BlobOp::ALL, |_| OnceLock::new()),
            bytes: Each::of(moves, |op| BLOB_BYTES.counter(&[op.word(), name])),
            retries: Each::of(moves, |op| BLOB_RETRIES.counter(&[op.word(), name])),
            shares: Each::of(ShareKind::ALL, |kind| SHARES.counter(&[kind.word(), name])),
            share_bytes: Each::of([ShareKind::Inline, ShareKind::Stashed], |kind| {
                SHARE_BYTES.counter(&[kind.word(), name])
            }),
            deleted: DELETIONS.counter(&["deleted", name]),
            deferred: DELETIONS.counter(&["deferred", name]),
            read_updates: READ_UPDATES.counter(&[name]),
            description_parts: DESCRIPTION_PARTS.histogram(&[name]),
            description_duration: DESCRIPTION_DURATION.histogram(&[name]),
            descriptions_open: AtomicU64::new(0),
            accepted: OFFERS.counter(&["accepted", name]),
            trimmed: OFFERS.counter(&["trimmed", name]),
            dropped: OFFERS.counter(&["dropped", name]),
            recorded: OFFERS.counter(&["recorded", name]),
            failed: OFFERS.counter(&["failed", name]),
            offer_conflicts: OFFER_CONFLICTS.counter(&[name]),
            offered_updates: OFFERED_UPDATES.counter(&[name]),
            incarnations_opened: INCARNATIONS_OPENED.counter(&[name]),
            incarnations_ended: INCARNATIONS_ENDED.counter(&[name]),
            lease_renewed: LEASE_RENEWALS.counter(&["renewed", name]),
            lease_closed: LEASE_RENEWALS.counter(&["closed", name]),
            lease_failed: LEASE_RENEWALS.counter(&["failed", name]),
            deliveries: DELIVERIES.counter(&[name]),
            acknowledgements: ACKNOWLEDGEMENTS.counter(&[name]),
            released_batches: RELEASED_BATCHES.counter(&[name]),
            sweeps: SWEEPS.counter(&[name]),
            swept_keys: SWEPT_KEYS.counter(&[name]),
            swept_uploads: SWEPT_UPLOADS.counter(&[name]),
            expired_batches: EXPIRED_BATCHES.counter(&[name]),
        }
    }

    /// The sink's name, or one of the names that no sink has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An operation on the store ended: `requests` of them, since a listing comes in pages.
    pub fn request(&self, op: BlobOp, outcome: BlobOutcome, requests: u64, took: Duration) {
        self.counts.add(op, requests);
        self.requests.with((op, outcome), |counter| counter.increment(requests));
        self.durations.with(op, |histogram| {
            histogram.get_or_init(|| BLOB_DURATION.histogram(&[op.word(), &self.name])).record(took);
        });
    }

    /// Bytes that an operation moved.
    pub fn moved(&self, op: BlobOp, bytes: u64) {
        self.counts.add_bytes(op, bytes);
        self.bytes.with(op, |counter| counter.increment(bytes));
    }

    /// A description was minted.
    pub fn description_opened(&self) {
        self.descriptions_open.fetch_add(1, Ordering::Relaxed);
    }

    /// A description has its outcome, or will have none.
    pub fn description_ended(&self) {
        self.descriptions_open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self, op: BlobOp) {
        self.retries.with(op, |counter| counter.increment(1));
    }

    pub(crate) fn shared(&self, kind: ShareKind, bytes: u64) {
        self.shares.with(kind, |counter| counter.increment(1));
        self.share_bytes.with(kind, |counter| counter.increment(bytes));
    }

    pub(crate) fn deleted(&self, gone: bool) {
        if gone { self.deleted.increment(1) } else { self.deferred.increment(1) }
    }
}

impl fmt::Debug for SinkMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SinkMeters").field(&self.name).finish()
    }
}

/// The handles of what is no sink that this process opened; made when something is first counted there.
struct Special {
    name: &'static str,
    meters: OnceLock<Arc<SinkMeters>>,
}

impl Special {
    fn new(name: &'static str) -> Special {
        Special { name, meters: OnceLock::new() }
    }

    fn get(&self) -> Arc<SinkMeters> {
        Arc::clone(self.meters.get_or_init(|| Arc::new(SinkMeters::new(self.name))))
    }
}

/// The handles of all sinks a process touched. Clones share them.
#[derive(Clone)]
pub struct Meters {
    shared: Arc<Shared>,
}

struct Shared {
    by_shard: RwLock<HashMap<ShardId, Arc<SinkMeters>>>,
    none: Special,
    unknown: Special,
    several: Special,
    heard: Heard,
}

impl Meters {
    /// Handles of the recorder that is installed now.
    pub fn new() -> Meters {
        Meters {
            shared: Arc::new(Shared {
                by_shard: RwLock::default(),
                none: Special::new(NONE),
                unknown: Special::new(UNKNOWN),
                several: Special::new(SEVERAL),
                heard: Heard::default(),
            }),
        }
    }

    /// What lies under `shard` is this sink's from now on.
    pub fn name(&self, shard: ShardId, sink: &str) -> Arc<SinkMeters> {
        if let Some(known) = self.known(shard) {
            return known;
        }
        let mut by_shard = self.shared.by_shard.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_shard.entry(shard).or_insert_with(|| Arc::new(SinkMeters::new(sink))))
    }

    fn known(&self, shard: ShardId) -> Option<Arc<SinkMeters>> {
        self.shared.by_shard.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    /// The handles of a shard's sink.
    pub fn of(&self, shard: ShardId) -> Arc<SinkMeters> {
        self.known(shard).unwrap_or_else(|| self.shared.unknown.get())
    }

    /// The handles of the sink that a key belongs to.
    pub fn of_key(&self, key: &BlobKey) -> Arc<SinkMeters> {
        key.part_key().map_or_else(|| self.none(), |key| self.of(key.shard))
    }

    /// The handles of what belongs to no sink.
    fn none(&self) -> Arc<SinkMeters> {
        self.shared.none.get()
    }

    /// The handles for keys that are asked about together.
    pub fn of_keys<'a>(&self, keys: impl IntoIterator<Item = &'a BlobKey>) -> Arc<SinkMeters> {
        let mut all = keys.into_iter().map(|key| self.of_key(key));
        let Some(first) = all.next() else { return self.none() };
        if all.all(|other| Arc::ptr_eq(&first, &other)) { first } else { self.shared.several.get() }
    }

    /// The handles for a listing.
    pub fn of_prefix(&self, prefix: BlobPrefix) -> Arc<SinkMeters> {
        match prefix {
            BlobPrefix::All => self.shared.several.get(),
            BlobPrefix::Shard(shard) | BlobPrefix::Incarnation(shard, _) => self.of(shard),
        }
    }

    /// Descriptions that are minted and have no outcome, of the sinks that this process opened.
    pub fn descriptions_open(&self) -> BTreeMap<String, u64> {
        let by_shard = self.shared.by_shard.read().unwrap_or_else(PoisonError::into_inner);
        let mut open: BTreeMap<String, u64> = BTreeMap::new();
        for meters in by_shard.values() {
            let sum = open.entry(meters.name.clone()).or_default();
            *sum = sum.saturating_add(meters.descriptions_open.load(Ordering::Relaxed));
        }
        open
    }

    /// What was asked of the store so far, by sink; sinks of which nothing was asked are left out.
    ///
    /// Where the store tells of its requests ([`RequestObserver`](stash_blob::RequestObserver)), they are counted as the
    /// server sees them: each try, each page, each piece of an upload. Else operations are counted.
    pub fn requests(&self) -> BTreeMap<String, Requests> {
        let Shared { by_shard, none, unknown, several, heard } = &*self.shared;
        let as_the_server_sees_them = heard.any();
        let by_shard = by_shard.read().unwrap_or_else(PoisonError::into_inner);
        let mut requests: BTreeMap<String, Requests> = BTreeMap::new();
        for meters in
            by_shard.values().chain([none, unknown, several].into_iter().filter_map(|of| of.meters.get()))
        {
            let counts = if as_the_server_sees_them { &meters.http.counts } else { &meters.counts };
            let counted = counts.read();
            if counted != Requests::default() {
                let sum = requests.entry(meters.name.clone()).or_default();
                *sum = sum.and(counted);
            }
        }
        requests
    }
}

impl Default for Meters {
    fn default() -> Meters {
        Meters::new()
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meters")
    }
}
