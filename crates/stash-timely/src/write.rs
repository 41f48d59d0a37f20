//! A worker's writer: for each description one scan of what the worker holds, and one share.
//!
//! It holds arrangement batches, not rows ([`Held`]), and dataflow errors by time. Once the worker's own frontier has
//! reached a description's upper, all of its updates are here: what overlaps it is scanned, at times consolidated after
//! the projection (I3), and given to the share's builder as Arrow columns.
//!
//! - A small scan runs on the worker, within a budget of positions. What exceeds it goes on in the background, under a
//!   permit that it gives back while the builder takes a chunk: who waits for memory holds no permit.
//! - A share that is finished without waiting is reported in the same activation; else its future goes on in the
//!   background, and wakes the operator.
//! - What cannot be scanned or built becomes a failed share, never an empty one (I12); or, where the same rows would fail
//!   again, a failure that lasts.
//! - Errors of the dataflow go beside the share: whether there is one, only those of all workers tell together.
//! - The next chunk is scanned while the builder takes one: so a share takes as long as the slower of the two.
//! - Batches are let go when their scan has begun, since the scan keeps those it needs; a failed share ends the
//!   rendering, so nobody asks for them again. Their rows are freed by the worker that made them, some at each
//!   activation ([`Remains`]), also once the rendering has stopped. What nobody knows to cut is dropped in one piece on
//!   another thread: batches of arrangements that others made, and merges that were given up.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, atomic::Ordering, mpsc},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use differential_dataflow::trace::{Cursor, Navigable, Span, implementations::spine_fueled::SpineBatch};
use stash::{Description, Frontier, Minted, OwnedParts, ShareBuilder, ShareMessage, ShareWriter};
use timely::scheduling::SyncActivator;
use tokio::sync::Semaphore;

use crate::{
    Connection,
    batch::Multiplicity,
    connection::Scanning,
    errors::Errors,
    held::Held,
    message::{Failure, Report},
    remains::Remains,
    scan::{Chunk, ChunkLimits, Projection, Scan, Step, Window},
    token::WorkerState,
};

/// Makes the projection and the empty builder of one scan.
pub(crate) trait Scans<C: Cursor>: 'static {
    type Projection: Projection<C>;
    /// Both, for one scan.
    fn scan(&self) -> ScanParts<C, Self::Projection>;
    /// What is to be freed of a batch that is asked for no more: nothing where others still have it. The batch itself
    /// where nobody knows how to free some of its rows.
    fn remains(&self, batch: C::Storage) -> Result<Option<Box<dyn Remains>>, C::Storage> {
        Err(batch)
    }
}

/// Rows to be freed, and what counts them until they are.
struct Freeing {
    remains: Box<dyn Remains>,
    updates: usize,
    scanning: Option<Arc<Scanning>>,
}

/// What a share in the background gives back to its worker.
enum Back<B> {
    Report(Report),
    /// Batches that were scanned, with what counts them until they are freed.
    Scanned(Vec<B>, Scanning),
}

/// How the background reaches its worker.
struct ToWorker<B> {
    sender: mpsc::Sender<Back<B>>,
    activator: SyncActivator,
}

impl<B> ToWorker<B> {
    /// What nobody listens for any more is dropped here: the dataflow was dropped, and the ledger knows what was written.
    fn send(&self, back: Back<B>) {
        if self.sender.send(back).is_ok() {
            let _ = self.activator.activate();
        }
    }
}

/// Sends a share's report when it ends, or, where its task dies, that it failed: silence would stall the merge.
struct Reporting<B> {
    worker: ToWorker<B>,
    report: Option<Report>,
}

impl<B> Reporting<B> {
    fn ends_with(mut self, report: Report) {
        self.report = Some(report);
    }
}

impl<B> Drop for Reporting<B> {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            self.worker.send(Back::Report(report));
        }
    }
}

/// A projection and what it appends to, or why there are none.
pub(crate) type ScanParts<C, P> = Result<(P, <P as Projection<C>>::Rows), String>;
type Finishing = Pin<Box<dyn Future<Output = Report> + Send>>;

