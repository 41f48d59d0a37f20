//! What the workers of one process share, and what one process writes for one incarnation.

use std::{collections::BTreeSet, fmt, future::Future, num::NonZeroU32, sync::Arc};

use stash_blob::BlobStore;
use stash_catalog::Catalog;
use stash_part::{EncodedPart, RowSchema};
use stash_types::{
    Description, DisarmedShare, Frontier, IncarnationId, PartDescriptor, PartName, RunFacts, ShardId, Share,
    ShareMessage, SinkId, fault,
};
use tracing::Instrument;

use crate::{
    BatchConfig, BatchError, Budget, Drained, Meters, OwnedParts, SharedBatches, SinkMeters, Traffic,
    deleter::Deleter,
    ledger::Ledger,
    spill::HELD_FACTOR,
    sync::{
        self, JoinSet, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        oneshot,
    },
    upload,
};

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounters {
    /// Parts that were PUT.
    pub puts: u64,
    /// Bytes of them.
    pub put_bytes: u64,
    /// Keys this process is still responsible for.
    pub ledger_keys: u64,
}

/// The store, the catalog, the memory, the ledger and the deleter of one process. Clones share it.
///
/// - It lives on a tokio runtime, and its background work ends with the last clone.
/// - [`Process::close`] deletes what this process wrote and nobody references. Without it, what is left is
///   found by the next opening of an incarnation, or by the sweep.
#[derive(Clone)]
pub struct Process {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn BlobStore>,
    catalog: Arc<dyn Catalog>,
    config: BatchConfig,
    budget: Budget,
    ledger: Arc<Ledger>,
    deleter: Arc<Deleter>,
    /// Whether it deletes without being told to.
    deletes: bool,
    slots: SharedBatches,
    meters: Meters,
    background: Mutex<JoinSet<()>>,
    tasks: Mutex<JoinSet<()>>,
    closed: AtomicBool,
    done: AtomicBool,
    puts: AtomicU64,
    put_bytes: AtomicU64,
}

impl Process {
    /// Starts the process's background work. Must be called on a tokio runtime.
    pub fn start(
        store: Arc<dyn BlobStore>,
        catalog: Arc<dyn Catalog>,
        config: BatchConfig,
    ) -> Result<Process, BatchError> {
        Process::metered(store, catalog, config, Meters::new())
    }

    /// The same with handles that whoever meters the store has too.
    pub fn metered(
        store: Arc<dyn BlobStore>,
        catalog: Arc<dyn Catalog>,
        config: BatchConfig,
        meters: Meters,
    ) -> Result<Process, BatchError> {
        Ok(Process::over(store, catalog, config.checked()?, meters))
    }

    /// The same, which deletes nothing unless it is told to ([`Process::drain`]): neither in the background, nor when it is
    /// closed. What it gives up is queued then, for others.
    pub fn looking(
        store: Arc<dyn BlobStore>,
        catalog: Arc<dyn Catalog>,
        config: BatchConfig,
        meters: Meters,
    ) -> Result<Process, BatchError> {
        Ok(Process::built(store, catalog, config.checked()?, meters, false))
    }

    /// The same with knobs that were checked.
    pub(crate) fn over(
        store: Arc<dyn BlobStore>,
        catalog: Arc<dyn Catalog>,
        config: BatchConfig,
        meters: Meters,
    ) -> Process {
        Process::built(store, catalog, config, meters, true)
    }

    fn built(
        store: Arc<dyn BlobStore>,
        catalog: Arc<dyn Catalog>,
        config: BatchConfig,
        meters: Meters,
        deletes: bool,
    ) -> Process {
        let ledger = Arc::new(Ledger::default());
        let (deleters, theirs) = (Arc::clone(&store), Arc::clone(&catalog));
        let deleter = Arc::new(Deleter::new(deleters, theirs, Arc::clone(&ledger), meters.clone()));
        let mut background = JoinSet::new();
        if deletes {
            background.spawn(Arc::clone(&deleter).run());
        }
        let shared = Shared {
            budget: Budget::new(config.memory_bytes),
            store,
            catalog,
            config,
            ledger,
            deleter,
            deletes,
            slots: SharedBatches::default(),
            meters,
            background: Mutex::new(background),
            tasks: Mutex::default(),
            closed: AtomicBool::new(false),
            done: AtomicBool::new(false),
            puts: AtomicU64::new(0),
            put_bytes: AtomicU64::new(0),
        };
        Process { shared: Arc::new(shared) }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn BlobStore> {
        &self.shared.store
    }

    /// The catalog.
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.shared.catalog
    }

