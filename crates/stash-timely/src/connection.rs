//! A process's part in one rendering of one sink.
//!
//! The processes of a replica open a [`Connection`] each, with the same launch token; the first creates the grant, the
//! others read it. The workers of a process share it: each calls [`crate::stash_sink`] with a clone. It ends with the
//! rendering: a stopped one is replaced by a new connection with a new grant (see [`crate::Replica`]).
//!
//! - The incarnation is taken out and closed by the first worker that learns of the stop; what its workers held and
//!   did not hand over is given up (I16).
//! - Whatever the process does for the rendering in the background is counted, so that [`Connection::idle`] tells when
//!   nothing is under way any more.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use stash::{
    Chain, Description, Frontier, Incarnation, IncarnationId, Launch, Minted, Opened, Resolved, Sink,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
};

use crate::{Hold, SinkError, Stop, message::frontier_of};

/// Where a process runs what must not keep a worker from turning: a tokio runtime, and permits for long scans.
///
/// One per process, shared by its sinks.
#[derive(Clone, Debug)]
pub struct Background {
    runtime: Handle,
    scans: Arc<Semaphore>,
}

impl Background {
    /// With a runtime that runs on other threads than the workers, and at most `scans_max` long scans at once: one per
    /// worker of the process is a good number. Zero is read as one.
    pub fn new(runtime: Handle, scans_max: usize) -> Background {
        Background { runtime, scans: Arc::new(Semaphore::new(scans_max.max(1))) }
    }

    /// The runtime.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn scans(&self) -> &Arc<Semaphore> {
        &self.scans
    }
}

/// How much a worker does at once for a sink.
///
/// The defaults keep an activation of the sink's operator near a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkConfig {
    /// Positions (a key with a value, at all its times) that a scan may visit on the worker. What is longer moves to
    /// the background. Default: 4,096.
    pub scan_positions_max: usize,
    /// Updates that one activation may merge of what is held. Default: 65,536.
    pub merge_updates_max: usize,
    /// Rows of one Arrow batch on the way from a scan to the writer. Default: 65,536.
    pub chunk_rows: usize,
    /// Bytes of one Arrow batch on the way from a scan to the writer. Default: 4 MiB.
    pub chunk_bytes: usize,
}

impl Default for SinkConfig {
    fn default() -> SinkConfig {
        SinkConfig {
            scan_positions_max: 4096,
            merge_updates_max: 65_536,
            chunk_rows: 65_536,
            chunk_bytes: 4 << 20,
        }
    }
}

/// What opening a connection found.
#[derive(Clone, Debug)]
pub enum Connected {
    /// Render the dataflow at [`Connection::as_of`].
    Render(Connection),
    /// The chain is complete: there is nothing to render.
    Complete,
    /// The dataflow is in error for good, until the sink is dropped.
    Poisoned(stash::DataflowError),
    /// The sink was dropped. Only [`crate::Replica`] says so: opening one gives an error.
    Dropped,
}

/// Told what became of each offered batch.
#[derive(Clone)]
struct OnResolved(Arc<dyn Fn(&Resolved) + Send + Sync>);

impl fmt::Debug for OnResolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnResolved")
    }
}

/// A process's part in one rendering of one sink. Clones share it.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sink: Sink,
    id: IncarnationId,
    as_of: u64,
    floor: Frontier,
    minting_worker: u32,
    workers: u32,
    local_workers: Range<u32>,
    background: Background,
    config: SinkConfig,
    /// Taken out to be closed.
    incarnation: Mutex<Option<Incarnation>>,
    /// Set once a stop is on its way: long scans end.
    cancelled: AtomicBool,
    /// Why no rendering will do, as a share of this process found.
    lasting: OnceLock<String>,
    /// What a worker whose dataflow was dropped would have said, had it been told of a stop before.
    abandoned: watch::Sender<Option<Stop>>,
    /// Whether the stop cannot be told through the dataflow: the minting worker's was dropped.
    unheard: AtomicBool,
    stop: OnceLock<(Stop, bool)>,
    stopped: watch::Sender<bool>,
    upper: AtomicU64,
    hold: Hold,
    resolved: OnceLock<OnResolved>,
    scanning: AtomicUsize,
    under_way: UnderWay,
}

