//! A replica process of the demo: it renders every table of the feed and offers its batches.
//!
//! Every table is a sink of its own, minded by a task; every worker writes its share from a task of its
//! own. When an incarnation ends, it is rendered anew with a fresh grant, as any replica would.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use rustix::process::Signal;
use stash::{
    BatchConfig, BlobEntry, BlobEntryKind, BlobError, BlobKey, BlobPrefix, BlobStore, Chain, Deleted,
    ErrorKind, Frontier, Incarnation, Launch, Mint, Minted, Opened, Outcome, OwnedParts, PutOutcome,
    Resolved, ShareMessage, Sink, Stash, StashConfig,
};
use tokio::{
    io::AsyncReadExt,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};

use super::{
    events::{ReplicaEvent, emit, peak_rss},
    feed::Feed,
    spec::{Engine, ReplicaSpec},
};
use crate::{metrics::Endpoint, session::Address};

/// Renderings in a row that end before a replica gives up.
const REOPENS_MAX: u32 = 20;

/// Runs a replica to the end of its feed.
pub async fn run(spec: ReplicaSpec, at: &Address) -> anyhow::Result<()> {
    let feed: Arc<dyn Feed> = Arc::from(spec.feed.open()?);
    let mut endpoint = Endpoint::at(spec.metrics)?;
    let stash = open(&spec, at).await?;
    endpoint.watch(&stash);
    let pauses = Arc::new(AtomicBool::new(spec.pause));
    let mut sinks = Vec::new();
    for table in feed.tables() {
        sinks.push(stash.sink(&table.name).await?);
    }
    let mut tables = JoinSet::new();
    match spec.engine {
        Engine::Tasks => {
            for (table, sink) in sinks.into_iter().enumerate() {
                let (feed, spec, pauses) = (Arc::clone(&feed), spec.clone(), Arc::clone(&pauses));
                tables.spawn(Table { feed, sink, table, spec, pauses }.run());
            }
        }
        #[cfg(feature = "timely")]
        Engine::Timely => drop(tables.spawn(super::dataflow::run(feed, sinks, spec, pauses))),
        #[cfg(not(feature = "timely"))]
        Engine::Timely => anyhow::bail!("this was built without the feature `timely`"),
    }
    let mut orphaned = JoinSet::new();
    orphaned.spawn(until_orphaned());
    loop {
        tokio::select! {
            done = tables.join_next() => match done {
                Some(done) => done.context("a table's task")??,
                None => break,
            },
            _ = orphaned.join_next() => anyhow::bail!("the process that started this one is gone"),
        }
    }
    let counters = stash.counters();
    let peak_budget = stash.budget().peak;
    stash.close().await?;
    let requests = stash.requests();
    emit(&ReplicaEvent::Done {
        puts: counters.puts,
        put_bytes: counters.put_bytes,
        peak_rss: peak_rss(None),
        peak_budget,
        requests,
    })
}

/// Returns when the process that started this one is gone: its end of standard input is closed.
pub async fn until_orphaned() {
    let mut input = tokio::io::stdin();
    let mut nothing = [0; 64];
    while matches!(input.read(&mut nothing).await, Ok(n) if n > 0) {}
}

async fn open(spec: &ReplicaSpec, at: &Address) -> anyhow::Result<Stash> {
    let batch = BatchConfig {
        memory_bytes: spec.memory_bytes,
        part_bytes: spec.feed.part_bytes(),
        ..BatchConfig::default()
    };
    let options = at.options()?.config(StashConfig { batch, ..StashConfig::default() });
    let stalls = spec.stall;
    let wrap = move |inner: Arc<dyn BlobStore>| -> Arc<dyn BlobStore> {
        if stalls { Arc::new(Stalling::new(inner)) } else { inner }
    };
    Ok(options.wrap_store(wrap).open().await?)
}

/// One table of the feed, rendered by this replica.
struct Table {
    feed: Arc<dyn Feed>,
    sink: Sink,
    table: usize,
    spec: ReplicaSpec,
    /// Whether this process is still to pause; shared by its tables.
    pauses: Arc<AtomicBool>,
}