pub(crate) struct Writer<B, S>
where
    B: SpineBatch<Time = u64, Merger: Send> + Navigable + Clone,
{
    connection: Connection,
    shares: ShareWriter,
    scans: S,
    held: Held<B>,
    errors: Errors,
    /// Minted, and not begun.
    waiting: VecDeque<Minted>,
    back: (mpsc::Sender<Back<B>>, mpsc::Receiver<Back<B>>),
    /// Let go, and not freed yet.
    freeing: VecDeque<Freeing>,
    /// The turn of long scans.
    long_scans: Arc<Semaphore>,
    /// Why nothing can be written, found while updates were taken in.
    refused: Option<String>,
    activator: SyncActivator,
    state: Arc<WorkerState>,
}

impl<B, S> Writer<B, S>
where
    B: SpineBatch<Time = u64, Merger: Send> + Navigable + Clone + Send + 'static,
    B::Cursor: Cursor<Time = u64> + Send + 'static,
    <B::Cursor as Cursor>::Diff: Multiplicity,
    S: Scans<B::Cursor>,
{
    pub(crate) fn new(
        connection: &Connection,
        shares: ShareWriter,
        scans: S,
        activator: SyncActivator,
        state: &Arc<WorkerState>,
    ) -> Self {
        Writer {
            connection: connection.clone(),
            shares,
            scans,
            held: Held::new(),
            errors: Errors::default(),
            waiting: VecDeque::new(),
            back: mpsc::channel(),
            freeing: VecDeque::new(),
            long_scans: Arc::new(Semaphore::new(1)),
            refused: None,
            activator,
            state: Arc::clone(state),
        }
    }

    pub(crate) fn hold(&mut self, span: Span<u64, B>) {
        let since = span.desc.since().elements().first().copied().unwrap_or(u64::MAX);
        if span.has_updates() && since > self.connection.as_of() {
            // Times that an arrangement moved up to its compaction would be taken for real (I3).
            self.refused = Some(format!(
                "the arrangement is compacted to {since}, beyond the as-of {}: keep it from the sink's hold on",
                self.connection.as_of()
            ));
        }
        self.held.insert(span);
    }

    /// Takes an error in, whose time is the as-of or later.
    pub(crate) fn hold_error(&mut self, message: String, time: u64, diff: i64) {
        // What the chain had when this rendering was granted is never written again, nor are errors told that are in it.
        if Frontier::at(time) >= self.connection.floor() {
            self.errors.add(time, message, i128::from(diff));
        }
    }

    pub(crate) fn minted(&mut self, minted: Minted) {
        self.waiting.push_back(minted);
    }

    /// Begins what the worker's frontier allows, and gives what is finished to `report`.
    pub(crate) fn work(&mut self, frontier: Frontier, mut report: impl FnMut(Report)) {
        if let Some(reason) = self.refused.take() {
            report(Report::Failed(Failure::Passing(reason)));
        }
        while let Ok(back) = self.back.1.try_recv() {
            match back {
                Back::Report(finished) => report(finished),
                Back::Scanned(batches, scanning) => self.let_go(batches, Some(scanning)),
            }
        }
        while let Some(minted) =
            self.waiting.pop_front_if(|minted| self.connection.is_ready(frontier, *minted))
        {
            let finishing = self.begin(minted);
            if let Some(finished) = self.poll_once(finishing) {
                report(finished);
            }
        }
        self.measure();
    }

    /// Merges some of what is held, and frees some of what is not; whether there is more to do.
    pub(crate) fn merge(&mut self) -> bool {
        let mut fuel = isize::try_from(self.connection.config().merge_updates_max).unwrap_or(isize::MAX);
        let more = self.held.work(&mut fuel);
        let spent = self.held.spent();
        self.let_go(spent, None);
        self.measure();
        self.free() || more
    }

    /// Frees some of what was let go; whether there is more.
    fn free(&mut self) -> bool {
        let begun = Instant::now();
        let mut rows = self.connection.config().scan_positions_max.max(1);
        while let Some(Freeing { remains, .. }) = self.freeing.front_mut() {
            let freed = rows.min(FREED_AT_ONCE);
            if !remains.free(freed)
                && let Some(Freeing { remains, scanning, .. }) = self.freeing.pop_front()
            {
                self.connection.background().runtime().spawn_blocking(move || {
                    remains.end();
                    drop(scanning);
                });
            }
            // SUBTLE: glibc's allocator keeps small pieces as they were freed, until somebody asks for a larger one; then
            // all of them are collected at once. Asked for here, each time it is those of a few rows. How long that takes
            // is up to what lies beside them: microseconds first, milliseconds where most is free.
            drop(std::hint::black_box(Vec::<u8>::with_capacity(COLLECTING)));
            rows -= freed;
            if rows == 0 || begun.elapsed() >= FREEING {
                break;
            }
        }
        self.measure_freeing();
        !self.freeing.is_empty()
    }

    /// Lets go of everything: nothing is written any more. It is freed as always, while the dataflow lives.
    pub(crate) fn stop(&mut self) {
        self.waiting.clear();
        self.errors.clear();
        let released = self.held.release(u64::MAX);
        self.let_go(released, None);
        self.measure();
    }

    /// Frees some of what was let go, once nothing is written any more; whether there is more.
    pub(crate) fn free_stopped(&mut self) -> bool {
        while let Ok(back) = self.back.1.try_recv() {
            if let Back::Scanned(batches, scanning) = back {
                self.let_go(batches, Some(scanning));
            }
        }
        self.free()
    }

    /// Lets go of what nobody wants any more.
    pub(crate) fn discard(&mut self, span: Span<u64, B>) {
        self.let_go(span.inner.into_iter().collect(), None);
    }

    fn measure_freeing(&self) {
        let freeing = self.freeing.iter().map(|freeing| freeing.updates).sum();
        self.state.freeing.store(freeing, Ordering::Relaxed);
    }

    fn measure(&self) {
        self.state.batches.store(self.held.batches(), Ordering::Relaxed);
        self.state.updates.store(self.held.updates(), Ordering::Relaxed);
        self.state.errors.store(self.errors.len(), Ordering::Relaxed);
        self.state.error_bytes.store(self.errors.bytes(), Ordering::Relaxed);
    }

    /// Lets go of batches. Those with many rows are freed later on, as many at a time as a scan may visit.
    fn let_go(&mut self, batches: Vec<B>, scanning: Option<Scanning>) {
        let scanning = scanning.map(Arc::new);
        for batch in batches {
            let updates = batch.len();
            if updates <= self.connection.config().scan_positions_max {
                continue;
            }
            match self.scans.remains(batch) {
                Ok(Some(remains)) => {
                    self.freeing.push_back(Freeing { remains, updates, scanning: scanning.clone() });
                }
                Ok(None) => {}
                Err(batch) => {
                    self.connection.background().runtime().spawn_blocking(move || drop(batch));
                }
            }
        }
        self.measure_freeing();
    }

    /// Scans as much as a worker may, and says how the share is finished.
    fn begin(&mut self, minted: Minted) -> Finishing {
        let description = minted.description;
        let builder = match self.shares.share(minted) {
            Ok(builder) => builder,
            Err(error) => return Box::pin(std::future::ready(Report::Failed(Failure::of(&error)))),
        };
        let mut share = Building { connection: self.connection.clone(), builder };
        let Some(wanted) = self.connection.writes(minted) else {
            // Covered from birth: who looks at nothing has nothing to report.
            self.errors.take(None, description.upper());
            self.forget(description.upper());
            return Box::pin(share.finish(Errors::default()));
        };
        let mut errors = self.errors.take(Some(wanted), description.upper());
        let scan = self.scan(wanted);
        self.forget(description.upper());
        let (mut scan, scanning) = match scan {
            Ok(scan) => scan,
            Err(reason) => return Box::pin(std::future::ready(share.fail(Failure::Lasting(reason)))),
        };
        let mut positions = self.connection.config().scan_positions_max;
        let limits = limits_of(&self.connection);
        match scan.step(&mut positions, limits) {
            Err(error) => Box::pin(std::future::ready(share.fail(Failure::Lasting(error.to_string())))),
            Ok(Step::Done(chunk)) => {
                errors.merge(scan.take_errors());
                Box::pin(async move {
                    match share.push(chunk).await {
                        Ok(()) => share.finish(errors).await,
                        Err(failure) => share.fail(failure),
                    }
                })
            }
            Ok(step @ (Step::Chunk(_) | Step::Paused)) => {
                let chunk = if let Step::Chunk(chunk) = step { Some(chunk) } else { None };
                let (turn, worker) = (Arc::clone(&self.long_scans), self.to_worker());
                Box::pin(async move {
                    // One long scan of a worker at a time, in their order: each has chunks that no budget counts.
                    let _turn = turn.acquire_owned().await;
                    share.scan_on(scan, chunk, errors, scanning, worker).await
                })
            }
        }
    }

    fn scan(&self, wanted: Description) -> Result<(Scan<B, S::Projection>, Scanning), String> {
        let as_of = self.connection.as_of();
        let window = Window { lower: wanted.lower().as_u64(), upper: wanted.upper().as_u64(), as_of };
        // What lies before the as-of is part of the accumulation at it.
        let from = if window.lower <= as_of { 0 } else { window.lower };
        let batches = self.held.overlapping(from, window.upper);
        let scanning = self.connection.begin_scan(batches.iter().map(B::len).sum());
        let (projection, rows) = self.scans.scan()?;
        Ok((Scan::new(batches, window, projection, rows), scanning))
    }

    /// Nothing below `upper` is asked for again.
    fn forget(&mut self, upper: Frontier) {
        // A merge of what is let go with what stays is abandoned: it would keep both.
        let abandoned = self.held.reserve(upper.as_u64());
        if !abandoned.is_empty() {
            self.connection.background().runtime().spawn_blocking(move || drop(abandoned));
        }
        let released = self.held.release(upper.as_u64());
        self.let_go(released, None);
    }

    /// What finishes at once is reported at once; the rest goes on in the background.
    fn poll_once(&mut self, mut finishing: Finishing) -> Option<Report> {
        let runtime = self.connection.background().runtime().clone();
        let entered = runtime.enter();
        if let Poll::Ready(report) = finishing.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(report);
        }
        drop(entered);
        let worker = self.to_worker();
        let died = Report::Failed(Failure::Passing("a share's task has died".to_owned()));
        let reporting = Reporting { worker, report: Some(died) };
        self.connection.spawn(async move {
            let report = finishing.await;
            reporting.ends_with(report);
        });
        None
    }

    fn to_worker(&self) -> ToWorker<B> {
        ToWorker { sender: self.back.0.clone(), activator: self.activator.clone() }
    }
}

