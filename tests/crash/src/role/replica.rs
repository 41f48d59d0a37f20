//! A process of a replica: mints where the minting worker is, writes the shares of its workers, offers.
//!
//! What one process says to another travels through the harness. When the harness says that a launch is over,
//! everything of it is given up, and the incarnation is closed.

use std::{collections::VecDeque, sync::Arc};

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use stash::{
    Chain, Description, Error, ErrorKind, Frontier, Incarnation, Launch, LaunchToken, Mint, Minted, Opened,
    Outcome, OwnedParts, Resolved, ShareMessage, ShareWriter, Sink, disarm,
};
use tokio::task::JoinSet;

use super::{Orders, RoleArgs, told};
use crate::{
    feed::Feed,
    message::{Event, Order, tell},
};

type Share = ShareMessage<OwnedParts>;

/// Follows orders until it is told to stop.
pub(super) async fn play(args: &RoleArgs, sink: &Sink, orders: &mut Orders) -> anyhow::Result<()> {
    let mut to = 0;
    let mut rendering: Option<Rendering> = None;
    loop {
        let Some(current) = &mut rendering else {
            match orders.next().await {
                Order::Launch { launch, token } => {
                    rendering = launched(args, sink, orders, launch, &token).await?
                }
                Order::Advance { to: until } => to = to.max(until),
                Order::Stop => return Ok(()),
                Order::Minted { .. } | Order::Share { .. } | Order::GoOn => {}
            }
            continue;
        };
        let done = tokio::select! {
            order = orders.next() => match order {
                Order::Stop => {
                    over(rendering.take(), "the replica was told to stop").await;
                    return Ok(());
                }
                Order::Launch { launch, token } => {
                    over(rendering.take(), "the launch is over").await;
                    rendering = launched(args, sink, orders, launch, &token).await?;
                    continue;
                }
                Order::Advance { to: until } => {
                    to = to.max(until);
                    current.mint(to)
                }
                Order::Minted { launch, lower, upper, floor } if launch == current.launch => {
                    match Description::new(Frontier::at(lower), Frontier::at(upper)) {
                        Some(description) => {
                            current.write(Minted { description, floor: Frontier::at(floor) })
                        }
                        None => anyhow::bail!("an empty description was minted: [{lower}, {upper})"),
                    }
                }
                Order::Share { launch, frame } if launch == current.launch => match current.incarnation.arm(&frame) {
                    Ok(share) => current.report(share, orders).await,
                    Err(error) => Err(error),
                },
                Order::Minted { .. } | Order::Share { .. } | Order::GoOn => continue,
            },
            Some(written) = current.writing.join_next() => match written {
                Ok(Ok(share)) => current.hand(share, orders).await,
                Ok(Err(error)) => Err(error),
                Err(panicked) => anyhow::bail!("a worker panicked: {panicked}"),
            },
        };
        let done = match done {
            Ok(()) => current.go_on(to),
            failed => failed,
        };
        match done {
            Ok(()) if current.complete => {
                let launch = current.launch;
                over(rendering.take(), "the chain is complete").await;
                tell(&Event::Complete { launch });
            }
            Ok(()) => {}
            Err(error) => {
                ended(current.launch, &error)?;
                over(rendering.take(), "the rendering failed").await;
            }
        }
    }
}

/// Tells that a rendering ended; an error that no rendering anew can mend ends the process.
fn ended(launch: u64, error: &Error) -> anyhow::Result<()> {
    let (kind, line) = (error.kind(), told(error));
    match kind {
        ErrorKind::Reopen | ErrorKind::Retry | ErrorKind::Absent => {
            tell(&Event::Ended { launch, kind: format!("{kind:?}"), error: line });
            Ok(())
        }
        // A launch whose incarnation was closed before this process came to it.
        ErrorKind::FixCall if line.contains("launch") => {
            tell(&Event::Ended { launch, kind: format!("{kind:?}"), error: line });
            Ok(())
        }
        _ => Err(anyhow::anyhow!("{kind:?}: {line}")),
    }
}

/// Ends a rendering: its incarnation is closed, where that is possible, and what it has is given up.
async fn over(rendering: Option<Rendering>, reason: &str) {
    let Some(Rendering { incarnation, mut writing, chain, .. }) = rendering else { return };
    writing.shutdown().await;
    drop(chain);
    if let Err(error) = incarnation.close(reason).await {
        eprintln!("not closed yet: {}", told(&error));
    }
}

async fn launched(
    args: &RoleArgs,
    sink: &Sink,
    orders: &mut Orders,
    launch: u64,
    token: &str,
) -> anyhow::Result<Option<Rendering>> {
    let token: LaunchToken = token.parse()?;
    let workers = args.workers * args.processes;
    let first = args.workers * args.process;
    let start = Launch::process(&args.replica, token, args.process, workers, first, args.workers)?;
    let opened = orders.persist(async || sink.open_incarnation(start.clone()).await).await;
    let incarnation = match opened {
        Ok(Opened::Render(incarnation)) => *incarnation,
        Ok(Opened::Complete) => {
            tell(&Event::Complete { launch });
            return Ok(None);
        }
        Ok(Opened::Poisoned(error)) => anyhow::bail!("poisoned at {}: {}", error.at, error.message),
        Err(error) => {
            ended(launch, &error)?;
            return Ok(None);
        }
    };
    let minting = incarnation.local_workers().contains(&incarnation.minting_worker().0);
    let chain = if minting { Some(incarnation.chain()?) } else { None };
    tell(&Event::Opened {
        launch,
        incarnation: incarnation.id().to_string(),
        as_of: incarnation.as_of(),
        minting,
    });
    Ok(Some(Rendering {
        feed: args.feed(),
        launch,
        workers,
        cuts: args.cuts.iter().copied().cycle().take(4096).collect(),
        frontier: 0,
        incarnation,
        chain,
        writing: JoinSet::new(),
        open: 0,
        reached: 0,
        exhausted: false,
        complete: false,
    }))
}

