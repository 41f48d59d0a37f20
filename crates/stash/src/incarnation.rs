//! Incarnations: one rendering of one sink on a replica, and what its workers write.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arrow::array::RecordBatch;
use stash_batch::{IncarnationSpec, OwnedParts, ShareBuilder, WriterHandle};
use stash_catalog::{Cas, CatalogError, IncarnationRow, IncarnationState, OpenIncarnation};
use stash_chain::{Grant, Minted};
use stash_types::{
    DataflowError, DisarmedShare, Frontier, IncarnationId, LaunchToken, ReplicaName, ShareMessage,
    WorkerIndex, fault, wire::Wire,
};
use tokio::task::JoinSet;

use crate::{Chain, Error, Result, Sink, chain::head_of, rules};

/// How often an opening is decided anew when others write the head at the same moment.
const RACES_MAX: u32 = 1000;

/// One start of a replica: its processes and workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    replica: ReplicaName,
    token: Option<LaunchToken>,
    process: u32,
    workers: NonZeroU32,
    first_worker: u32,
    local_workers: NonZeroU32,
}

impl Launch {
    /// A replica of one process with `workers` workers.
    pub fn single(replica: &str, workers: u32) -> Result<Launch> {
        let workers = some_workers(workers)?;
        let replica = replica.parse()?;
        Ok(Launch { replica, token: None, process: 0, workers, first_worker: 0, local_workers: workers })
    }

    /// One process of a replica of several. All share the token, which one of them drew
    /// ([`crate::Stash::draw_launch`]) for this start; process `process` runs `local_workers` workers from
    /// `first_worker` on, of `workers` in all.
    pub fn process(
        replica: &str,
        token: LaunchToken,
        process: u32,
        workers: u32,
        first_worker: u32,
        local_workers: u32,
    ) -> Result<Launch> {
        let (workers, local_workers) = (some_workers(workers)?, some_workers(local_workers)?);
        if u64::from(first_worker) + u64::from(local_workers.get()) > u64::from(workers.get()) {
            return Err(Error::InvalidUsage {
                what: format!(
                    "workers {first_worker} and {local_workers} on: the replica has only {workers}"
                ),
            });
        }
        let replica = replica.parse()?;
        Ok(Launch { replica, token: Some(token), process, workers, first_worker, local_workers })
    }

    /// Workers of the whole replica.
    pub fn workers(&self) -> u32 {
        self.workers.get()
    }
}

fn some_workers(workers: u32) -> Result<NonZeroU32> {
    NonZeroU32::new(workers).ok_or_else(|| Error::InvalidUsage {
        what: "a replica and a process have at least one worker".to_owned(),
    })
}

/// What opening an incarnation found.
#[derive(Debug)]
pub enum Opened {
    /// Render the dataflow and write.
    Render(Box<Incarnation>),
    /// The chain is complete: there is nothing to write.
    Complete,
    /// The dataflow is in error for good, until the sink is dropped.
    Poisoned(DataflowError),
}

impl Opened {
    /// The incarnation to render; an error when there is nothing to write.
    pub fn render(self) -> Result<Incarnation> {
        match self {
            Opened::Render(incarnation) => Ok(*incarnation),
            Opened::Complete => Err(Error::InvalidUsage {
                what: "the chain is complete, there is nothing to write: match on Opened".to_owned(),
            }),
            Opened::Poisoned(error) => Err(Error::InvalidUsage {
                what: format!("the chain is poisoned at {}: {}: drop the sink", error.at, error.message),
            }),
        }
    }
}

impl Sink {
    /// Opens an incarnation of this sink: takes what its time has come for ([`Sink::expire`]), leases that ran out
    /// among it; closes the replica's older ones, sweeps what they left (if it may, see [`crate::StashConfig::sweep_at_open`]), and grants
    /// the as-of to render at. Registers before the first PUT.
    #[tracing::instrument(level = "info", skip_all, fields(sink = %self.name(), replica = %launch.replica), err(level = "debug"))]
    pub async fn open_incarnation(&self, launch: Launch) -> Result<Opened> {
        let catalog = self.stash().catalog();
        self.expire(true).await?;
        let token = launch.token.unwrap_or_else(|| self.stash().draw_launch());
        let (id, lease_ms) = (self.stash().draw_incarnation(), self.lease_ms());
        for _ in 0..RACES_MAX {
            let head = catalog.head(self.id()).await?;
            let as_of = match rules::grant(self.rules(), &head_of(&head)) {
                Grant::Render { as_of, .. } => as_of,
                Grant::Complete => return self.join_or(Opened::Complete, launch, head.upper).await,
                Grant::Poisoned(error) => {
                    return self.join_or(Opened::Poisoned(error), launch, head.upper).await;
                }
                Grant::Dropped => return Err(CatalogError::SinkDropped { sink: self.id() }.into()),
            };
            let request = OpenIncarnation {
                sink: self.id(),
                replica: launch.replica.clone(),
                launch: token,
                id,
                as_of,
                expected_upper: head.upper,
                expected_fence: head.fence,
                lease_ms,
            };
            if let Cas::Done(opened) = catalog.open_incarnation(request).await? {
                if opened.created {
                    self.meters().incarnations_opened.increment(1);
                    tracing::info!(incarnation = %id, as_of, upper = %head.upper, closed = opened.closed.len(), "opened");
                    fault::place("stash.registered");
                    self.sweep_by_the_way().await?;
                    fault::place("stash.swept_at_opening");
                    self.stash().process().wake_deleter();
                }
                return self.render(launch, opened.incarnation, head.upper);
            }
        }
        Err(Error::InvalidUsage {
            what: format!(
                "sink {}: the head changed {RACES_MAX} times while an incarnation was opened",
                self.id()
            ),
        })
    }