impl<B, S> Drop for Writer<B, S>
where
    B: SpineBatch<Time = u64, Merger: Send> + Navigable + Clone,
{
    /// Nobody activates the worker's operator any more: what is left is freed elsewhere, with the worker held up once.
    fn drop(&mut self) {
        let freeing = std::mem::take(&mut self.freeing);
        self.state.freeing.store(0, Ordering::Relaxed);
        if !freeing.is_empty() {
            self.connection.background().runtime().spawn_blocking(move || drop(freeing));
        }
    }
}

fn limits_of(connection: &Connection) -> ChunkLimits {
    ChunkLimits { rows: connection.config().chunk_rows, bytes: connection.config().chunk_bytes }
}

fn disarmed(share: ShareMessage<OwnedParts>, errors: Errors) -> Report {
    match stash::disarm(share) {
        Ok(frame) => Report::Share { frame, errors },
        Err(error) => Report::Failed(Failure::of(&error)),
    }
}

/// A share on its way.
struct Building {
    connection: Connection,
    builder: ShareBuilder,
}

impl Building {
    async fn push(&mut self, chunk: Option<Chunk>) -> Result<(), Failure> {
        let Some(Chunk { columns, times, diffs }) = chunk else { return Ok(()) };
        let updates = self.connection.sink().updates(columns, times, diffs);
        let updates = updates.map_err(|error| Failure::of(&error))?;
        self.builder.push(updates).await.map_err(|error| Failure::of(&error.into()))
    }

