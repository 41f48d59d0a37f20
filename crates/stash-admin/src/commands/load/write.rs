//! The second pass over a change file: updates go to workers as they are read, batches to the chain as they end.
//!
//! One thread reads the file, each worker is a task with its own [`ShareWriter`], and what runs here minds the
//! chain: it mints, deals out pieces in turn, takes the shares, and offers. Channels are short, so whoever is
//! slowest sets the pace and memory stays bounded by the process's budget.

use std::collections::{BTreeMap, VecDeque};

use arrow::{
    array::{BooleanArray, RecordBatch},
    compute::filter_record_batch,
};
use stash::{
    Chain, Description, Frontier, Incarnation, Mint, Minted, OwnedParts, ShareBuilder, ShareMessage,
    ShareWriter,
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    Source,
    plan::{Plan, times},
    summary::Summary,
};
use crate::{
    cli::LoadArgs,
    failure::Refusal,
    formats::{ChangeBatch, ChangeFile, InputError, Progress},
    output::{self, Output},
    progress::Meter,
};

/// Batches that are read ahead.
const AHEAD: usize = 4;
/// Orders that a worker has waiting.
const ORDERS: usize = 4;

/// What a worker is told.
#[derive(Debug)]
enum Order {
    Open(Minted),
    Push(Description, RecordBatch),
    Finish(Description),
}

type Shared = stash::Result<ShareMessage<OwnedParts>>;

/// Writes all of the file at and above the incarnation's floor.
pub(super) async fn write(
    incarnation: &Incarnation,
    source: Source,
    plan: &Plan,
    args: &LoadArgs,
    summary: &mut Summary,
    out: Output,
) -> anyhow::Result<()> {
    let path = source.path.clone();
    let mut meter = Meter::new(out, "loading", std::fs::metadata(&path).ok().map(|file| file.len()));
    let uppers = plan.uppers(incarnation.as_of(), args.complete);
    let mut dealer = Dealer::new(incarnation, uppers, args.sort, summary)?;
    let mut reader = Reader::start(source);
    let mut updates = 0;
    if args.sort {
        dealer.open_all().await?;
    }
    while let Some((changes, progress)) = reader.next().await? {
        updates += output::len(changes.batch.num_rows());
        dealer.deal(changes.batch).await?;
        dealer.take_ready().await?;
        let (batches, upper) = (dealer.summary.batches(), dealer.chain.known_upper());
        meter.at(progress.read, progress.total, || {
            format!("{}, upper {upper}", output::counted(batches, "batch", "batches"))
        });
    }
    if updates != plan.updates {
        return Err(Refusal::fix_call(format!(
            "{} changed while it was loaded: {} updates were there at first, then {updates}; load it again with \
             --resume",
            path.display(),
            plan.updates
        ))
        .into());
    }
    dealer.end().await
}

/// The thread that reads the file.
struct Reader {
    batches: mpsc::Receiver<Result<(ChangeBatch, Progress), InputError>>,
}

impl Reader {
    fn start(source: Source) -> Reader {
        let (send, batches) = mpsc::channel(AHEAD);
        // Nobody waits for it: it ends when the channel does.
        drop(tokio::task::spawn_blocking(move || {
            let Source { path, format, roles, schema } = source;
            let mut file = match ChangeFile::open(&path, format, roles, schema) {
                Ok(file) => file,
                Err(error) => return drop(send.blocking_send(Err(error))),
            };
            while let Some(changes) = file.next() {
                let progress = file.progress();
                if send.blocking_send(changes.map(|changes| (changes, progress))).is_err() {
                    return;
                }
            }
        }));
        Reader { batches }
    }

    async fn next(&mut self) -> Result<Option<(ChangeBatch, Progress)>, InputError> {
        self.batches.recv().await.transpose()
    }
}

/// Minds the chain and deals pieces to the workers.
struct Dealer<'a> {
    chain: Chain,
    floor: u64,
    uppers: VecDeque<Frontier>,
    /// What is minted and not finished, in order; one, or all of them when times come in any order.
    open: VecDeque<Minted>,
    unsorted: bool,
    workers: Vec<mpsc::Sender<Order>>,
    next_worker: usize,
    shares: mpsc::UnboundedReceiver<Shared>,
    /// Shares that finished descriptions still owe.
    owed: usize,
    _tasks: JoinSet<()>,
    summary: &'a mut Summary,
}

