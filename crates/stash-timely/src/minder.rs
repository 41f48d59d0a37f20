//! The task that minds the chain of one rendering: it mints, merges and offers, off the workers' threads.
//!
//! It hears from the operators of the minting worker how far the inputs are and what workers report, and tells them
//! what was minted, how far the chain is, and why it stopped. Descriptions are minted whenever one can be: after news of
//! a frontier, and after each outcome, which frees a slot and raises the floor.
//!
//! - What waits is taken in before anything is offered: a batch that is complete leaves no report behind it unread.
//! - An offer whose outcome is unknown, or which the catalog could not take, is made again for a minute ([`Waits`]); what lasts
//!   longer ends the rendering. Nothing is lost: the chain did not move, and a new rendering begins where it stands.
//! - The errors of a description are summed over all workers, and its last share carries the first that is left (I11).
//! - A worker whose dataflow was dropped reports nothing any more: one of this process is heard of, one of another closes the
//!   incarnation, and that is looked at every few seconds.
//! - It stops once, and says why; then it keeps nothing (I16: the chain's `close` gives up what was collected).

use std::{
    collections::BTreeMap,
    sync::mpsc,
    time::{Duration, Instant},
};

use stash::{
    Chain, DataflowError, Description, ErrorKind, Frontier, HeadStatus, Mint, Outcome, OwnedParts,
    ShareMessage,
};
use timely::scheduling::SyncActivator;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    Connection, Stop,
    errors::{Errors, Verdict},
    message::{Control, Failure, Report, ToChain},
    waits::Waits,
};

/// The first wait before an offer is made again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LAST_WAIT: Duration = Duration::from_secs(1);
/// How often the read hold is asked for while the chain moves on. It costs two reads of the catalog.
const HOLD_EVERY: Duration = Duration::from_millis(200);
/// How often it is looked whether the incarnation is still open, where nothing happens. It costs a read of the catalog.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Bytes of a dataflow error's message that the catalog keeps; the rest is cut off.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The way back to the operator on the minting worker.
pub(crate) struct ToWorker {
    pub(crate) sender: Option<mpsc::Sender<Control>>,
    pub(crate) activator: SyncActivator,
}

impl ToWorker {
    /// Whether it is taken to the workers. Whoever does not listen any more has dropped the dataflow, which this task
    /// learns by its own queue.
    fn send(&self, control: Control) -> bool {
        let sent = self.sender.as_ref().is_some_and(|sender| sender.send(control).is_ok());
        if sent {
            let _ = self.activator.activate();
        }
        sent
    }
}

impl Drop for ToWorker {
    /// Where this task dies without a last word, the operator has to look to learn of it.
    fn drop(&mut self) {
        self.sender = None;
        let _ = self.activator.activate();
    }
}

pub(crate) struct Minder {
    connection: Connection,
    chain: Chain,
    inbox: UnboundedReceiver<ToChain>,
    worker: ToWorker,
    frontier: Frontier,
    /// Whether the inputs ended: nothing is minted above their last frontier.
    ended: bool,
    /// Whether the chain took anything of this rendering: what another replica moved does not mend this one.
    moved: bool,
    /// Descriptions that were minted and have no outcome yet.
    open: usize,
    /// By the lower of a description: how many workers have reported, and the errors of all of them.
    errors: BTreeMap<Frontier, (u32, Errors)>,
    /// What the workers were told last.
    told: (Frontier, Frontier),
    hold_asked: Option<Instant>,
    /// When the incarnation was last seen to be open.
    looked: Instant,
}

impl Minder {
    pub(crate) fn new(
        connection: Connection,
        chain: Chain,
        inbox: UnboundedReceiver<ToChain>,
        worker: ToWorker,
    ) -> Minder {
        Minder {
            moved: false,
            told: (connection.upper(), Frontier::MIN),
            connection,
            chain,
            inbox,
            worker,
            frontier: Frontier::MIN,
            ended: false,
            open: 0,
            errors: BTreeMap::new(),
            hold_asked: None,
            looked: Instant::now(),
        }
    }

    /// Minds the chain until it stops, and tells the workers why.
    pub(crate) async fn run(mut self) {
        let stop = match self.mind().await {
            Ok(stop) | Err(stop) => stop,
        };
        tracing::info!(sink = %self.connection.sink().name(), incarnation = %self.connection.incarnation(), ?stop, "stopped");
        if matches!(stop, Stop::Poisoned { .. } | Stop::Reopen(_) | Stop::Failed(_) | Stop::GoingAway) {
            self.connection.cancel();
            self.chain.close(&format!("{stop:?}")).await;
        }
        self.tell_chain().await;
        if !self.worker.send(Control::Stop { stop: stop.clone(), moved: self.moved }) {
            self.connection.goes_unheard();
        }
        self.connection.stop_with(&stop, self.moved);
    }