    /// What a process gets whose chain wants nothing any more: what its launch renders already, or else that `end`.
    ///
    /// Between two processes of a launch another replica may have ended the chain. Would the second find nothing to
    /// render, it would close what the first one renders, which waits for its workers' shares. None can be opened
    /// after the launch was asked for: an ended chain grants nothing.
    async fn join_or(&self, end: Opened, launch: Launch, floor: Frontier) -> Result<Opened> {
        if let Some(token) = launch.token
            && let Some(row) = self.stash().catalog().launched(self.id(), token).await?
            && row.state == IncarnationState::Open
            && row.replica == launch.replica
        {
            return self.render(launch, row, floor);
        }
        self.clear_after(&launch.replica).await?;
        Ok(end)
    }

    fn render(&self, launch: Launch, row: IncarnationRow, floor: Frontier) -> Result<Opened> {
        Ok(Opened::Render(Box::new(Incarnation::start(self, launch, row, floor)?)))
    }

    /// Closes what a replica left open and sweeps, without opening anything: for a replica that comes back and
    /// has nothing to write, since the chain is complete or covers all it has.
    pub async fn clear_after(&self, replica: &ReplicaName) -> Result<()> {
        for row in self.open_incarnations().await? {
            if row.replica == *replica {
                let reason = "the replica came back with nothing to write";
                self.stash().catalog().close_incarnation(self.id(), row.id, reason).await?;
            }
        }
        self.sweep_by_the_way().await?;
        self.stash().process().wake_deleter();
        Ok(())
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        u64::from(self.stash().config().lease_secs.max(1)).saturating_mul(1000)
    }
}

/// One rendering of a sink on a replica, as this process sees it.
///
/// Its lease is renewed in the background while it lives. Dropping it leaves the incarnation open in the
/// catalog until its lease runs out or the replica opens another; [`Incarnation::close`] closes it now.
#[derive(Debug)]
pub struct Incarnation {
    sink: Sink,
    launch: Launch,
    row: IncarnationRow,
    floor: Frontier,
    writer: Arc<WriterHandle>,
    chain_taken: AtomicBool,
    _lease: JoinSet<()>,
}

impl Incarnation {
    fn start(sink: &Sink, launch: Launch, row: IncarnationRow, floor: Frontier) -> Result<Incarnation> {
        let spec = IncarnationSpec {
            sink: sink.id(),
            shard: sink.shard(),
            schema: sink.schema().clone(),
            up_to: sink.rules().up_to,
            incarnation: row.id,
            process: launch.process,
            workers: launch.workers,
            local_workers: launch.local_workers,
        };
        let writer = WriterHandle::open(sink.stash().process().clone(), spec)?;
        let mut lease = JoinSet::new();
        lease.spawn(renew(sink.clone(), row.id));
        Ok(Incarnation {
            sink: sink.clone(),
            launch,
            row,
            floor,
            writer,
            chain_taken: AtomicBool::new(false),
            _lease: lease,
        })
    }

    /// Its id, in every key it writes.
    pub fn id(&self) -> IncarnationId {
        self.row.id
    }

    /// The sink.
    pub fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Where to render: with the snapshot, at this time. The first description is `[as_of, as_of + 1)`.
    pub fn as_of(&self) -> u64 {
        self.row.as_of
    }

    /// The chain's upper when it was opened: updates below need not be computed.
    pub fn floor(&self) -> Frontier {
        self.floor
    }

    /// The worker that mints, merges and offers: the same on every process, another for other sinks.
    pub fn minting_worker(&self) -> WorkerIndex {
        let (high, low) = self.sink.id().uuid().as_u64_pair();
        let index = (high ^ low) % u64::from(self.launch.workers.get());
        WorkerIndex(u32::try_from(index).unwrap_or(0))
    }