    /// The knobs, within the memory.
    pub fn config(&self) -> &BatchConfig {
        &self.shared.config
    }

    /// The memory.
    pub fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// What is measured, by sink.
    pub fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// Counts so far.
    pub fn counters(&self) -> ProcessCounters {
        ProcessCounters {
            puts: self.shared.puts.load(Ordering::Relaxed),
            put_bytes: self.shared.put_bytes.load(Ordering::Relaxed),
            ledger_keys: u64::try_from(self.shared.ledger.len()).unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn slots(&self) -> &SharedBatches {
        &self.shared.slots
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.shared.ledger
    }

    /// Lets the deleter look at the queue now.
    pub fn wake_deleter(&self) {
        self.shared.ledger.wake();
    }

    /// Deletes all that is due: given up here, or queued by anyone.
    pub async fn drain(&self) -> Result<Drained, BatchError> {
        self.shared.deleter.drain().await
    }

    /// Ends the background work, gives up everything this process still owns, and deletes what no row
    /// references. Incarnations that could
    /// still offer some of it are closed first: their batches would lack it. Who only looks ([`Process::looking`]) queues
    /// what it gave up, and deletes nothing.
    pub async fn close(&self) -> Result<Drained, BatchError> {
        if self.shared.done.load(Ordering::Acquire) {
            return Ok(Drained::default());
        }
        self.shared.closed.store(true, Ordering::Release);
        let mut background =
            std::mem::take(&mut *self.shared.background.lock().unwrap_or_else(PoisonError::into_inner));
        background.shutdown().await;
        self.shared.slots.abandon_all();
        // A run that is being written begins uploads of its own while it is waited for.
        loop {
            let mut tasks =
                std::mem::take(&mut *self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner));
            if tasks.is_empty() {
                break;
            }
            while tasks.join_next().await.is_some() {}
        }
        self.shared.ledger.surrender_all();
        fault::place("batch.closing");
        self.shared.deleter.close_incarnations("a process closed with shares that were not offered").await?;
        let drained = match self.shared.deletes {
            true => self.drain().await?,
            false => self.shared.deleter.queue_given_up().await.map(|()| Drained::default())?,
        };
        self.shared.done.store(true, Ordering::Release);
        Ok(drained)
    }

    /// Runs `work` to its end even if the caller stops waiting, and answers with its result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, receiver) = oneshot::channel();
        let mut tasks = self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let _ = answer.send(work.await);
        });
        receiver
    }
}

impl Shared {
    /// Refuses to begin what nobody would clean up any more.
    fn check_open(&self) -> Result<(), BatchError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(BatchError::Closed);
        }
        Ok(())
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("store", &self.shared.store.location())
            .field("catalog", &self.shared.catalog.location())
            .field("budget", &self.shared.budget)
            .finish_non_exhaustive()
    }
}

/// Runs CPU work: in place while it is small, else on the blocking pool so that other tasks go on.
pub(crate) async fn compute<T: Send + 'static>(
    bytes: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BatchError> {
    /// About a hundred microseconds of sorting; below it a hand-over costs more than it frees.
    const IN_PLACE_BYTES_MAX: u64 = 64 << 10;
    if bytes <= IN_PLACE_BYTES_MAX {
        return Ok(work());
    }
    sync::spawn_blocking(work).await.map_err(|_| BatchError::Ended { what: "background computation" })
}

/// What one process is told about the incarnation it writes.
#[derive(Clone, Debug)]
pub struct IncarnationSpec {
    /// The sink.
    pub sink: SinkId,
    /// Its blob namespace.
    pub shard: ShardId,
    /// Its row schema.
    pub schema: RowSchema,
    /// Where it ends, or the empty frontier.
    pub up_to: Frontier,
    /// The rendering.
    pub incarnation: IncarnationId,
    /// This process among the replica's, from 0.
    pub process: u32,
    /// Workers of the whole replica.
    pub workers: NonZeroU32,
    /// Workers in this process.
    pub local_workers: NonZeroU32,
}

