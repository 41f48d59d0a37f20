//! The list of all metrics: the one place that says what there is to measure.
//!
//! A metric is made from its entry here and from nothing else, so that its name, its labels and its help cannot drift
//! apart. The tests of `stash` compare the list with what the code emits, with the dashboard and with the alert rules.
//!
//! - Names follow Prometheus: base units, the unit last, `_total` for what only counts up.
//! - Labels are of few values: a sink's or consumer's *name*, an operation, an outcome. Never a key, an id or a time.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Unit};

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only rises, from zero at the start of the process.
    Counter,
    /// It is what it is now.
    Gauge,
    /// A distribution.
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name, as Prometheus has it.
    pub name: &'static str,
    /// How it moves.
    pub kind: MetricKind,
    /// What it counts in.
    pub unit: Unit,
    /// What it tells, in one sentence.
    pub help: &'static str,
    /// Its labels' names.
    pub labels: &'static [&'static str],
}

static METADATA: Metadata<'static> = Metadata::new("stash", Level::INFO, None);

impl Metric {
    /// Tells the recorder what it is.
    fn describe(&self) {
        let (name, unit, help) = (self.name.into(), Some(self.unit), self.help.into());
        metrics::with_recorder(|recorder| match self.kind {
            MetricKind::Counter => recorder.describe_counter(name, unit, help),
            MetricKind::Gauge => recorder.describe_gauge(name, unit, help),
            MetricKind::Histogram => recorder.describe_histogram(name, unit, help),
        });
    }

    /// The labels with these values, which come in the order of their names.
    fn key(&self, kind: MetricKind, values: &[&str]) -> Key {
        debug_assert_eq!(self.kind, kind, "{}", self.name);
        debug_assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        let labels = self.labels.iter().zip(values);
        Key::from_parts(
            self.name,
            labels.map(|(name, value)| Label::new(*name, (*value).to_owned())).collect::<Vec<_>>(),
        )
    }

    /// The counter with these values of its labels, in their order. The recorder must be installed by then.
    pub fn counter(&self, values: &[&str]) -> Counter {
        let key = self.key(MetricKind::Counter, values);
        metrics::with_recorder(|recorder| recorder.register_counter(&key, &METADATA))
    }