    async fn mind(&mut self) -> Result<Stop, Stop> {
        self.tell_chain().await;
        loop {
            if let Some(stop) = self.mint()? {
                return Ok(stop);
            }
            let look = LOOK_EVERY.saturating_sub(self.looked.elapsed());
            let wait = self.hold_due().map_or(look, |hold| hold.min(look));
            let news = tokio::select! {
                // First: a queue that ends may end because of it.
                biased;
                stop = self.connection.abandoned() => return Err(stop),
                news = self.inbox.recv() => news,
                () = tokio::time::sleep(wait) => {
                    self.tell_chain_if_due().await;
                    self.look_if_due().await?;
                    continue;
                }
            };
            let Some(news) = news else { return Err(Stop::Reopen("the dataflow was dropped".to_owned())) };
            self.take(news).await?;
            while let Ok(news) = self.inbox.try_recv() {
                self.take(news).await?;
            }
            while self.offer().await? {
                while let Ok(news) = self.inbox.try_recv() {
                    self.take(news).await?;
                }
                if let Some(stop) = self.mint()? {
                    return Ok(stop);
                }
                // Under load a batch is always waiting: who waits for the hold must not wait for the load to end.
                self.tell_chain_if_due().await;
            }
            self.tell_chain_if_due().await;
        }
    }

    async fn take(&mut self, news: ToChain) -> Result<(), Stop> {
        match news {
            ToChain::Frontier(frontier) => self.frontier = self.frontier.max(frontier),
            ToChain::Ended => self.ended = true,
            ToChain::Report(Report::Share { frame, errors }) => {
                let mut share: ShareMessage<OwnedParts> = match self.connection.arm(&frame) {
                    Ok(share) => share,
                    Err(error) => return Err(Stop::Reopen(format!("a share cannot be taken up: {error}"))),
                };
                let verdict = self.judge(share.description, errors);
                if let Ok(poisoned) = &verdict {
                    share.poisoned.clone_from(poisoned);
                }
                self.chain.merge(share).await.map_err(stop_for)?;
                verdict?;
            }
            ToChain::Report(Report::Failed(Failure::Passing(reason))) => return Err(Stop::Reopen(reason)),
            ToChain::Report(Report::Failed(Failure::Lasting(reason))) => return Err(Stop::Failed(reason)),
            ToChain::Report(Report::TokenDropped) => return Err(Stop::GoingAway),
        }
        Ok(())
    }

    /// The error of a description, once all workers have said theirs: the last share carries it.
    ///
    /// SUBTLE: no worker can tell by itself. Rows are not exchanged, and a row that does not fit its columns may come on one
    /// worker while it goes on another: then there is none of it, and no error either (I11).
    fn judge(&mut self, description: Description, errors: Errors) -> Result<Option<DataflowError>, Stop> {
        let (reported, all) = self.errors.entry(description.lower()).or_default();
        *reported += 1;
        all.merge(errors);
        if *reported < self.connection.workers() {
            return Ok(None);
        }
        let (_, all) = self.errors.remove(&description.lower()).unwrap_or_default();
        match all.verdict() {
            Verdict::None => Ok(None),
            Verdict::First(at, mut message) => {
                message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
                Ok(Some(DataflowError { at, message }))
            }
            Verdict::Unknown { from, before } => Err(stop_unknown(description, from, before)),
        }
    }

    /// Mints all that can be; a stop when nothing can follow and all has its outcome.
    fn mint(&mut self) -> Result<Option<Stop>, Stop> {
        loop {
            match self.chain.mint(self.frontier).map_err(stop_for)? {
                Mint::Minted(minted) => {
                    self.open += 1;
                    self.worker.send(Control::mint(minted));
                }
                Mint::NotYet => return Ok((self.ended && self.open == 0).then_some(Stop::Ended)),
                Mint::InFlight => return Ok(None),
                Mint::Complete => return Ok((self.open == 0).then_some(Stop::Complete)),
                Mint::Ended => return Ok((self.open == 0).then_some(Stop::Ended)),
            }
        }
    }