/// Refuses a share of another incarnation, and what cannot have been written for its description: once
/// accepted, it could never be read.
pub fn check_share(spec: &IncarnationSpec, message: &DisarmedShare) -> Result<(), BatchError> {
    let ShareMessage { sink, incarnation, description, share, .. } = message;
    if (*sink, *incarnation) != (spec.sink, spec.incarnation) {
        return Err(BatchError::InvalidUsage {
            what: format!(
                "a share of sink {sink} and incarnation {incarnation} arrived at sink {} and incarnation {}",
                spec.sink, spec.incarnation
            ),
        });
    }
    let carried = match share {
        Share::Stashed(parts) => {
            let mut names = BTreeSet::new();
            if let Some(twice) = parts.iter().find(|part| !names.insert((part.process, part.n))) {
                return Err(BatchError::InvalidUsage {
                    what: format!(
                        "a share of {description} of sink {sink} names part {} of process {} twice",
                        twice.n, twice.process
                    ),
                });
            }
            parts.iter().map(|part| (part.facts, part.tail_len <= part.len)).collect()
        }
        Share::Inline(run) => {
            let context = format!("an inline share of {description} of sink {sink}");
            stash_part::decode_inline(&spec.schema, run).map_err(BatchError::part(context))?;
            vec![(run.facts, true)]
        }
        Share::Empty | Share::Failed { .. } | Share::Dropped => Vec::new(),
    };
    let impossible = |(facts, whole): &(RunFacts, bool)| {
        let RunFacts { update_count, min_time, max_time, .. } = *facts;
        let within = description.contains(min_time) && description.contains(max_time);
        !(*whole && update_count > 0 && min_time <= max_time && within)
    };
    match carried.iter().find(|carried| impossible(carried)) {
        None => Ok(()),
        Some((facts, _)) => Err(BatchError::InvalidUsage {
            what: format!(
                "a share of {description} of sink {sink} claims what cannot be: {} updates with times {} to {}",
                facts.update_count, facts.min_time, facts.max_time
            ),
        }),
    }
}

/// What one process writes for one incarnation; workers reach it through a [`WriterHandle`](crate::WriterHandle).
#[derive(Debug)]
pub struct IncarnationWriter {
    process: Process,
    spec: IncarnationSpec,
    meters: Arc<SinkMeters>,
    next_n: AtomicU64,
    next_run: AtomicU32,
    abandoned: AtomicBool,
    encoded: AtomicU64,
    unencoded: AtomicU64,
}

impl IncarnationWriter {
    pub(crate) fn new(process: Process, spec: IncarnationSpec) -> Result<IncarnationWriter, BatchError> {
        if spec.local_workers > spec.workers {
            return Err(BatchError::InvalidUsage {
                what: format!(
                    "{} local workers of {} in all: a process has at most all of them",
                    spec.local_workers, spec.workers
                ),
            });
        }
        Ok(IncarnationWriter {
            meters: process.meters().of(spec.shard),
            process,
            spec,
            next_n: AtomicU64::new(0),
            next_run: AtomicU32::new(0),
            abandoned: AtomicBool::new(false),
            encoded: AtomicU64::new(0),
            unencoded: AtomicU64::new(0),
        })
    }