    /// Ends the share as failed.
    ///
    /// SUBTLE: a failure takes the shared batch of the process with it, and so the shares of its other workers. What
    /// the batch ran into tells them whether it lasts; what a scan ran into does not. So what lasts is noted before the batch
    /// is given up, and told by whoever is first.
    fn fail(self, failure: Failure) -> Report {
        match failure {
            Failure::Passing(reason) => {
                let share = self.builder.fail(reason);
                match self.connection.lasting() {
                    Some(reason) => Report::Failed(Failure::Lasting(reason.clone())),
                    None => disarmed(share, Errors::default()),
                }
            }
            Failure::Lasting(reason) => {
                let reason = format!("its updates of {}: {reason}", self.builder.spec().description);
                self.connection.fails_for(&reason);
                drop(self.builder.fail(&reason));
                Report::Failed(Failure::Lasting(reason))
            }
        }
    }

    /// Goes on with a scan that is too long for a worker. What the builder waits for, it waits for without a permit, and
    /// with one chunk more at most.
    async fn scan_on<B, P>(
        mut self,
        mut scan: Scan<B, P>,
        mut chunk: Option<Chunk>,
        mut errors: Errors,
        scanning: Scanning,
        worker: ToWorker<B>,
    ) -> Report
    where
        B: Navigable + Send + 'static,
        B::Cursor: Cursor<Time = u64> + Send + 'static,
        <B::Cursor as Cursor>::Diff: Multiplicity,
        P: Projection<B::Cursor>,
    {
        let connection = self.connection.clone();
        loop {
            // The scan first: what the builder has to do, it may do in place.
            let (stepped, pushed) = tokio::join!(stepped(&connection, scan), self.push(chunk));
            let step;
            (scan, step) = match stepped {
                Ok(stepped) => stepped,
                Err(failure) => return self.fail(pushed.err().unwrap_or(failure)),
            };
            chunk = match pushed.and(step) {
                Ok(Step::Chunk(chunk)) => Some(chunk),
                Ok(Step::Paused) => None,
                Err(failure) => {
                    worker.send(Back::Scanned(scan.into_batches(), scanning));
                    return self.fail(failure);
                }
                Ok(Step::Done(last)) => {
                    errors.merge(scan.take_errors());
                    worker.send(Back::Scanned(scan.into_batches(), scanning));
                    return match self.push(last).await {
                        Ok(()) => self.finish(errors).await,
                        Err(failure) => self.fail(failure),
                    };
                }
            };
        }
    }