    /// The gauge with these values of its labels.
    pub fn gauge(&self, values: &[&str]) -> Gauge {
        let key = self.key(MetricKind::Gauge, values);
        metrics::with_recorder(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    /// The histogram with these values of its labels.
    pub fn histogram(&self, values: &[&str]) -> Histogram {
        let key = self.key(MetricKind::Histogram, values);
        metrics::with_recorder(|recorder| recorder.register_histogram(&key, &METADATA))
    }
}

/// Tells the installed recorder what every metric is. Called once, before the stash is opened.
pub fn describe_metrics() {
    METRICS.iter().for_each(Metric::describe);
}

macro_rules! list {
    ($($constant:ident = $kind:ident $name:literal $unit:ident [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric = Metric {
                name: $name,
                kind: MetricKind::$kind,
                unit: Unit::$unit,
                help: $help,
                labels: &[$($label),*],
            };
        )*
        /// Every metric there is.
        pub const METRICS: &[Metric] = &[$($constant),*];
    };
}

list! {
    // The store, by what was asked of it.
    BLOB_REQUESTS = Counter "stash_blob_requests_total" Count ["op", "outcome", "sink"]
        "Operations asked of the store, by outcome; a bulk delete counts once.";
    BLOB_DURATION = Histogram "stash_blob_request_duration_seconds" Seconds ["op", "sink"]
        "How long operations on the store took, retries of the client below included.";
    BLOB_BYTES = Counter "stash_blob_bytes_total" Bytes ["op", "sink"]
        "Bytes written by PUTs that created their object, and bytes that GETs returned.";
    BLOB_RETRIES = Counter "stash_blob_retries_total" Count ["op", "sink"]
        "PUTs and GETs that failed and were tried again, above the client's own retries.";
    HTTP_REQUESTS = Counter "stash_http_requests_total" Count ["op", "sink", "status"]
        "HTTP requests to the store, each try of its own, by the class of their status or why there is none.";
    HTTP_RETRIES = Counter "stash_http_retries_total" Count ["op", "sink"]
        "HTTP requests that were not the first try of their operation.";
    HTTP_SENT = Counter "stash_http_sent_bytes_total" Bytes ["op", "sink"]
        "Bytes of the bodies of HTTP requests to the store.";
    HTTP_RECEIVED = Counter "stash_http_received_bytes_total" Bytes ["op", "sink"]
        "Bytes of the bodies of their answers.";
    HTTP_DURATION = Histogram "stash_http_request_duration_seconds" Seconds ["op"]
        "How long HTTP requests to the store took, until their answer was read to the end.";

    // Writing.
    SHARES = Counter "stash_shares_total" Count ["kind", "sink"]
        "Shares that this process's workers reported, by how they travel.";
    SHARE_BYTES = Counter "stash_share_bytes_total" Bytes ["kind", "sink"]
        "Encoded bytes of those shares: inline in the catalog, or stashed in the store.";
    DESCRIPTION_PARTS = Histogram "stash_description_parts" Count ["sink"]
        "Parts of each description that was offered.";
    DESCRIPTION_DURATION = Histogram "stash_description_duration_seconds" Seconds ["sink"]
        "From minting a description until its outcome was durable.";
    DESCRIPTIONS_OPEN = Gauge "stash_descriptions_open" Count ["sink"]
        "Descriptions this process minted that have no outcome yet.";
    OFFERS = Counter "stash_offers_total" Count ["outcome", "sink"]
        "Offers by outcome: accepted, trimmed, dropped, recorded (answered with what was recorded before), failed.";
    OFFER_CONFLICTS = Counter "stash_offer_conflicts_total" Count ["sink"]
        "Offers that lost a race for the head row and were decided again.";
    OFFERED_UPDATES = Counter "stash_offered_updates_total" Count ["sink"]
        "Updates that were offered, before any trim.";
    INCARNATIONS_OPENED = Counter "stash_incarnations_opened_total" Count ["sink"]
        "Incarnations that this process opened: renderings anew.";
    INCARNATIONS_ENDED = Counter "stash_incarnations_ended_total" Count ["sink"]
        "Incarnations that this process gave up because something failed.";
    LEASE_RENEWALS = Counter "stash_lease_renewals_total" Count ["outcome", "sink"]
        "Renewals of incarnations' leases: renewed, closed (too late) or failed.";

    // Reading.
    DELIVERIES = Counter "stash_deliveries_total" Count ["sink"]
        "Batches handed to readers of this process, repeated ones too.";
    READ_UPDATES = Counter "stash_read_updates_total" Count ["sink"]
        "Consolidated updates handed to readers of this process.";
    ACKNOWLEDGEMENTS = Counter "stash_acknowledgements_total" Count ["sink"]
        "Acknowledgements that this process's consumers made.";
    RELEASED_BATCHES = Counter "stash_released_batches_total" Count ["sink"]
        "Batches unlinked because all consumers had acknowledged them.";

    // Deleting.
    DELETIONS = Counter "stash_deletions_total" Count ["outcome", "sink"]
        "Keys of the deletion queue that this process dealt with: deleted, or deferred because the store refused.";
    SWEEPS = Counter "stash_sweeps_total" Count ["sink"]
        "Sweeps of a sink's folder.";
    SWEPT_KEYS = Counter "stash_swept_keys_total" Count ["sink"]
        "Keys that nobody owned and a sweep queued.";
    SWEPT_UPLOADS = Counter "stash_swept_uploads_total" Count ["sink"]
        "Unpublished uploads that a sweep aborted.";
    EXPIRED_BATCHES = Counter "stash_expired_batches_total" Count ["sink"]
        "Batches that retention or an absent hold let go of although not all had acknowledged them.";
    QUEUE_KEYS = Gauge "stash_deletion_queue_keys" Count ["sink"]
        "Keys in the deletion queue, due or not.";
    QUEUE_OLDEST = Gauge "stash_deletion_queue_oldest_seconds" Seconds []
        "How long the key that is due longest has been queued; 0 when none is due.";

    // Memory.
    BUDGET_BYTES = Gauge "stash_budget_bytes" Bytes ["traffic"]
        "Memory reserved for batches now.";
    BUDGET_LIMIT = Gauge "stash_budget_limit_bytes" Bytes []
        "The whole memory for batches.";
    BUDGET_PEAK = Gauge "stash_budget_peak_bytes" Bytes []
        "The most memory that was ever reserved at once.";
    BUDGET_WAITS = Counter "stash_budget_waits_total" Count ["traffic"]
        "Reservations that had to wait for memory.";
    BUDGET_WAIT_DURATION = Histogram "stash_budget_wait_duration_seconds" Seconds ["traffic"]
        "How long they waited until they were granted.";
    LEDGER_KEYS = Gauge "stash_ledger_keys" Count []
        "Keys that this process is still responsible for.";

    // The catalog.
    CATALOG_REQUESTS = Counter "stash_catalog_requests_total" Count ["outcome", "statement"]
        "Calls of the catalog by kind; conflict is a compare-and-set that lost, unknown may have happened.";
    CATALOG_DURATION = Histogram "stash_catalog_request_duration_seconds" Seconds ["statement"]
        "How long calls of the catalog took.";

    // What the catalog says of each sink, looked at now and then.
    CHAIN_UPPER = Gauge "stash_chain_upper" Count ["sink"]
        "The chain's upper: everything below was accepted. 2^64 once it is complete.";
    CHAIN_STATUS = Gauge "stash_chain_status" Count ["sink", "status"]
        "1 for what the chain is: open, complete or poisoned; 0 for the others.";
    CHAIN_BATCHES = Gauge "stash_chain_batches" Count ["sink"]
        "Batches that are still linked.";
    CHAIN_LAST_ACCEPT = Gauge "stash_chain_last_accept_timestamp_seconds" Seconds ["sink"]
        "When the chain last moved, in seconds since 1970 by the catalog's clock.";
    INCARNATIONS_OPEN = Gauge "stash_incarnations_open" Count ["sink"]
        "Incarnations that may still write.";
    CONSUMER_BEHIND_BATCHES = Gauge "stash_consumer_behind_batches" Count ["consumer", "sink"]
        "Batches that were accepted and the consumer has not acknowledged.";
    CONSUMER_BEHIND_TIMES = Gauge "stash_consumer_behind_times" Count ["consumer", "sink"]
        "Times between what the consumer acknowledged and the chain's upper; where that is complete, its last update.";
    CONSUMER_BEHIND = Gauge "stash_consumer_behind_seconds" Seconds ["consumer", "sink"]
        "How long ago the oldest batch was accepted that the consumer has not acknowledged.";
    CONSUMER_HEADROOM = Gauge "stash_consumer_headroom_seconds" Seconds ["consumer", "sink"]
        "How long until the sink's absent hold lets go of what the consumer has not acknowledged, if it is not heard.";
    RETENTION_HEADROOM = Gauge "stash_retention_headroom_seconds" Seconds ["sink"]
        "Where nobody holds the chain: how long until the retention takes its oldest batch.";
    HEALTH_FAILURES = Counter "stash_health_failures_total" Count []
        "Looks at the catalog for these gauges that failed: they are stale.";
}