    /// What it was told.
    pub fn spec(&self) -> &IncarnationSpec {
        &self.spec
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What is measured of its sink.
    pub fn meters(&self) -> &Arc<SinkMeters> {
        &self.meters
    }

    pub(crate) fn check_open(&self) -> Result<(), BatchError> {
        self.process.shared.check_open()
    }

    /// Arms a share that came over a serializing channel: this process now owns its parts. The keys are
    /// completed under the writer's own sink, so a forged descriptor cannot reach another (I23).
    pub fn arm(&self, message: DisarmedShare) -> Result<ShareMessage<OwnedParts>, BatchError> {
        check_share(&self.spec, &message)?;
        let description = message.description;
        let armed = message.map(|parts| self.owned(description, parts));
        fault::place("batch.armed");
        Ok(armed)
    }

    /// Gives up what the workers of this process hold of the incarnation and has not left them yet. Shares that are
    /// opened afterwards fail.
    pub fn abandon(&self) {
        self.process.slots().abandon(self);
    }

    /// For the registry of slots, under its lock: no slot of the incarnation is to come.
    pub(crate) fn set_abandoned(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Bytes in memory at which an open batch is written while it grows: what becomes one full part, judged by
    /// the parts that were written so far, and little enough that others fill while it is written.
    pub(crate) fn flush_bytes(&self) -> u64 {
        let written = (self.encoded.load(Ordering::Relaxed), self.unencoded.load(Ordering::Relaxed));
        flush_bytes(self.process.config().part_bytes, written, self.process.budget().largest(Traffic::Write))
    }

    pub(crate) fn next_run(&self) -> u32 {
        self.next_run.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn owned(&self, description: Description, parts: Vec<PartDescriptor>) -> OwnedParts {
        let IncarnationSpec { sink, shard, incarnation, .. } = self.spec;
        OwnedParts::new(Arc::clone(self.process.ledger()), sink, shard, incarnation, description, parts)
    }

    /// Uploads one encoded part under a fresh key.
    pub(crate) async fn put(
        &self,
        description: Description,
        part: &EncodedPart,
    ) -> Result<OwnedParts, BatchError> {
        let n = self.next_n.fetch_add(1, Ordering::Relaxed);
        let descriptor = part.descriptor(self.spec.process, n);
        let name =
            PartName { incarnation: self.spec.incarnation, description, process: self.spec.process, n };
        // SUBTLE: a PUT runs to its end in a task of the process, and closing waits for it. Cut off with the
        // worker that waits, it could still land after everything this process left was deleted.
        let (key, sent) = (name.under(self.spec.shard), part.clone());
        // Owned before its first byte is sent: whatever ends the upload short of success gives the key up.
        let owned = self.owned(description, vec![descriptor]);
        fault::place("batch.part_owned");
        let (shared, meters) = (Arc::clone(&self.process.shared), Arc::clone(&self.meters));
        let span = tracing::debug_span!("upload", sink = meters.name(), %key, bytes = part.len);
        let upload = async move {
            // SUBTLE: asked in here, where closing waits for it or it sees that it comes too late. Asked before, the
            // whole of a close could pass in between, and the part would land after everything was deleted.
            shared.check_open()?;
            let attempts = shared.config.attempts_max;
            upload::put_part(&shared.store, &meters, key, &sent, attempts).await.map(|()| owned)
        };
        let put = self.process.run(upload.instrument(span));
        let owned = put.await.map_err(|_| BatchError::Ended { what: "an upload" })??;
        fault::place("batch.part_put");
        let shared = &self.process.shared;
        self.encoded.fetch_add(part.len, Ordering::Relaxed);
        self.unencoded.fetch_add(part.facts.uncompressed_bytes, Ordering::Relaxed);
        shared.puts.fetch_add(1, Ordering::Relaxed);
        shared.put_bytes.fetch_add(part.len, Ordering::Relaxed);
        Ok(owned)
    }
}

/// [`IncarnationWriter::flush_bytes`] by the bytes of a full part, the bytes that were written so far, encoded and not,
/// and the largest reservation there is.
fn flush_bytes(part_bytes: u64, (encoded, unencoded): (u64, u64), largest: u64) -> u64 {
    let full = u128::from(part_bytes) * u128::from(unencoded) / u128::from(encoded.max(1));
    let full = full.saturating_mul(15) / 16;
    let full = u64::try_from(full).unwrap_or(u64::MAX);
    full.max(part_bytes).min(largest / HELD_FACTOR / 3)
}

#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use stash_blob::ObjectBlobs;
    use stash_catalog::{
        SqliteCatalog,
        testing::{ManualClock, SeededIds},
    };
    use stash_types::{CatalogId, IdSource, WorkerIndex};

    use super::*;
    use crate::{WriterHandle, owned::tests::part};

    #[test]
    fn a_batch_is_flushed_at_a_full_part_as_far_as_memory_goes() {
        assert_eq!(flush_bytes(1600, (0, 0), 1 << 40), 1600, "nothing is known of what encoding saves");
        assert_eq!(flush_bytes(1600, (100, 400), 1 << 40), 6000, "a quarter is left, and some room");
        assert_eq!(flush_bytes(1600, (100, 50), 1 << 40), 1600, "encoding made it larger");
        assert_eq!(flush_bytes(1600, (100, 400), 6600), 1100, "a third of what may be held encoded too");
        assert_eq!(flush_bytes(u64::MAX, (1, u64::MAX), u64::MAX), u64::MAX / 6, "no overflow");
    }

    #[tokio::test]
    async fn a_process_measures_where_it_was_told_to() {
        let spec = incarnation();
        let (other, meters) = (process(BatchConfig::default()).await, Meters::new());
        let (store, catalog) = (Arc::clone(other.store()), Arc::clone(other.catalog()));
        let process =
            Process::metered(store, catalog, BatchConfig::default(), meters.clone()).expect("it starts");
        assert!(Arc::ptr_eq(&process.meters().of(spec.shard), &meters.of(spec.shard)));
        assert!(!Arc::ptr_eq(&other.meters().of(spec.shard), &meters.of(spec.shard)));
    }

    /// A process over an empty store and an empty catalog, in memory.
    pub(crate) async fn process(config: BatchConfig) -> Process {
        let (clock, ids) = (Arc::new(ManualClock::at(1)), Arc::new(SeededIds::new(1)));
        let catalog = SqliteCatalog::in_memory(clock, ids).await.expect("opened");
        Process::start(Arc::new(ObjectBlobs::memory()), Arc::new(catalog), config).expect("it starts")
    }

    /// An incarnation of one worker, of a sink with one column of integers. No catalog has it.
    pub(crate) fn incarnation() -> IncarnationSpec {
        let ids = SeededIds::new(1);
        let sink = SinkId::from_uuid(ids.random());
        let schema = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
        let one = NonZeroU32::new(1).expect("one");
        IncarnationSpec {
            sink,
            shard: ShardId::derive(CatalogId::from_uuid(ids.random()), sink),
            schema: RowSchema::new(Arc::new(schema)).expect("a schema"),
            up_to: Frontier::EMPTY,
            incarnation: IncarnationId::from_uuid(ids.ordered()),
            process: 0,
            workers: one,
            local_workers: one,
        }
    }

    /// The same of two workers, both of this process.
    pub(crate) fn incarnation_of_two() -> IncarnationSpec {
        let two = NonZeroU32::new(2).expect("two");
        IncarnationSpec { workers: two, local_workers: two, ..incarnation() }
    }

    /// `[lower, upper)`.
    pub(crate) fn description(lower: u64, upper: u64) -> Description {
        Description::new(Frontier::at(lower), Frontier::at(upper)).expect("it covers a time")
    }

    #[test]
    fn a_share_that_cannot_have_been_written_for_its_description_is_refused() {
        let spec = incarnation();
        let description = description(3, 9);
        let message = |parts: Vec<PartDescriptor>| ShareMessage {
            sink: spec.sink,
            incarnation: spec.incarnation,
            description,
            floor: Frontier::at(3),
            worker: WorkerIndex(0),
            share: Share::Stashed(parts),
            poisoned: None,
        };
        let with = |change: fn(&mut PartDescriptor)| {
            let mut second = part(2);
            change(&mut second);
            check_share(&spec, &message(vec![part(1), second]))
        };
        with(|_| {}).expect("its earliest and latest time are the description's");
        with(|part| part.facts.max_time = 3).expect("all at one time");
        for (what, refused) in [
            ("a part twice", with(|part| part.n = 1)),
            ("a tail longer than the object", with(|part| part.tail_len = 71)),
            ("no update", with(|part| part.facts.update_count = 0)),
            ("times the wrong way round", with(|part| (part.facts.min_time, part.facts.max_time) = (8, 3))),
            ("a time before the lower", with(|part| part.facts.min_time = 2)),
            ("a time at the upper", with(|part| part.facts.max_time = 9)),
        ] {
            assert!(matches!(refused, Err(BatchError::InvalidUsage { .. })), "{what}: {refused:?}");
        }
        // Numbers are of a process: two of them may have used the same.
        with(|part| (part.process, part.n) = (1, 1)).expect("parts of two processes");
        let ids = SeededIds::new(2);
        for elsewhere in [
            ShareMessage { sink: SinkId::from_uuid(ids.random()), ..message(vec![]) },
            ShareMessage { incarnation: IncarnationId::from_uuid(ids.ordered()), ..message(vec![]) },
        ] {
            let refused = check_share(&spec, &elsewhere);
            assert!(matches!(refused, Err(BatchError::InvalidUsage { .. })), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn who_comes_to_an_incarnation_that_was_given_up_opens_no_batch() {
        let process = process(BatchConfig::default()).await;
        let given_up = WriterHandle::open(process.clone(), incarnation()).expect("a sound spec");
        let other_spec = IncarnationSpec {
            incarnation: IncarnationId::from_uuid(SeededIds::new(2).ordered()),
            ..incarnation()
        };
        let other = WriterHandle::open(process.clone(), other_spec).expect("a sound spec");
        let share = |of: &Arc<WriterHandle>, upper| {
            of.share(WorkerIndex(0), description(3, upper), Frontier::at(3)).expect("it opens")
        };
        let (early, untouched) = (share(&given_up, 9), share(&other, 9));
        assert_eq!(process.slots().len(), 2);
        given_up.abandon();
        assert_eq!(process.slots().len(), 1, "the other incarnation goes on");
        let late = share(&given_up, 10);
        assert_eq!(process.slots().len(), 1, "nobody would miss it (I25)");
        for share in [early, late] {
            let share = share.finish().await.share;
            assert!(matches!(&share, Share::Failed { reason } if reason.contains("closed")), "{share:?}");
        }
        assert!(matches!(untouched.finish().await.share, Share::Empty));
        assert!(process.slots().is_empty());
    }
}