    /// Offers the next batch that is complete; `false` when none is.
    async fn offer(&mut self) -> Result<bool, Stop> {
        let mut waits = Waits::new(FIRST_WAIT, LAST_WAIT);
        loop {
            match self.chain.offer().await {
                Ok(None) => return Ok(false),
                Ok(Some(resolved)) => {
                    self.connection.resolved(&resolved);
                    self.moved |=
                        matches!(resolved.outcome, Some(Outcome::Accepted | Outcome::Trimmed { .. }));
                    self.open = self.open.saturating_sub(1);
                    // SUBTLE: only a poisoned chain stays behind what was offered. It would drop whatever else is offered,
                    // without an error, and the rendering would end as if all had been taken.
                    if resolved.upper < resolved.description.upper() {
                        return Err(self.stop_behind().await);
                    }
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Retry && waits.go_on() => {
                    tracing::info!(sink = %self.connection.sink().name(), %error, "offered again");
                    waits.wait().await;
                }
                Err(error) => return Err(stop_for(error)),
            }
        }
    }

    /// Why the chain does not go on.
    async fn stop_behind(&self) -> Stop {
        match self.connection.sink().head().await.map(|head| head.status) {
            Ok(HeadStatus::Poisoned(DataflowError { at, message })) => Stop::Poisoned { at, message },
            Ok(status) => Stop::Reopen(format!("the chain stays behind what was offered: it is {status:?}")),
            Err(error) => stop_for(error),
        }
    }

    /// How long until the workers are to be told how far the chain is. `None`: they know.
    fn hold_due(&self) -> Option<Duration> {
        if self.chain.known_upper() == self.told.0 {
            return None;
        }
        let asked = self.hold_asked.map_or(Duration::MAX, |asked| asked.elapsed());
        Some(HOLD_EVERY.saturating_sub(asked))
    }

    /// Looks whether the incarnation is still open. Offers would tell, but none is made while a worker's share is missing.
    async fn look_if_due(&mut self) -> Result<(), Stop> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        match self.closed().await {
            Ok(None) => Ok(()),
            // The drop of a sink closes all that is open.
            Ok(Some(HeadStatus::Dropped)) => Err(Stop::GoingAway),
            Ok(Some(_)) => Err(Stop::Reopen("the incarnation was closed".to_owned())),
            Err(error) if error.kind() == ErrorKind::Absent => Err(stop_for(error)),
            Err(error) => {
                tracing::info!(sink = %self.connection.sink().name(), %error, "whether the incarnation is open is not known");
                Ok(())
            }
        }
    }

    /// Where the chain is if the incarnation is closed; `None`: it is open.
    async fn closed(&self) -> stash::Result<Option<HeadStatus>> {
        let sink = self.connection.sink();
        let open = sink.open_incarnations().await?;
        if open.iter().any(|row| row.id == self.connection.incarnation()) {
            return Ok(None);
        }
        Ok(Some(sink.head().await?.status))
    }

    async fn tell_chain_if_due(&mut self) {
        if self.hold_due() == Some(Duration::ZERO) {
            self.tell_chain().await;
        }
    }

    async fn tell_chain(&mut self) {
        self.hold_asked = Some(Instant::now());
        let upper = self.chain.known_upper();
        let hold = self.connection.sink().read_hold().await.unwrap_or_else(|error| {
            tracing::info!(sink = %self.connection.sink().name(), %error, "the read hold is not known, and stays");
            self.told.1
        });
        self.told = (upper, hold);
        // Also where nothing is new: with the first word every worker has something to answer with.
        self.worker.send(Control::Chain { upper: upper.as_u64(), hold: hold.as_u64() });
    }
}

/// What it means that nobody knows whether a description has an error.
fn stop_unknown(description: Description, from: u64, before: bool) -> Stop {
    let reason = format!(
        "the updates of {description} have too many distinct dataflow errors from time {from} on, whether they cancel \
         out is not known: let errors that are alike have one message"
    );
    // Another rendering begins where the chain is: it is not asked for those that came before.
    if before { Stop::Reopen(reason) } else { Stop::Failed(reason) }
}

/// What an error of the chain means for the rendering.
fn stop_for(error: stash::Error) -> Stop {
    match error.kind() {
        ErrorKind::Retry | ErrorKind::Reopen => Stop::Reopen(error.to_string()),
        ErrorKind::Absent => Stop::GoingAway,
        _ => Stop::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_are_not_known_for_what_came_before_have_the_sink_rendered_again() {
        let description = Description::new(Frontier::at(200), Frontier::at(210)).expect("it has times");
        assert!(matches!(stop_unknown(description, 200, true), Stop::Reopen(_)));
        let Stop::Failed(reason) = stop_unknown(description, 205, false) else { panic!("for good") };
        assert!(reason.contains("from time 205 on") && reason.contains("one message"), "{reason}");
    }
}