    /// Ends the share. What the errors come to is for who has those of all workers.
    async fn finish(self, errors: Errors) -> Report {
        match self.builder.try_finish().await {
            Ok(share) => disarmed(share, errors),
            Err(failed) => {
                let (builder, error) = *failed;
                Building { connection: self.connection, builder }.fail(Failure::of(&error.into()))
            }
        }
    }
}

/// Bytes that are asked for in order to have the allocator collect what was freed: more than it keeps apart, and less than
/// it would ask the system for.
const COLLECTING: usize = 64 << 10;

/// How many rows are freed before what they took is collected.
const FREED_AT_ONCE: usize = 64;

/// After so long the rest is freed in a later activation.
const FREEING: Duration = Duration::from_millis(1);

/// How many positions are visited between two looks at whether the rendering stopped.
const POSITIONS_A_LOOK: usize = 16_384;

/// A scan, and how its next step went.
type Stepped<B, P> = (Scan<B, P>, Result<Step, Failure>);

/// The next chunk of a scan, in the background and under a permit. The scan comes back unless its thread died: its worker
/// frees what was scanned.
async fn stepped<B, P>(connection: &Connection, mut scan: Scan<B, P>) -> Result<Stepped<B, P>, Failure>
where
    B: Navigable + Send + 'static,
    B::Cursor: Cursor<Time = u64> + Send + 'static,
    <B::Cursor as Cursor>::Diff: Multiplicity,
    P: Projection<B::Cursor>,
{
    let permit = Arc::clone(connection.background().scans()).acquire_owned().await;
    let permit = permit.map_err(|_| Failure::Passing("no scan is permitted any more".to_owned()))?;
    let (stopped, limits) = (connection.clone(), limits_of(connection));
    let scanned = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        loop {
            if stopped.is_cancelled() {
                return (scan, Err(Failure::Passing("the rendering stopped".to_owned())));
            }
            let mut positions = POSITIONS_A_LOOK;
            match scan.step(&mut positions, limits) {
                Ok(Step::Paused) => {}
                Ok(step) => return (scan, Ok(step)),
                Err(error) => return (scan, Err(Failure::Lasting(error.to_string()))),
            }
        }
    });
    scanned.await.map_err(|error| Failure::Passing(format!("a scan ended unexpectedly: {error}")))
}
