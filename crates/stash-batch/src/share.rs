//! One worker's share of one description, from its first update to the message that reports it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use stash_part::Updates;
use stash_types::{DataflowError, Description, Frontier, InlineRun, Share, ShareMessage, WorkerIndex, fault};

use crate::{
    BatchError, OwnedParts, Traffic, WriterHandle,
    error::Failed,
    meters::ShareKind,
    process::compute,
    shared_batch::{Arrival, SharedBatch},
    spill::{self, HELD_FACTOR, Held, bytes_of},
};

/// Which share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareSpec {
    /// Whose it is.
    pub worker: WorkerIndex,
    /// The description it contributes to.
    pub description: Description,
    /// The floor the description was minted with: updates below it are left out.
    pub floor: Frontier,
}

/// Takes a worker's updates for one description and makes its share.
///
/// - Updates may come in any order and in any number of pieces; rows may repeat, diffs may cancel.
/// - Whoever opens one finishes it, also without updates: silence would stall the merge.
/// - Dropping it unfinished fails the description for the whole process.
#[must_use = "a share that is not finished stalls the merge: finish it or fail it"]
#[derive(Debug)]
pub struct ShareBuilder {
    writer: Arc<WriterHandle>,
    spec: ShareSpec,
    slot: Arc<SharedBatch>,
    failed: Option<Failed>,
    reported: bool,
}

impl ShareBuilder {
    pub(crate) fn open(writer: &Arc<WriterHandle>, spec: ShareSpec) -> Result<ShareBuilder, BatchError> {
        let workers = writer.spec().workers;
        if spec.worker.0 >= workers.get() {
            return Err(BatchError::InvalidUsage {
                what: format!("worker {} of {workers}: workers count from 0", spec.worker),
            });
        }
        let slot = writer.process().slots().touch(writer.writer(), spec.description);
        if !slot.open(spec.worker) {
            return Err(BatchError::InvalidUsage {
                what: format!(
                    "worker {} opened its share of {} of sink {} already: a worker reports each share once",
                    spec.worker,
                    spec.description,
                    writer.spec().sink
                ),
            });
        }
        Ok(ShareBuilder { writer: Arc::clone(writer), spec, slot, failed: None, reported: false })
    }

    /// Which share this is.
    pub fn spec(&self) -> ShareSpec {
        self.spec
    }