impl Connection {
    /// Opens an incarnation of `sink`, or joins the one that another process of the launch opened.
    pub async fn open(
        sink: &Sink,
        launch: Launch,
        background: &Background,
        config: SinkConfig,
    ) -> Result<Connected, SinkError> {
        let workers = launch.workers();
        let incarnation = match sink.open_incarnation(launch).await? {
            Opened::Render(incarnation) => *incarnation,
            Opened::Complete => return Ok(Connected::Complete),
            Opened::Poisoned(error) => return Ok(Connected::Poisoned(error)),
        };
        let shared = Shared {
            sink: sink.clone(),
            id: incarnation.id(),
            as_of: incarnation.as_of(),
            floor: incarnation.floor(),
            minting_worker: incarnation.minting_worker().0,
            workers,
            local_workers: incarnation.local_workers(),
            background: background.clone(),
            config,
            upper: AtomicU64::new(incarnation.floor().as_u64()),
            incarnation: Mutex::new(Some(incarnation)),
            cancelled: AtomicBool::new(false),
            lasting: OnceLock::new(),
            abandoned: watch::Sender::new(None),
            unheard: AtomicBool::new(false),
            stop: OnceLock::new(),
            stopped: watch::Sender::new(false),
            hold: Hold::new(),
            resolved: OnceLock::new(),
            scanning: AtomicUsize::new(0),
            under_way: UnderWay::default(),
        };
        Ok(Connected::Render(Connection { shared: Arc::new(shared) }))
    }

    /// The sink.
    pub fn sink(&self) -> &Sink {
        &self.shared.sink
    }

    /// The incarnation, in every key that this rendering writes.
    pub fn incarnation(&self) -> IncarnationId {
        self.shared.id
    }

    /// Where to render: the dataflow's inputs begin with their accumulation at this time (I9).
    pub fn as_of(&self) -> u64 {
        self.shared.as_of
    }

    /// The chain's upper when this was opened: updates below need not be computed, unless later ones need them.
    pub fn floor(&self) -> Frontier {
        self.shared.floor
    }

    /// The worker that mints, merges and offers.
    pub fn minting_worker(&self) -> usize {
        index(self.shared.minting_worker)
    }

    /// `U`, the chain's upper, as far as it is known here.
    pub fn upper(&self) -> Frontier {
        frontier_of(self.shared.upper.load(Ordering::Acquire))
    }

    /// The frontier up to which the inputs have to keep their history (I10): a new rendering can still be granted
    /// there. It only rises.
    pub fn hold(&self) -> &Hold {
        &self.shared.hold
    }

    /// Has `tell` told what becomes of each offered batch, in order; in the process of the minting worker, and by its
    /// background, so it must not block. To be said before the sink is rendered, once; `false` if another was said.
    pub fn on_resolved(&self, tell: impl Fn(&Resolved) + Send + Sync + 'static) -> bool {
        self.shared.resolved.set(OnResolved(Arc::new(tell))).is_ok()
    }

    pub(crate) fn resolved(&self, resolved: &Resolved) {
        if let Some(OnResolved(tell)) = self.shared.resolved.get() {
            tell(resolved);
        }
    }

    /// Why the rendering stopped, once it has, as this process knows it.
    pub fn stop(&self) -> Option<&Stop> {
        self.shared.stop.get().map(|(stop, _)| stop)
    }

    /// Whether the chain took anything of this rendering, as all workers were told.
    pub(crate) fn moved(&self) -> bool {
        self.shared.stop.get().is_some_and(|(_, moved)| *moved)
    }

    /// Waits for the rendering to stop.
    pub async fn stopped(&self) -> Stop {
        let mut stopped = self.shared.stopped.subscribe();
        loop {
            if let Some(stop) = self.stop() {
                return stop.clone();
            }
            // The sender lives as long as `self`.
            if stopped.changed().await.is_err() {
                return Stop::Reopen("the connection is gone".to_owned());
            }
        }
    }