    /// The workers that run in this process.
    pub fn local_workers(&self) -> std::ops::Range<u32> {
        self.launch.first_worker..self.launch.first_worker + self.launch.local_workers.get()
    }

    /// The writer of one of this process's workers.
    pub fn worker(&self, worker: u32) -> Result<ShareWriter> {
        if !self.local_workers().contains(&worker) {
            return Err(Error::InvalidUsage {
                what: format!(
                    "worker {worker} does not run here; this process has {:?}",
                    self.local_workers()
                ),
            });
        }
        Ok(ShareWriter { writer: Arc::clone(&self.writer), worker: WorkerIndex(worker) })
    }

    /// The chain, for the one worker that mints, merges and offers; can be taken once.
    pub fn chain(&self) -> Result<Chain> {
        if self.chain_taken.swap(true, Ordering::AcqRel) {
            return Err(Error::InvalidUsage {
                what: format!(
                    "the chain of incarnation {} was taken already: one worker minds it",
                    self.id()
                ),
            });
        }
        Ok(Chain::new(&self.sink, &self.row, self.floor, Arc::clone(&self.writer), self.launch.workers))
    }

    /// Takes up a share that came from another process, by [`disarm`]'s bytes: its parts are now this
    /// process's to forward or delete.
    pub fn arm(&self, frame: &[u8]) -> Result<ShareMessage<OwnedParts>> {
        Ok(self.writer.arm(DisarmedShare::from_wire(frame)?)?)
    }

    /// Closes the incarnation in the catalog and gives up what its workers hold.
    #[tracing::instrument(level = "debug", skip_all, fields(sink = %self.sink.name(), incarnation = %self.id()))]
    pub async fn close(self, reason: &str) -> Result<()> {
        tracing::info!(reason, "closed");
        self.writer.abandon();
        fault::place("stash.abandoned");
        self.sink.stash().catalog().close_incarnation(self.sink.id(), self.row.id, reason).await?;
        self.sink.stash().process().wake_deleter();
        Ok(())
    }
}

/// Makes bytes of a share for a channel to another process. The parts stay in this process's ledger.
pub fn disarm(share: ShareMessage<OwnedParts>) -> Result<bytes::Bytes> {
    Ok(share.map(OwnedParts::disarm).to_wire()?)
}

async fn renew(sink: Sink, incarnation: IncarnationId) {
    let lease_ms = sink.lease_ms();
    loop {
        tokio::time::sleep(Duration::from_millis(lease_ms / 3)).await;
        match sink.stash().catalog().renew_lease(sink.id(), incarnation, lease_ms).await {
            Ok(()) => {
                sink.meters().lease_renewed.increment(1);
                expire_beside(&sink).await;
            }
            Err(CatalogError::IncarnationClosed { reason, .. }) => {
                sink.meters().lease_closed.increment(1);
                tracing::warn!(sink = %sink.name(), %incarnation, %reason, "the incarnation was closed");
                return;
            }
            Err(CatalogError::SinkDropped { .. } | CatalogError::InvalidUsage(_)) => return,
            Err(error) => {
                sink.meters().lease_failed.increment(1);
                tracing::warn!(sink = %sink.name(), %incarnation, %error, "lease not renewed");
            }
        }
    }
}

/// Takes what its time has come for, where the sink was declared with such a time. The own lease was renewed just
/// before, so that this closes others' only.
async fn expire_beside(sink: &Sink) {
    if sink.can_expire()
        && let Err(error) = sink.expire(true).await
    {
        tracing::warn!(sink = %sink.name(), %error, "what its time has come for was not taken: the next renewal tries again");
    }
}

/// Writes one worker's shares.
#[derive(Clone, Debug)]
pub struct ShareWriter {
    writer: Arc<WriterHandle>,
    worker: WorkerIndex,
}

impl ShareWriter {
    /// Which worker.
    pub fn worker(&self) -> WorkerIndex {
        self.worker
    }

    /// Opens this worker's share of a minted description, to be filled and finished.
    pub fn share(&self, minted: Minted) -> Result<ShareBuilder> {
        Ok(self.writer.share(self.worker, minted.description, minted.floor)?)
    }

    /// Writes a whole share: all updates of this worker with times in the description, none included. An
    /// error in the updates themselves fails the share, and is returned.
    #[tracing::instrument(level = "debug", skip_all, fields(
        sink = self.writer.meters().name(),
        incarnation = %self.writer.spec().incarnation,
        worker = %self.worker,
        description = %minted.description,
    ))]
    pub async fn write(
        &self,
        minted: Minted,
        updates: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<ShareMessage<OwnedParts>> {
        let mut share = self.share(minted)?;
        for batch in updates {
            if let Err(error) = share.push(batch).await {
                drop(share.fail(error.to_string()));
                return Err(error.into());
            }
        }
        Ok(share.finish().await)
    }
}
