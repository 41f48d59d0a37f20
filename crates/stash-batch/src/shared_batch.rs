//! A shared batch: what the local workers of one process hold for one description.
//!
//! Every worker's updates lie here, not with the worker, so that whoever needs memory can have the oldest
//! open batch written. A batch that grows past a part's size is written as a run while it grows; what is
//! left when the last local worker arrives is the coalesced run. The last one's share carries all parts of
//! the process, the others' are empty: eight workers with small runs cost one PUT, and nobody waits for a
//! deadline or for a dead worker (docs/adr/0005).
//!
//! - A slot is created by the first touch and filled in place (I25); it goes with its last worker.
//! - Who arrived is a set, never a reference count (case 14).
//! - After a failure the slot is failed for all: the last share says so, and what was written is given up. Whoever hears
//!   of it hears, too, whether it lasts: who wrote the run that failed may be nobody's worker at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    panic::AssertUnwindSafe,
    sync::Arc,
};

use futures::FutureExt;
use stash_part::{Sorted, Updates};
use stash_types::{Description, IncarnationId, WorkerIndex};

use crate::{
    BatchError, OwnedParts,
    budget::{Relief, Reservation},
    error::Failed,
    process::IncarnationWriter,
    spill::{self, Held, RunEnd, WrittenRun},
    sync::{
        Mutex, MutexGuard, Notify, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

type SlotKey = (IncarnationId, Description);

/// The open shared batches of a process, oldest first.
#[derive(Debug, Default)]
pub struct SharedBatches {
    registry: Mutex<Registry>,
    flushing: AtomicUsize,
}

#[derive(Debug, Default)]
struct Registry {
    slots: BTreeMap<SlotKey, Arc<SharedBatch>>,
    next_ticket: u64,
    closed: bool,
}

impl SharedBatches {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a description; the first touch creates it. Of an incarnation that was given up it is one by itself
    /// that failed already: workers that come later would be missed by nobody, and what they hold with them (I25).
    pub(crate) fn touch(
        &self,
        writer: &Arc<IncarnationWriter>,
        description: Description,
    ) -> Arc<SharedBatch> {
        let mut registry = self.registry();
        let ticket = registry.next_ticket;
        if registry.closed || writer.is_abandoned() {
            let slot = SharedBatch::new(Arc::clone(writer), description, ticket);
            slot.abandon("the incarnation was closed");
            return slot;
        }
        let slot = registry
            .slots
            .entry((writer.spec().incarnation, description))
            .or_insert_with(|| SharedBatch::new(Arc::clone(writer), description, ticket));
        let slot = Arc::clone(slot);
        registry.next_ticket = ticket.saturating_add(1);
        slot
    }

    fn forget(&self, key: &SlotKey) {
        self.registry().slots.remove(key);
    }

    /// Gives up what an incarnation holds, for good.
    pub(crate) fn abandon(&self, writer: &IncarnationWriter) {
        let mut registry = self.registry();
        writer.set_abandoned();
        let incarnation = writer.spec().incarnation;
        let (gone, kept) =
            mem::take(&mut registry.slots).into_iter().partition(|((of, _), _)| *of == incarnation);
        registry.slots = kept;
        drop(registry);
        let gone: BTreeMap<SlotKey, Arc<SharedBatch>> = gone;
        gone.values().for_each(|slot| slot.abandon("the incarnation was closed"));
    }

    /// Gives up everything, for good.
    pub(crate) fn abandon_all(&self) {
        let slots = {
            let mut registry = self.registry();
            registry.closed = true;
            mem::take(&mut registry.slots)
        };
        slots.values().for_each(|slot| slot.abandon("the process is closing"));
    }

    /// How many batches are open.
    pub fn len(&self) -> usize {
        self.registry().slots.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Relief for SharedBatches {
    /// Writes the oldest batch that holds memory, unless a run is being written already: its memory is about to
    /// be free, and cutting another batch short would only make small parts. The failure of the batch that is
    /// written is its own workers' to report; its memory is free either way.
    async fn relieve(&self) -> bool {
        if self.flushing.load(Ordering::Acquire) > 0 {
            return false;
        }
        // SUBTLE: a worker that arrives as the last takes its slot out of the registry with the slot's lock in hand. So
        // whoever has the registry's lock takes no slot's: the two would wait for each other for ever.
        let slots: Vec<Arc<SharedBatch>> = self.registry().slots.values().cloned().collect();
        let holding = slots.into_iter().filter(|slot| slot.held_bytes() > 0);
        let Some(slot) = holding.min_by_key(|slot| slot.ticket) else { return false };
        if let Err(error) = slot.flush().await {
            tracing::warn!(%error, "flush under memory pressure failed");
        }
        true
    }
}

/// What the local workers hold for one description.
#[derive(Debug)]
pub(crate) struct SharedBatch {
    writer: Arc<IncarnationWriter>,
    description: Description,
    ticket: u64,
    state: Mutex<State>,
    quiet: Notify,
}

#[derive(Debug, Default)]
struct State {
    holdings: BTreeMap<WorkerIndex, Held>,
    opened: BTreeSet<WorkerIndex>,
    arrived: BTreeSet<WorkerIndex>,
    parts: Option<OwnedParts>,
    /// Where a run ended that may be gone on with; whoever goes on with it takes it out of here.
    end: Option<RunEnd>,
    flushing: u32,
    failed: Option<Failed>,
}

/// How much lies in a slot after something was added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// Bytes of the adding worker that are not sorted yet.
    pub(crate) unsorted: u64,
    /// Bytes of all workers.
    pub(crate) held: u64,
}

/// What an arriving worker is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing lies here for it to report.
    Empty,
    /// Its own updates are small: they travel in its share, and were taken out of here.
    Inline,
    /// It was the last: it writes what is left and carries all parts.
    Last,
}

impl SharedBatch {
    fn new(writer: Arc<IncarnationWriter>, description: Description, ticket: u64) -> Arc<SharedBatch> {
        let (state, quiet) = (Mutex::default(), Notify::new());
        Arc::new(SharedBatch { writer, description, ticket, state, quiet })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self) -> SlotKey {
        (self.writer.spec().incarnation, self.description)
    }

    fn held_bytes(&self) -> u64 {
        self.state().holdings.values().map(Held::bytes).sum()
    }

    fn failure(&self, Failed { what, lasting }: &Failed) -> BatchError {
        let spec = self.writer.spec();
        BatchError::SharedFailed {
            what: format!(
                "the shared batch of sink {}, incarnation {}, description {} failed: {what}",
                spec.sink, spec.incarnation, self.description
            ),
            lasting: *lasting,
        }
    }

    /// Notes that a worker opened its share. `false` if it did before: what both would hold would be one.
    pub(crate) fn open(&self, worker: WorkerIndex) -> bool {
        self.state().opened.insert(worker)
    }

    /// Adds unsorted updates of a worker, with the memory they were admitted to.
    pub(crate) fn add(
        &self,
        worker: WorkerIndex,
        updates: Updates,
        memory: Reservation,
    ) -> Result<Level, BatchError> {
        let mut state = self.state();
        if let Some(why) = &state.failed {
            return Err(self.failure(why));
        }
        let held = state.holdings.entry(worker).or_default();
        held.add(updates, memory);
        let unsorted = held.unsorted_bytes();
        let level = Level { unsorted, held: state.holdings.values().map(Held::bytes).sum() };
        drop(state);
        self.writer.process().budget().poke();
        Ok(level)
    }

    /// Takes a worker's unsorted updates out to be sorted; a flush under way may have taken them already.
    pub(crate) fn take_unsorted(&self, worker: WorkerIndex) -> Option<Held> {
        self.state().holdings.get_mut(&worker)?.take_unsorted()
    }

    /// Takes all updates of a worker out if they have at most `bytes_max` bytes, and it has any.
    pub(crate) fn take_small(&self, worker: WorkerIndex, bytes_max: u64) -> Option<Held> {
        let mut state = self.state();
        let small = state.holdings.get(&worker).is_some_and(|held| (1..=bytes_max).contains(&held.bytes()));
        if small { state.holdings.remove(&worker) } else { None }
    }

    /// Puts sorted updates back; a batch that failed meanwhile holds nothing any more.
    pub(crate) fn put_sorted(&self, worker: WorkerIndex, sorted: Sorted, memory: Reservation) {
        let mut state = self.state();
        if state.failed.is_none() {
            state.holdings.entry(worker).or_default().add_sorted(sorted, memory);
        }
        drop(state);
        self.writer.process().budget().poke();
    }

    /// Writes all that is held now, in one run.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), BatchError> {
        let (taken, after) = {
            let mut state = self.state();
            let taken = Held::join(mem::take(&mut state.holdings).into_values());
            if taken.bytes() == 0 {
                return Ok(());
            }
            state.flushing = state.flushing.saturating_add(1);
            self.writer.process().slots().flushing.fetch_add(1, Ordering::AcqRel);
            (taken, state.end.take())
        };
        // SUBTLE: the run is written by a task of the process. The worker that waits here may be one of quite
        // another batch, short of memory, and its being cancelled must not take this batch with it.
        let slot = Arc::clone(self);
        let done = self.writer.process().run(async move {
            // SUBTLE: whatever happens in there, the flush is counted as over: those who wait for its memory,
            // and the last worker, wait for that count.
            let written = AssertUnwindSafe(spill::write_run(&slot.writer, slot.description, taken, after));
            let panicked = |_| Err(BatchError::Ended { what: "the writing of a run: it panicked, and" });
            slot.flushed(written.catch_unwind().await.unwrap_or_else(panicked))
        });
        done.await.map_err(|_| BatchError::Ended { what: "the flush of a shared batch" })?
    }

    fn flushed(&self, written: Result<WrittenRun, BatchError>) -> Result<(), BatchError> {
        // SUBTLE: those who wait for memory leave other batches alone while a run is being written, so they are
        // woken once more after it no longer is; its memory was free before.
        self.writer.process().slots().flushing.fetch_sub(1, Ordering::AcqRel);
        self.writer.process().budget().poke();
        let mut state = self.state();
        state.flushing = state.flushing.saturating_sub(1);
        let result = match written {
            Ok(WrittenRun { parts, end }) => {
                state.keep(parts);
                // SUBTLE: of runs that were written side by side the last one is gone on with, whichever it is. It stands:
                // so what is known of its end is the whole of it.
                state.end = end.or(state.end.take());
                Ok(())
            }
            Err(error) => {
                state.failed.get_or_insert_with(|| Failed::from(&error));
                Err(error)
            }
        };
        let abandoned = if state.failed.is_some() { state.parts.take() } else { None };
        drop(state);
        drop(abandoned);
        self.quiet.notify_waiters();
        result
    }

    /// Counts a worker as arrived and says what it is to do. `inline`: all it has may travel in its share.
    pub(crate) fn arrive(&self, worker: WorkerIndex, inline: bool) -> Result<Arrival, BatchError> {
        let mut state = self.state();
        state.arrived.insert(worker);
        let last = self.is_complete(&state);
        if last {
            self.writer.process().slots().forget(&self.key());
        }
        if let Some(why) = &state.failed {
            return Err(self.failure(why));
        }
        let mine = state.holdings.get(&worker).map_or(0, Held::bytes);
        let others = state.parts.is_some()
            || state.flushing > 0
            || state.holdings.iter().any(|(of, held)| *of != worker && held.bytes() > 0);
        if mine > 0 && inline && !(last && others) {
            state.holdings.remove(&worker);
            return Ok(Arrival::Inline);
        }
        Ok(if last && (mine > 0 || others) { Arrival::Last } else { Arrival::Empty })
    }

    fn is_complete(&self, state: &State) -> bool {
        u32::try_from(state.arrived.len()).unwrap_or(u32::MAX) >= self.writer.spec().local_workers.get()
    }

    /// Writes what is left once no flush is under way, and takes all parts. Only for the last worker.
    pub(crate) async fn close(self: &Arc<Self>) -> Result<OwnedParts, BatchError> {
        self.flush().await?;
        loop {
            // Asked for before the state is looked at: what ends meanwhile is not missed.
            let quiet = self.quiet.notified();
            {
                let mut state = self.state();
                if let Some(why) = &state.failed {
                    return Err(self.failure(why));
                }
                if state.flushing == 0 {
                    let none = || self.writer.owned(self.description, Vec::new());
                    return Ok(state.parts.take().unwrap_or_else(none));
                }
            }
            quiet.await;
        }
    }

    /// A worker gives up: the batch fails for all of them.
    pub(crate) fn give_up(&self, worker: WorkerIndex, why: Failed) {
        // It arrives and fails the batch at once: nobody may become the last of a batch that lacks its updates.
        let mut state = self.state();
        state.arrived.insert(worker);
        let last = self.is_complete(&state);
        let gone = state.fail(why);
        drop(state);
        if last {
            self.writer.process().slots().forget(&self.key());
        }
        drop(gone);
    }

    fn abandon(&self, what: &str) {
        let gone = self.state().fail(Failed::passing(what));
        drop(gone);
    }
}

impl State {
    /// Fails the batch for all, and hands out what it held, to be dropped once nothing is locked any more.
    fn fail(&mut self, why: Failed) -> (BTreeMap<WorkerIndex, Held>, Option<OwnedParts>) {
        self.failed.get_or_insert(why);
        (mem::take(&mut self.holdings), self.parts.take())
    }

    fn keep(&mut self, parts: Option<OwnedParts>) {
        // SUBTLE: a run whose updates cancelled is no part at all. It must not take the place of those written before:
        // they would be given up, and the share would say that there was nothing.
        match (&mut self.parts, parts) {
            (_, None) => {}
            (Some(all), Some(more)) => all.absorb(more),
            (none, more) => *none = more,
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use stash_types::Frontier;

    use super::*;
    use crate::{
        BatchConfig, ShareBuilder, Traffic, WriterHandle,
        process::tests::{description, incarnation, incarnation_of_two, process},
        spill::tests::{rows, run_end, run_of},
    };

    /// The only worker's share of `[3, upper)`.
    fn share(writer: &Arc<WriterHandle>, upper: u64) -> ShareBuilder {
        writer.share(WorkerIndex(0), description(3, upper), Frontier::at(3)).expect("it opens")
    }

    #[tokio::test]
    async fn who_needs_memory_has_the_oldest_batch_written_that_holds_any() {
        let process = process(BatchConfig::default()).await;
        let writer = WriterHandle::open(process.clone(), incarnation()).expect("a sound spec");
        let slots = process.slots();
        assert!(!slots.relieve().await, "nothing is open");
        // The oldest holds nothing; of the others the older one is neither the first nor the last by its description.
        let [_empty, mut older, mut newer, mut newest] = [7, 6, 8, 5].map(|upper| share(&writer, upper));
        assert!(!slots.relieve().await, "nothing is held");
        for share in [&mut newest, &mut older, &mut newer] {
            share.push(rows(0..4).into_batch()).await.expect("taken");
        }
        let held = || {
            let registry = slots.registry();
            let holding = registry.slots.iter().filter(|(_, slot)| slot.held_bytes() > 0);
            holding.map(|((_, description), _)| description.upper()).collect::<Vec<_>>()
        };
        assert_eq!(held(), [5, 6, 8].map(Frontier::at));
        let used = process.budget().usage().write;

        slots.flushing.store(1, Ordering::Release);
        assert!(!slots.relieve().await, "a run is being written: its memory is about to be free");
        slots.flushing.store(0, Ordering::Release);
        assert_eq!(held(), [5, 6, 8].map(Frontier::at));

        for left in [&[5, 8][..], &[5], &[]] {
            assert!(slots.relieve().await);
            assert_eq!(held(), left.iter().copied().map(Frontier::at).collect::<Vec<_>>());
            let share_of_three = u64::try_from(left.len()).expect("few") * used / 3;
            assert_eq!(process.budget().usage().write, share_of_three);
        }
        assert!(!slots.relieve().await, "all was written");
    }

    const FIRST: WorkerIndex = WorkerIndex(0);
    const SECOND: WorkerIndex = WorkerIndex(1);

    /// A batch of two workers. Four rows of those who hold any lie in it.
    async fn held_by(workers: &[WorkerIndex]) -> (Arc<WriterHandle>, Arc<SharedBatch>) {
        let process = process(BatchConfig::default()).await;
        let writer = WriterHandle::open(process.clone(), incarnation_of_two()).expect("a sound spec");
        let description = description(3, 9);
        let slot = process.slots().touch(writer.writer(), description);
        for worker in workers {
            let memory = process.budget().reserve(Traffic::Write, 1000).await.expect("there is memory");
            slot.add(*worker, rows(0..4), memory).expect("it is good");
        }
        (writer, slot)
    }

    #[tokio::test]
    async fn only_the_last_writes_and_only_if_something_cannot_travel_in_shares() {
        use Arrival::{Empty, Inline, Last};
        for (holding, first_small, second_small, arrivals) in [
            (&[][..], false, false, (Empty, Empty)),
            (&[FIRST], true, false, (Inline, Empty)),
            (&[FIRST], false, false, (Empty, Last)),
            (&[SECOND], false, true, (Empty, Inline)),
            (&[SECOND], false, false, (Empty, Last)),
            (&[FIRST, SECOND], true, true, (Inline, Inline)),
            (&[FIRST, SECOND], true, false, (Inline, Last)),
            (&[FIRST, SECOND], false, true, (Empty, Last)),
        ] {
            let (writer, slot) = held_by(holding).await;
            let first = slot.arrive(FIRST, first_small).expect("it is good");
            assert_eq!(writer.process().slots().len(), 1, "it waits for the second");
            let second = slot.arrive(SECOND, second_small).expect("it is good");
            assert_eq!((first, second), arrivals, "{holding:?}, {first_small}, {second_small}");
            assert!(writer.process().slots().is_empty());
        }
    }

    #[tokio::test]
    async fn what_is_being_written_is_waited_for_by_the_last() {
        for holding in [&[][..], &[SECOND]] {
            let (_writer, slot) = held_by(holding).await;
            slot.state().flushing = 1;
            assert_eq!(slot.arrive(FIRST, false).expect("it is good"), Arrival::Empty);
            assert_eq!(slot.arrive(SECOND, !holding.is_empty()).expect("it is good"), Arrival::Last);
        }
    }

    #[tokio::test]
    async fn what_was_taken_out_or_written_meanwhile_is_not_held() {
        let (_writer, slot) = held_by(&[FIRST, SECOND]).await;
        assert!(slot.take_unsorted(FIRST).is_some(), "its rows cancelled when they were sorted");
        assert_eq!(slot.arrive(FIRST, false).expect("it is good"), Arrival::Empty);
        assert_eq!(slot.arrive(SECOND, true).expect("it is good"), Arrival::Inline, "nothing else lies here");

        let (_writer, slot) = held_by(&[FIRST]).await;
        slot.flush().await.expect("written");
        assert_eq!(
            slot.arrive(FIRST, true).expect("it is good"),
            Arrival::Empty,
            "or its rows would count twice"
        );
        assert_eq!(slot.arrive(SECOND, false).expect("it is good"), Arrival::Last);
        assert_eq!(slot.close().await.expect("one run").len(), 1);
    }

    #[tokio::test]
    async fn what_comes_back_to_a_batch_that_failed_meanwhile_is_given_up_at_once() {
        let (writer, slot) = held_by(&[FIRST, SECOND]).await;
        let sorted = slot.take_unsorted(FIRST).expect("four rows").consolidate(&writer.spec().schema);
        let (sorted, memory) = sorted.expect("sound");
        slot.give_up(SECOND, Failed::passing("told to"));
        slot.put_sorted(FIRST, sorted, memory.expect("it was reserved"));
        assert_eq!(writer.process().budget().usage().write, 0, "a batch that failed holds no memory");

        let (_writer, slot) = held_by(&[FIRST]).await;
        slot.state().failed = Some(Failed::passing("told to"));
        slot.flush().await.expect("the run itself is written");
        assert!(slot.state().parts.is_none());
    }

    #[tokio::test]
    async fn of_runs_written_side_by_side_the_last_whose_end_is_known_is_gone_on_with() {
        let (writer, slot) = held_by(&[]).await;
        for (end, known) in [(None, None), (Some(1), Some(1)), (None, Some(1)), (Some(2), Some(2))] {
            writer.process().slots().flushing.store(1, Ordering::Release);
            slot.flushed(Ok(WrittenRun { parts: None, end: end.map(run_end) })).expect("written");
            assert_eq!(slot.state().end.as_ref().map(run_of), known);
        }
    }
}