    /// Waits until this process does nothing for the rendering any more: what was to be closed is closed.
    pub async fn idle(&self) {
        self.shared.under_way.idle().await;
    }

    /// Workers of the whole replica.
    pub(crate) fn workers(&self) -> u32 {
        self.shared.workers
    }

    pub(crate) fn config(&self) -> SinkConfig {
        self.shared.config
    }

    pub(crate) fn background(&self) -> &Background {
        &self.shared.background
    }

    /// Refuses a scope whose workers are not those of the launch.
    pub(crate) fn check_scope(&self, worker: usize, peers: usize) -> Result<u32, SinkError> {
        let Shared { workers, local_workers, .. } = &*self.shared;
        let here = u32::try_from(worker).ok().filter(|worker| local_workers.contains(worker));
        match here {
            Some(worker) if peers == index(*workers) => Ok(worker),
            _ => Err(SinkError::OtherWorkers {
                sink: self.sink().name().to_string(),
                worker,
                peers,
                launched: *workers,
                local: local_workers.clone(),
            }),
        }
    }

    /// The incarnation, until it is being closed.
    fn incarnation_or_stopped<A>(
        &self,
        ask: impl FnOnce(&Incarnation) -> stash::Result<A>,
    ) -> Result<A, SinkError> {
        let incarnation = self.shared.incarnation.lock().unwrap_or_else(PoisonError::into_inner);
        match &*incarnation {
            Some(incarnation) => Ok(ask(incarnation)?),
            None => {
                Err(SinkError::Stopped { sink: self.sink().name().to_string(), incarnation: self.shared.id })
            }
        }
    }

    pub(crate) fn chain(&self) -> Result<Chain, SinkError> {
        self.incarnation_or_stopped(Incarnation::chain)
    }

    pub(crate) fn writer(&self, worker: u32) -> Result<stash::ShareWriter, SinkError> {
        self.incarnation_or_stopped(|incarnation| incarnation.worker(worker))
    }

    pub(crate) fn arm(&self, frame: &Bytes) -> Result<stash::ShareMessage<stash::OwnedParts>, SinkError> {
        self.incarnation_or_stopped(|incarnation| incarnation.arm(frame))
    }

    /// What an input frontier says, after one that was `before`: `None` where the inputs ended and the chain is not
    /// complete by that.
    ///
    /// SUBTLE: a dataflow that stops closes its inputs, and its frontier becomes empty as if everything had been said. Only
    /// a sealing sink takes its word for it. One with an `up_to` is complete when a frontier was seen to have reached
    /// that: what is empty before may be a worker's closure that returned too early.
    pub(crate) fn says(&self, before: Frontier, now: Frontier) -> Option<Frontier> {
        let spec = &self.sink().row().spec;
        (!now.is_empty() || spec.seals || before >= spec.up_to).then_some(now)
    }

    /// Whether a worker whose input frontier is `frontier` has all of `minted`.
    pub(crate) fn is_ready(&self, frontier: Frontier, minted: Minted) -> bool {
        self.sink().is_ready(frontier, minted)
    }

    /// The times that a worker must write for `minted`; `None` where it is covered from birth.
    pub(crate) fn writes(&self, minted: Minted) -> Option<Description> {
        self.sink().writes(minted)
    }