/// One rendering, as this process has it.
struct Rendering {
    feed: Feed,
    launch: u64,
    workers: u32,
    cuts: VecDeque<u64>,
    /// What the minter was told last.
    frontier: u64,
    incarnation: Incarnation,
    /// Where the minting worker is.
    chain: Option<Chain>,
    writing: JoinSet<stash::Result<Share>>,
    /// Descriptions that were minted here and have no outcome.
    open: usize,
    /// What was told as reached.
    reached: u64,
    /// Nothing more is to be minted.
    exhausted: bool,
    complete: bool,
}

impl Rendering {
    /// Mints what the frontier allows, cut by cut.
    fn mint(&mut self, to: u64) -> stash::Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let mut minted_here = Vec::new();
        while !self.exhausted {
            let next = chain.next_lower().as_u64();
            if next >= to {
                break;
            }
            let cut = self.cuts.front().copied().unwrap_or(1).max(1);
            // The snapshot goes alone, whatever was asked for: the frontier never moves back behind that.
            self.frontier = self.frontier.max(next.saturating_add(cut).min(to));
            match chain.mint(Frontier::at(self.frontier))? {
                Mint::Minted(minted) => {
                    self.cuts.rotate_left(1);
                    minted_here.push(minted);
                }
                Mint::NotYet | Mint::InFlight => break,
                Mint::Ended | Mint::Complete => self.exhausted = true,
            }
        }
        for minted in minted_here {
            self.open += 1;
            tell(&Event::Minted {
                launch: self.launch,
                lower: minted.description.lower().as_u64(),
                upper: minted.description.upper().as_u64(),
                floor: minted.floor.as_u64(),
            });
            self.write(minted)?;
        }
        Ok(())
    }

    /// Has every worker of this process write its share.
    fn write(&mut self, minted: Minted) -> stash::Result<()> {
        let piece =
            minted.description.lower().max(minted.floor).as_u64()..minted.description.upper().as_u64();
        for worker in self.incarnation.local_workers() {
            let writer = self.incarnation.worker(worker)?;
            let (sink, feed) = (self.incarnation.sink().clone(), self.feed);
            let (as_of, workers, piece) = (self.incarnation.as_of(), self.workers, piece.clone());
            self.writing.spawn(async move {
                let rows = match piece.is_empty() {
                    true => Vec::new(),
                    false => feed.share(as_of, piece.start, piece.end, worker, workers),
                };
                write_share(&writer, &sink, minted, rows).await
            });
        }
        Ok(())
    }

    /// Hands a share of this process to the minting worker.
    async fn hand(&mut self, share: Share, orders: &mut Orders) -> stash::Result<()> {
        if self.chain.is_some() {
            return self.report(share, orders).await;
        }
        let frame = disarm(share)?.to_vec();
        tell(&Event::Share { launch: self.launch, frame });
        Ok(())
    }

    async fn report(&mut self, share: Share, orders: &mut Orders) -> stash::Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        chain.merge(share).await?;
        while let Some(resolved) = orders.persist(async || chain.offer().await).await? {
            self.open = self.open.saturating_sub(1);
            tell_resolved(&resolved);
        }
        Ok(())
    }

    /// Mints what has become possible; tells what was reached.
    fn go_on(&mut self, to: u64) -> stash::Result<()> {
        self.mint(to)?;
        let Some(chain) = &self.chain else { return Ok(()) };
        if self.open > 0 {
            return Ok(());
        }
        let next = chain.next_lower().as_u64();
        if next >= to && to > self.reached {
            self.reached = to;
            tell(&Event::Reached { launch: self.launch, to });
        }
        self.complete = self.exhausted || next >= self.feed.end;
        Ok(())
    }
}

async fn write_share(
    writer: &ShareWriter,
    sink: &Sink,
    minted: Minted,
    rows: Vec<((u64, String), u64, i64)>,
) -> stash::Result<Share> {
    /// Rows that are pushed at once: few, so that a share grows and is written while it does.
    const ROWS: usize = 40;
    let mut share = writer.share(minted)?;
    for rows in rows.chunks(ROWS) {
        let batch = batch_of(sink, rows)?;
        if let Err(error) = share.push(batch).await {
            return Ok(share.fail(error.to_string()));
        }
    }
    Ok(share.finish().await)
}

fn batch_of(sink: &Sink, rows: &[((u64, String), u64, i64)]) -> stash::Result<RecordBatch> {
    let keys: ArrayRef = Arc::new(UInt64Array::from_iter_values(rows.iter().map(|((key, _), _, _)| *key)));
    let pads: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|((_, pad), _, _)| pad)));
    let times = rows.iter().map(|(_, time, _)| *time).collect();
    sink.updates(vec![keys, pads], times, rows.iter().map(|(_, _, diff)| *diff).collect())
}

fn tell_resolved(resolved: &Resolved) {
    let outcome = match resolved.outcome {
        Some(Outcome::Accepted) => "accepted",
        Some(Outcome::Trimmed { .. }) => "trimmed",
        Some(Outcome::Dropped) => "dropped",
        None => "recorded",
    };
    tell(&Event::Resolved {
        lower: resolved.description.lower().as_u64(),
        upper: resolved.description.upper().as_u64(),
        outcome: outcome.to_owned(),
    });
}