impl Table {
    async fn run(self) -> anyhow::Result<()> {
        for _ in 0..REOPENS_MAX {
            let launch = Launch::single(&self.spec.replica, self.spec.workers)?;
            let incarnation = match self.sink.open_incarnation(launch).await {
                Ok(Opened::Render(incarnation)) => *incarnation,
                Ok(Opened::Complete) => return emit(&ReplicaEvent::Complete { table: self.table }),
                Ok(Opened::Poisoned(error)) => anyhow::bail!("poisoned at {}: {}", error.at, error.message),
                Err(error) if error.kind() == ErrorKind::Retry => {
                    emit(&ReplicaEvent::Reopening { table: self.table, reason: format!("{error}") })?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            emit(&ReplicaEvent::Opened {
                table: self.table,
                incarnation: incarnation.id().to_string(),
                as_of: incarnation.as_of(),
                floor: incarnation.floor().as_u64(),
            })?;
            match self.render(&incarnation).await {
                Ok(()) => return Ok(incarnation.close("the feed has ended").await?),
                Err(error) => match error.downcast_ref::<stash::Error>() {
                    Some(cause) if matches!(cause.kind(), ErrorKind::Reopen | ErrorKind::Retry) => {
                        emit(&ReplicaEvent::Reopening { table: self.table, reason: format!("{error:#}") })?;
                    }
                    _ => return Err(error),
                },
            }
        }
        anyhow::bail!("sink {}: {REOPENS_MAX} renderings ended in a row", self.sink.name())
    }

    /// Walks the feed from the granted as-of to its end, cutting it where this replica cuts.
    async fn render(&self, incarnation: &Incarnation) -> anyhow::Result<()> {
        let mut chain = incarnation.chain()?;
        let mut cuts = self.spec.cuts.iter().cycle();
        let quarter = self.feed.as_of() + (self.feed.end() - self.feed.as_of()) / 4;
        let end = self.feed.end();
        let mut frontier = incarnation.as_of() + 1;
        loop {
            if self.table == 0 && frontier > quarter && self.pauses.swap(false, Ordering::AcqRel) {
                pause().await?;
            }
            let said = if frontier >= end { Frontier::EMPTY } else { Frontier::at(frontier) };
            if said.is_empty() && self.spec.stall {
                // The feed was too small for a second part: stand still before its end instead.
                let at = format!("before the last description of {}", self.sink.name());
                emit(&ReplicaEvent::Stalled { at, puts: self.sink.stash().counters().puts })?;
                std::future::pending::<()>().await;
            }
            loop {
                match chain.mint(said)? {
                    Mint::Minted(minted) => self.describe(incarnation, &mut chain, minted).await?,
                    Mint::NotYet | Mint::InFlight => break,
                    Mint::Complete | Mint::Ended => return Ok(()),
                }
            }
            frontier = frontier.saturating_add(*cuts.next().unwrap_or(&1));
        }
    }

    /// Has every worker write its share of a description, and offers what comes of it.
    async fn describe(
        &self,
        incarnation: &Incarnation,
        chain: &mut Chain,
        minted: Minted,
    ) -> anyhow::Result<()> {
        let range =
            incarnation.sink().writes(minted).map(|piece| piece.lower().as_u64()..piece.upper().as_u64());
        let mut shares = JoinSet::new();
        for worker in incarnation.local_workers() {
            let writer = incarnation.worker(worker)?;
            let (feed, table, range) = (Arc::clone(&self.feed), self.table, range.clone());
            let (as_of, workers) = (incarnation.as_of(), self.spec.workers);
            shares.spawn(async move {
                let mut share = writer.share(minted)?;
                if let Some(range) = range {
                    for updates in presented(feed.as_ref(), table, as_of, range, worker, workers) {
                        share.push(updates?).await?;
                    }
                }
                anyhow::Ok(share.finish().await)
            });
        }
        while let Some(share) = shares.join_next().await {
            let share: ShareMessage<OwnedParts> = share.context("a worker's task")??;
            for resolved in chain.report(share).await? {
                tell(self.table, &resolved)?;
            }
        }
        Ok(())
    }
}

/// Stands still until this process is continued.
pub async fn pause() -> anyhow::Result<()> {
    // Heard from before it is said, so that the signal cannot come in between.
    let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
    emit(&ReplicaEvent::Pausing)?;
    continued.recv().await;
    Ok(())
}

/// Tells what became of an offer.
pub fn tell(table: usize, resolved: &Resolved) -> anyhow::Result<()> {
    let (outcome, from) = match resolved.outcome {
        Some(Outcome::Accepted) => ("accepted", None),
        Some(Outcome::Trimmed { from }) => ("trimmed", Some(from.as_u64())),
        Some(Outcome::Dropped) => ("dropped", None),
        None => ("recorded", None),
    };
    emit(&ReplicaEvent::Resolved {
        table,
        lower: resolved.description.lower().as_u64(),
        upper: resolved.description.upper().as_u64(),
        outcome: outcome.to_owned(),
        from,
        updates: resolved.facts.update_count,
        parts: resolved.parts,
        inline: resolved.inline,
        chain_upper: resolved.upper.as_u64(),
    })
}

/// What a rendering at `as_of` presents in `range`: real times, and the accumulation of all before at the
/// as-of itself. Only the first rendering of all is ever asked for that, and its as-of is the feed's own.
fn presented(
    feed: &dyn Feed,
    table: usize,
    as_of: u64,
    range: Range<u64>,
    worker: u32,
    workers: u32,
) -> Box<dyn Iterator<Item = anyhow::Result<arrow::array::RecordBatch>> + Send + '_> {
    debug_assert!(range.start > as_of || as_of == feed.as_of(), "a snapshot above the feed's own is covered");
    feed.updates(table, range.start, range.end, worker, workers)
}

/// A store whose second PUT reaches the disk, but whose answer never comes back: the process that waits for
/// it is killed there.
#[derive(Debug)]
struct Stalling {
    inner: Arc<dyn BlobStore>,
    puts: watch::Sender<u32>,
}

impl Stalling {
    fn new(inner: Arc<dyn BlobStore>) -> Stalling {
        Stalling { inner, puts: watch::Sender::new(0) }
    }
}

#[async_trait]
impl BlobStore for Stalling {
    fn location(&self) -> String {
        self.inner.location()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let mut put = 0;
        self.puts.send_modify(|puts| {
            *puts += 1;
            put = *puts;
        });
        if put != 2 {
            return self.inner.put_new(key, chunks).await;
        }
        let part = key.as_str().rsplit('/').next().unwrap_or_default();
        let stalled =
            ReplicaEvent::Stalled { at: format!("while part {part} was in flight"), puts: u64::from(put) };
        if emit(&stalled).is_ok() {
            let _landed = self.inner.put_new(key, chunks).await;
            std::future::pending::<()>().await;
        }
        self.inner.put_new(key, Vec::new()).await
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        self.inner.get_range(key, range).await
    }

    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        self.inner.get(key, len_max).await
    }

    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        self.inner.head(key).await
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        self.inner.delete(keys).await
    }

    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        self.inner.abort_upload(key, token).await
    }

    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        self.inner.list(prefix)
    }

    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        self.inner.look_again(entries).await
    }
}