    /// Adds updates: the sink's columns, then `_time` and `_diff`. Waits while the memory budget is spent.
    ///
    /// Times outside the description are refused (I3), as are other columns; nothing of the piece is taken
    /// then, and the builder goes on. Times below the floor or at and above the sink's `up_to` are left out.
    /// A push that is cancelled fails the share.
    pub async fn push(&mut self, batch: RecordBatch) -> Result<(), BatchError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone().into());
        }
        let pieces = self.pieces(self.admit(batch)?)?;
        // SUBTLE: a push that is cancelled takes with it what it has in hand, to be sorted or not yet added. A share
        // that lacks rows must not look like a good one, so it is failed until the push has returned (case 24).
        self.failed = Some(Failed::passing("a push was cancelled half-way"));
        for piece in pieces {
            if let Err(error) = self.push_piece(piece).await {
                self.failed = Some(Failed::from(&error));
                return Err(error);
            }
        }
        self.failed = None;
        Ok(())
    }

    /// What was given at once in pieces that memory is reserved for one by one.
    fn pieces(&self, updates: Updates) -> Result<Vec<Updates>, BatchError> {
        let config = self.writer.process().config();
        let largest = config.row_bytes_max();
        cut(updates, config.chunk_bytes, largest).map_err(|row| BatchError::RowTooLarge {
            sink: self.writer.spec().sink,
            time: row.times().first().copied().unwrap_or_default(),
            bytes: bytes_of(&row),
            largest,
        })
    }

    fn admit(&self, batch: RecordBatch) -> Result<Updates, BatchError> {
        let ShareSpec { worker, description, floor } = self.spec;
        let context =
            || format!("worker {worker}, description {description} of sink {}", self.writer.spec().sink);
        let updates = Updates::new(&self.writer.spec().schema, batch).map_err(BatchError::part(context()))?;
        let facts = updates.facts();
        if facts.update_count > 0 {
            for time in [facts.min_time, facts.max_time] {
                if !description.contains(time) {
                    return Err(BatchError::InvalidUsage {
                        what: format!("{}: an update has time {time}, outside the description", context()),
                    });
                }
            }
        }
        let lower = description.lower().max(floor);
        let upper = description.upper().min(self.writer.spec().up_to);
        updates.between(lower, upper).map_err(BatchError::part(context()))
    }

    async fn push_piece(&mut self, updates: Updates) -> Result<(), BatchError> {
        let process = self.writer.process();
        let wanted = bytes_of(&updates).saturating_mul(HELD_FACTOR);
        // Who waits here holds nothing that others cannot have written: all updates lie in shared batches.
        let memory = process.budget().reserve_or(Traffic::Write, wanted, process.slots()).await?;
        let level = self.slot.add(self.spec.worker, updates, memory)?;
        let config = process.config();
        if level.unsorted >= config.chunk_bytes {
            self.sort_chunk().await?;
        }
        if level.held >= self.writer.flush_bytes() {
            self.slot.flush().await?;
        }
        Ok(())
    }

    async fn sort_chunk(&self) -> Result<(), BatchError> {
        let Some(chunk) = self.slot.take_unsorted(self.spec.worker) else { return Ok(()) };
        let (sorted, memory) = self.consolidate(chunk).await?;
        if let Some(memory) = memory {
            self.slot.put_sorted(self.spec.worker, sorted, memory);
        }
        Ok(())
    }

    async fn consolidate(
        &self,
        held: Held,
    ) -> Result<(stash_part::Sorted, Option<crate::Reservation>), BatchError> {
        let schema = self.writer.spec().schema.clone();
        let context = format!("description {} of sink {}", self.spec.description, self.writer.spec().sink);
        compute(held.bytes(), move || held.consolidate(&schema)).await?.map_err(BatchError::part(context))
    }

    /// Ends the share. What went wrong on the way becomes a failed share, never an empty one.
    pub async fn finish(self) -> ShareMessage<OwnedParts> {
        match self.try_finish().await {
            Ok(share) => share,
            Err(failed) => {
                let (share, error) = *failed;
                share.fail(error.to_string())
            }
        }
    }

    /// The same, but where it went wrong the share is given back, to be failed, with why. What a push that failed had
    /// told is a [`BatchError::SharedFailed`].
    pub async fn try_finish(mut self) -> Result<ShareMessage<OwnedParts>, Box<(ShareBuilder, BatchError)>> {
        let share = match &self.failed {
            Some(failed) => Err(failed.clone().into()),
            None => self.complete().await,
        };
        match share {
            Ok(share) => Ok(self.report(share)),
            Err(error) => {
                self.failed = Some(Failed::from(&error));
                Err(Box::new((self, error)))
            }
        }
    }

    /// Ends the share with an error of the dataflow itself; updates before its time still count.
    pub async fn poison(self, error: DataflowError) -> ShareMessage<OwnedParts> {
        let mut message = self.finish().await;
        message.poisoned = Some(error);
        message
    }

    /// Ends the share as failed: the incarnation is to be closed and rendered anew.
    pub fn fail(mut self, reason: impl Into<String>) -> ShareMessage<OwnedParts> {
        let reason = reason.into();
        self.give_up(&reason);
        self.report(Share::Failed { reason })
    }

    /// Ends the share because the sink is going away.
    pub fn drop_sink(mut self) -> ShareMessage<OwnedParts> {
        self.slot.give_up(self.spec.worker, Failed::passing("the sink is going away"));
        self.report(Share::Dropped)
    }

    /// What it ran into before, if anything, says whether that lasts.
    fn give_up(&self, what: &str) {
        let lasting = self.failed.as_ref().is_some_and(|failed| failed.lasting);
        self.slot.give_up(self.spec.worker, Failed { what: what.to_owned(), lasting });
    }

    async fn complete(&mut self) -> Result<Share<OwnedParts>, BatchError> {
        let inline_max = self.writer.process().config().inline_batch_bytes_max
            / u64::from(self.writer.spec().workers.get());
        // SUBTLE: whether the run travels in the share is found out before this worker counts as arrived. Afterwards
        // another may have come last meanwhile, and what did not fit would cost a PUT of its own.
        let inline = self.encode_small(inline_max).await?;
        match self.slot.arrive(self.spec.worker, inline.is_some())? {
            Arrival::Empty => Ok(Share::Empty),
            Arrival::Inline => Ok(inline.map_or(Share::Empty, Share::Inline)),
            Arrival::Last => {
                let parts = self.slot.close().await?;
                let parts = spill::bound_runs(self.writer.writer(), self.spec.description, parts).await?;
                Ok(if parts.is_empty() { Share::Empty } else { Share::Stashed(parts) })
            }
        }
    }

    /// The worker's updates as they would travel in its share, if they are few enough. They stay in the slot.
    async fn encode_small(&self, inline_max: u64) -> Result<Option<InlineRun>, BatchError> {
        let Some(held) = self.slot.take_small(self.spec.worker, inline_max) else { return Ok(None) };
        let (sorted, memory) = self.consolidate(held).await?;
        let Some(memory) = memory.filter(|_| !sorted.updates().is_empty()) else { return Ok(None) };
        let context = format!("description {} of sink {}", self.spec.description, self.writer.spec().sink);
        let run = stash_part::encode_inline(&sorted, spill::GROUP).map_err(BatchError::part(context))?;
        self.slot.put_sorted(self.spec.worker, sorted, memory);
        // One limit for all workers: framing counts, or many workers would exceed it together (case 20).
        Ok((u64::try_from(run.payload.len()).unwrap_or(u64::MAX) <= inline_max).then_some(run))
    }

    fn measure(&self, share: &Share<OwnedParts>) {
        let (kind, bytes) = match share {
            Share::Empty => (ShareKind::Empty, 0),
            Share::Inline(run) => (ShareKind::Inline, u64::try_from(run.payload.len()).unwrap_or(u64::MAX)),
            Share::Stashed(parts) => (ShareKind::Stashed, parts.bytes()),
            Share::Failed { reason } => {
                let (sink, ShareSpec { worker, description, .. }) = (self.writer.meters().name(), self.spec);
                // No warning: whoever finishes the share is told, and says so once.
                tracing::info!(sink, incarnation = %self.writer.spec().incarnation, %description, %worker, reason, "share failed");
                (ShareKind::Failed, 0)
            }
            Share::Dropped => (ShareKind::Dropped, 0),
        };
        self.writer.meters().shared(kind, bytes);
    }

    fn report(&mut self, share: Share<OwnedParts>) -> ShareMessage<OwnedParts> {
        self.reported = true;
        self.measure(&share);
        fault::place("batch.share_handed");
        let (of, ShareSpec { worker, description, floor }) = (self.writer.spec(), self.spec);
        ShareMessage {
            sink: of.sink,
            incarnation: of.incarnation,
            description,
            floor,
            worker,
            share,
            poisoned: None,
        }
    }
}