    pub(crate) fn advance(&self, upper: Frontier, hold: Frontier) {
        self.shared.upper.fetch_max(upper.as_u64(), Ordering::AcqRel);
        self.shared.hold.raise(hold);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Notes why no rendering will do; the first that was noted stays.
    pub(crate) fn fails_for(&self, reason: &str) {
        let _ = self.shared.lasting.set(reason.to_owned());
    }

    /// What was noted.
    pub(crate) fn lasting(&self) -> Option<&String> {
        self.shared.lasting.get()
    }

    /// Notes that a worker of this process has dropped its dataflow before it was told of a stop: it will never report.
    ///
    /// SUBTLE: nothing can be sent any more from where nothing is scheduled, and who minds the chain would wait for that
    /// worker's shares for ever. If it is of this process it hears of it here; if not, it finds the incarnation closed.
    pub(crate) fn abandon(&self, stop: Stop) {
        if self.stop().is_some() || self.shared.abandoned.borrow().is_some() {
            return;
        }
        self.shared.abandoned.send_replace(Some(stop));
        if !self.shared.local_workers.contains(&self.shared.minting_worker) {
            self.close("a worker dropped its dataflow before the sink had stopped".to_owned());
        }
    }

    /// Waits until a worker of this process has dropped its dataflow, and says what it would have said.
    pub(crate) async fn abandoned(&self) -> Stop {
        let mut abandoned = self.shared.abandoned.subscribe();
        let said = abandoned.wait_for(Option::is_some).await.ok().and_then(|said| said.clone());
        match said {
            Some(stop) => stop,
            // The sender is this connection's.
            None => std::future::pending().await,
        }
    }

    /// Notes that the dataflow does not take the stop to the workers any more.
    pub(crate) fn goes_unheard(&self) {
        self.shared.unheard.store(true, Ordering::Release);
    }

    /// Whether workers have to learn of the stop here, for nothing tells them.
    pub(crate) fn is_unheard(&self) -> bool {
        self.shared.unheard.load(Ordering::Acquire) && self.stop().is_some()
    }

    /// Ends what runs in the background for this rendering, before its workers are told.
    pub(crate) fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Release);
    }

    /// Notes why the rendering stopped; the first time also closes the incarnation in the background.
    pub(crate) fn stop_with(&self, stop: &Stop, moved: bool) {
        if self.shared.stop.set((stop.clone(), moved)).is_err() {
            return;
        }
        self.cancel();
        self.shared.stopped.send_replace(true);
        self.close(match stop {
            Stop::Complete => "the chain is complete".to_owned(),
            Stop::Ended => "the input ended".to_owned(),
            Stop::Poisoned { at, message } => format!("the dataflow is in error at {at}: {message}"),
            Stop::GoingAway => "the sink is going away".to_owned(),
            Stop::Reopen(reason) | Stop::Failed(reason) => reason.clone(),
        });
    }

    /// Closes the incarnation in the background, once.
    fn close(&self, reason: String) {
        let taken = self.shared.incarnation.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(incarnation) = taken else { return };
        let (sink, id) = (self.sink().clone(), self.shared.id);
        self.spawn(async move {
            if let Err(error) = incarnation.close(&reason).await {
                tracing::info!(sink = %sink.name(), incarnation = %id, %error, "not closed: its lease runs out, or the next opening closes it");
            }
        });
    }

    /// Runs something in the background, counted.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let counted = self.shared.under_way.one();
        self.shared.background.runtime.spawn(async move {
            work.await;
            drop(counted);
        });
    }

    /// Updates that scans in the background still keep, although the worker released them.
    pub(crate) fn scanning(&self) -> usize {
        self.shared.scanning.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_scan(&self, updates: usize) -> Scanning {
        self.shared.scanning.fetch_add(updates, Ordering::Relaxed);
        Scanning { connection: self.clone(), updates }
    }
}

fn index(worker: u32) -> usize {
    usize::try_from(worker).unwrap_or(usize::MAX)
}

/// A scan that keeps so many updates from being freed.
#[derive(Debug)]
pub(crate) struct Scanning {
    connection: Connection,
    updates: usize,
}

impl Drop for Scanning {
    fn drop(&mut self) {
        self.connection.shared.scanning.fetch_sub(self.updates, Ordering::Relaxed);
    }
}

/// Counts what is under way.
#[derive(Clone, Debug, Default)]
struct UnderWay(Arc<(AtomicUsize, Notify)>);

impl UnderWay {
    fn one(&self) -> Counted {
        self.0.0.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }

    async fn idle(&self) {
        loop {
            // SUBTLE: asked for before the count is read, else the last one's notice could come in between.
            let notified = self.0.1.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.0.0.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

#[derive(Debug)]
struct Counted(UnderWay);

impl Drop for Counted {
    fn drop(&mut self) {
        let UnderWay(shared) = &self.0;
        if shared.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.1.notify_waiters();
        }
    }
}
