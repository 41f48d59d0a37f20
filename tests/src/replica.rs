//! A replica of one process that computes a [`Feed`], one small step at a time, in an order that chance picks.

use std::{mem, sync::Arc};

use arrow::array::RecordBatch;
use stash::{
    Chain, Error, Frontier, Incarnation, Launch, Mint, Minted, Opened, OwnedParts, Resolved, Result,
    ShareBuilder, ShareMessage, Sink,
};

use crate::{Chance, Feed, updates};

/// What a step did.
#[derive(Debug)]
pub enum Step {
    /// A batch had its outcome.
    Resolved(Resolved),
    /// Something else went on.
    Went,
    /// Everything the feed has was offered.
    Finished,
}

/// A replica.
pub struct Replica {
    name: String,
    workers: u32,
    feed: Arc<Feed>,
    end: u64,
    running: Option<Running>,
}

struct Running {
    incarnation: Incarnation,
    chain: Chain,
    frontier: u64,
    tasks: Vec<Task>,
}

struct Task {
    minted: Minted,
    worker: u32,
    stage: Stage,
}

enum Stage {
    Todo,
    Open(ShareBuilder, Vec<RecordBatch>),
    Written(ShareMessage<OwnedParts>),
}

impl Replica {
    /// A replica that computes `feed` up to time `end`.
    pub fn new(name: &str, workers: u32, feed: &Arc<Feed>, end: u64) -> Replica {
        Replica { name: name.to_owned(), workers, feed: Arc::clone(feed), end, running: None }
    }

    /// Whether an incarnation of it runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Opens an incarnation of `sink`; `false` when there is nothing to write.
    pub async fn open(&mut self, sink: &Sink) -> Result<bool> {
        self.running = None;
        match sink.open_incarnation(Launch::single(&self.name, self.workers)?).await? {
            Opened::Render(incarnation) => {
                let chain = incarnation.chain()?;
                let frontier = incarnation.as_of();
                self.running =
                    Some(Running { incarnation: *incarnation, chain, frontier, tasks: Vec::new() });
                Ok(true)
            }
            Opened::Complete | Opened::Poisoned(_) => Ok(false),
        }
    }

    /// Goes on by one step that chance picks.
    pub async fn step(&mut self, chance: &mut Chance) -> Result<Step> {
        let Some(running) = &mut self.running else { return Ok(Step::Finished) };
        if chance.percent(25) || running.tasks.is_empty() {
            running.frontier = self.end.min(running.frontier + chance.below(4));
            if let Mint::Minted(minted) = running.chain.mint(Frontier::at(running.frontier))? {
                let todo = |worker| Task { minted, worker, stage: Stage::Todo };
                running.tasks.extend((0..self.workers).map(todo));
                return Ok(Step::Went);
            }
        }
        if running.tasks.is_empty() || chance.percent(10) {
            return match running.chain.offer().await? {
                Some(resolved) => Ok(Step::Resolved(resolved)),
                None if running.tasks.is_empty() && running.chain.next_lower() >= Frontier::at(self.end) => {
                    Ok(Step::Finished)
                }
                None => Ok(Step::Went),
            };
        }
        let place = chance.index(running.tasks.len());
        let mut task = running.tasks.swap_remove(place);
        task.stage = match task.stage {
            Stage::Todo => {
                let pieces = self.pieces(task.minted, task.worker, chance);
                let running = self.running.as_ref().expect("it runs");
                Stage::Open(running.incarnation.worker(task.worker)?.share(task.minted)?, pieces)
            }
            Stage::Open(mut share, mut pieces) => match pieces.pop() {
                Some(piece) => {
                    share.push(piece).await?;
                    Stage::Open(share, pieces)
                }
                None => Stage::Written(share.finish().await),
            },
            Stage::Written(share) => {
                self.running.as_mut().expect("it runs").chain.merge(share).await?;
                return Ok(Step::Went);
            }
        };
        self.running.as_mut().expect("it runs").tasks.push(task);
        Ok(Step::Went)
    }

    fn pieces(&self, minted: Minted, worker: u32, chance: &mut Chance) -> Vec<RecordBatch> {
        let running = self.running.as_ref().expect("it runs");
        let (lower, upper) = (minted.description.lower().as_u64(), minted.description.upper().as_u64());
        let mut share = self.feed.share(running.incarnation.as_of(), lower, upper, worker, self.workers);
        for last in (1..share.len()).rev() {
            share.swap(last, chance.index(last + 1));
        }
        let pieces = share.chunks(1 + chance.index(share.len().max(1)));
        pieces.map(|piece| updates(running.incarnation.sink(), piece)).collect()
    }

    /// Ends in good order.
    pub async fn close(&mut self) -> Result<()> {
        match self.running.take() {
            Some(running) => {
                let Running { incarnation, chain, frontier: _, tasks } = running;
                drop((chain, tasks));
                incarnation.close("the replica ends").await
            }
            None => Ok(()),
        }
    }

    /// Dies: nothing is closed; what was written is given up if this process lives on.
    pub fn die(&mut self) {
        self.running = None;
    }

    /// Is killed: nobody gives up anything, its blobs just stay.
    pub fn kill(&mut self) {
        if let Some(Running { incarnation, chain, frontier: _, tasks }) = self.running.take() {
            for task in tasks {
                if let Stage::Written(share) = task.stage {
                    mem::forget(share);
                }
            }
            mem::forget(chain);
            drop(incarnation);
        }
    }

    /// Runs until everything was offered or it failed.
    pub async fn finish(&mut self, chance: &mut Chance) -> Result<()> {
        while self.is_running() {
            if let Step::Finished = self.step(chance).await? {
                return Ok(());
            }
        }
        Err(Error::InvalidUsage { what: "the replica does not run".to_owned() })
    }
}