impl Drop for ShareBuilder {
    fn drop(&mut self) {
        if !self.reported {
            self.give_up("a worker gave up its share before it was finished");
        }
    }
}

/// The same updates in order, cut into halves until each has at most so many bytes, or is a single row; if that is larger
/// than `row_max`, the row.
fn cut(updates: Updates, bytes_max: u64, row_max: u64) -> Result<Vec<Updates>, Updates> {
    let (mut todo, mut pieces) = (vec![updates], Vec::new());
    while let Some(updates) = todo.pop() {
        match (updates.num_rows(), bytes_of(&updates)) {
            (0, _) => {}
            (rows, bytes) if rows > 1 && bytes > bytes_max => {
                todo.extend([updates.slice(rows / 2, rows), updates.slice(0, rows / 2)]);
            }
            (_, bytes) if bytes > row_max => return Err(updates),
            _ => pieces.push(updates),
        }
    }
    Ok(pieces)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use arrow::{array::AsArray, datatypes::Int64Type};

    use super::*;
    use crate::{
        BatchConfig,
        process::tests::{description, incarnation, incarnation_of_two, process},
        spill::tests::{rows, rows_at},
    };

    fn keys(updates: &Updates) -> Vec<i64> {
        updates.batch().column(0).as_primitive::<Int64Type>().values().to_vec()
    }

    #[test]
    fn updates_are_halved_until_they_fit_and_none_is_lost() {
        let pieces = |updates, bytes_max| {
            cut(updates, bytes_max, u64::MAX).expect("any row").iter().map(keys).collect::<Vec<_>>()
        };
        let (one, five) = (bytes_of(&rows(0..1)), bytes_of(&rows(0..5)));
        assert_eq!(pieces(rows(0..5), five), [[0, 1, 2, 3, 4]], "it fits exactly");
        assert_eq!(pieces(rows(0..5), five - 1), [vec![0, 1], vec![2, 3, 4]]);
        assert_eq!(pieces(rows(0..5), 2 * one), [vec![0, 1], vec![2], vec![3, 4]]);
        assert_eq!(pieces(rows(0..3), 0), [[0], [1], [2]], "a row is not cut");
        assert_eq!(pieces(rows(0..0), 0), [[0; 0]; 0]);
    }

    #[test]
    fn a_row_is_too_large_only_above_the_largest() {
        let one = bytes_of(&rows(7..8));
        assert_eq!(cut(rows(7..9), one, one).map(|pieces| pieces.len()).ok(), Some(2));
        assert_eq!(cut(rows(7..9), one, one - 1).map_err(|row| keys(&row)).err(), Some(vec![7]));
    }

    #[tokio::test]
    async fn what_lies_outside_of_the_description_is_refused_and_nothing_of_it_taken() {
        let process = process(BatchConfig::default()).await;
        let writer = WriterHandle::open(process.clone(), incarnation()).expect("a sound spec");
        let description = description(3, 9);
        let mut share = writer.share(WorkerIndex(0), description, Frontier::at(3)).expect("it opens");
        for times in [&[2, 3][..], &[8, 9], &[2], &[9]] {
            let refused = share.push(rows_at(times).into_batch()).await;
            assert!(matches!(refused, Err(BatchError::InvalidUsage { .. })), "{times:?}: {refused:?}");
        }
        share.push(rows_at(&[]).into_batch()).await.expect("nothing lies outside");
        share.push(rows_at(&[3, 8]).into_batch()).await.expect("the first and the last time");
        match share.finish().await.share {
            Share::Inline(run) => assert_eq!(run.facts.update_count, 2),
            other => panic!("two small rows travel inline, not as {other:?}"),
        }
    }

    #[tokio::test]
    async fn what_fills_a_chunk_is_consolidated_at_once() {
        let config = BatchConfig { chunk_bytes: bytes_of(&rows(0..8)), ..BatchConfig::default() };
        let process = process(config).await;
        let writer = WriterHandle::open(process.clone(), incarnation()).expect("a sound spec");
        let description = description(3, 9);
        let mut share = writer.share(WorkerIndex(0), description, Frontier::at(3)).expect("it opens");
        let used = || process.budget().usage().write / HELD_FACTOR;
        share.push(rows([5; 7]).into_batch()).await.expect("taken");
        assert_eq!(used(), bytes_of(&rows(0..7)), "there is room for one more");
        share.push(rows([5]).into_batch()).await.expect("taken");
        assert_eq!(used(), bytes_of(&rows(0..1)), "equal rows are one");
        drop(share);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn a_share_that_is_dropped_unfinished_fails_the_batch_for_all_workers() {
        let process = process(BatchConfig::default()).await;
        let writer = WriterHandle::open(process.clone(), incarnation_of_two()).expect("a sound spec");
        let description = description(3, 9);
        let [gone, other] = [0, 1]
            .map(|worker| writer.share(WorkerIndex(worker), description, Frontier::at(3)).expect("it opens"));
        drop(gone);
        let share = other.finish().await.share;
        assert!(matches!(&share, Share::Failed { reason } if reason.contains("gave up")), "{share:?}");
        assert!(process.slots().is_empty(), "both arrived");
    }
}