impl<'a> Dealer<'a> {
    fn new(
        incarnation: &Incarnation,
        uppers: Vec<Frontier>,
        unsorted: bool,
        summary: &'a mut Summary,
    ) -> stash::Result<Dealer<'a>> {
        let (report, shares) = mpsc::unbounded_channel();
        let (mut tasks, mut workers) = (JoinSet::new(), Vec::new());
        for worker in incarnation.local_workers() {
            let (send, orders) = mpsc::channel(ORDERS);
            tasks.spawn(work(incarnation.worker(worker)?, orders, report.clone()));
            workers.push(send);
        }
        Ok(Dealer {
            chain: incarnation.chain()?,
            floor: incarnation.floor().as_u64(),
            uppers: uppers.into(),
            open: VecDeque::new(),
            unsorted,
            workers,
            next_worker: 0,
            shares,
            owed: 0,
            _tasks: tasks,
            summary,
        })
    }

    /// Opens every description at once, for times in any order.
    async fn open_all(&mut self) -> anyhow::Result<()> {
        while self.open_next().await? {}
        Ok(())
    }

    /// Mints the next description and tells the workers; `false` when there is none left.
    async fn open_next(&mut self) -> anyhow::Result<bool> {
        let Some(upper) = self.uppers.pop_front() else { return Ok(false) };
        loop {
            match self.chain.mint(upper)? {
                Mint::Minted(minted) => {
                    self.open.push_back(minted);
                    for worker in 0..self.workers.len() {
                        self.send(worker, Order::Open(minted)).await?;
                    }
                    return Ok(true);
                }
                Mint::InFlight => self.take_one().await?,
                // A sink with an end of its own may reach it before the file does.
                Mint::Complete | Mint::NotYet | Mint::Ended => return Ok(false),
            }
        }
    }

    /// Deals out a batch in pieces, each of one description.
    async fn deal(&mut self, mut batch: RecordBatch) -> anyhow::Result<()> {
        batch = self.without_refused(batch)?;
        if self.unsorted {
            for index in 0..self.open.len() {
                let Some(minted) = self.open.get(index).copied() else { break };
                let wanted = times(&batch).iter().map(|time| Some(minted.description.contains(*time)));
                let piece = filter_record_batch(&batch, &wanted.collect::<BooleanArray>())?;
                self.push(minted.description, piece).await?;
            }
            return Ok(());
        }
        while let Some(&first) = times(&batch).first() {
            let minted = match self.open.front().copied() {
                Some(minted) if Frontier::at(first) < minted.description.upper() => minted,
                Some(_) => {
                    self.finish_first().await?;
                    continue;
                }
                None if self.open_next().await? => continue,
                // Beyond the end of the sink; nothing there is wanted.
                None => return Ok(()),
            };
            let upper = minted.description.upper();
            let rows = times(&batch).partition_point(|time| Frontier::at(*time) < upper);
            let piece = batch.slice(0, rows);
            batch = batch.slice(rows, batch.num_rows() - rows);
            self.push(minted.description, piece).await?;
        }
        Ok(())
    }

    /// Leaves out, and counts, what the chain has accepted already.
    fn without_refused(&mut self, batch: RecordBatch) -> anyhow::Result<RecordBatch> {
        let floor = self.floor;
        let refused = times(&batch).iter().filter(|time| **time < floor).count();
        if refused == 0 {
            return Ok(batch);
        }
        self.summary.refused += output::len(refused);
        let kept = times(&batch).iter().map(|time| Some(*time >= floor)).collect::<BooleanArray>();
        Ok(filter_record_batch(&batch, &kept)?)
    }

    async fn push(&mut self, description: Description, piece: RecordBatch) -> anyhow::Result<()> {
        if piece.num_rows() == 0 {
            return Ok(());
        }
        let worker = self.next_worker;
        self.next_worker = (worker + 1) % self.workers.len().max(1);
        self.send(worker, Order::Push(description, piece)).await
    }

    async fn finish_first(&mut self) -> anyhow::Result<()> {
        let Some(minted) = self.open.pop_front() else { return Ok(()) };
        self.owed += self.workers.len();
        for worker in 0..self.workers.len() {
            self.send(worker, Order::Finish(minted.description)).await?;
        }
        Ok(())
    }

    async fn send(&mut self, worker: usize, order: Order) -> anyhow::Result<()> {
        let gone = match self.workers.get(worker) {
            Some(orders) => orders.send(order).await.is_err(),
            None => true,
        };
        if !gone {
            return Ok(());
        }
        // A worker ends early only with an error, which lies among the shares.
        while let Ok(share) = self.shares.try_recv() {
            share?;
        }
        Err(Refusal::report(format!("worker {worker} ended early")).into())
    }

    /// Waits for one share and offers what became complete by it.
    async fn take_one(&mut self) -> anyhow::Result<()> {
        match self.shares.recv().await {
            Some(share) => self.take(share).await,
            None => Err(Refusal::report("all workers ended early").into()),
        }
    }

    async fn take_ready(&mut self) -> anyhow::Result<()> {
        while let Ok(share) = self.shares.try_recv() {
            self.take(share).await?;
        }
        Ok(())
    }

    async fn take(&mut self, share: Shared) -> anyhow::Result<()> {
        self.owed = self.owed.saturating_sub(1);
        for resolved in self.chain.report(share?).await? {
            self.summary.resolved(&resolved);
        }
        Ok(())
    }

    /// The file is at its end: ends every description that is left.
    async fn end(mut self) -> anyhow::Result<()> {
        loop {
            while !self.open.is_empty() {
                self.finish_first().await?;
                self.take_ready().await?;
            }
            if !self.open_next().await? {
                break;
            }
        }
        while self.owed > 0 {
            self.take_one().await?;
        }
        Ok(())
    }
}

/// One worker: fills its shares as it is told, and reports each when it is finished, or its first error.
async fn work(writer: ShareWriter, mut orders: mpsc::Receiver<Order>, report: mpsc::UnboundedSender<Shared>) {
    let mut shares: BTreeMap<Description, ShareBuilder> = BTreeMap::new();
    while let Some(order) = orders.recv().await {
        let done = match order {
            Order::Open(minted) => writer.share(minted).map(|share| {
                shares.insert(minted.description, share);
                None
            }),
            Order::Push(description, batch) => match shares.get_mut(&description) {
                Some(share) => share.push(batch).await.map(|()| None).map_err(stash::Error::from),
                None => Ok(None),
            },
            Order::Finish(description) => match shares.remove(&description) {
                Some(share) => Ok(Some(share.finish().await)),
                None => Ok(None),
            },
        };
        let failed = done.is_err();
        if let Some(share) = done.transpose()
            && (report.send(share).is_err() || failed)
        {
            return;
        }
    }
}
