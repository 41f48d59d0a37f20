//! The token of a source: how far it is, how it ended, what it may acknowledge, and the end of it when dropped.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use stash::Frontier;
use tokio::{runtime::Handle, sync::watch, task::JoinSet};

use super::{
    Acknowledge, SourceOptions,
    acknowledge::acknowledge,
    read::{Outlet, Reading, read},
    uppers::Uppers,
};
use crate::{hold::Hold, rows::RowError};

/// Why a source failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The stash says why: [`stash::Error::kind`] tells what to do.
    #[error(transparent)]
    Stash(#[from] stash::Error),
    /// The chain's columns are not those of the rows.
    #[error(transparent)]
    Row(#[from] RowError),
    /// It failed on another worker, the one that reads.
    #[error("on worker {worker}: {what}")]
    Elsewhere {
        /// The worker that reads; its token has the error itself.
        worker: usize,
        /// The error there, in words.
        what: String,
    },
    /// The task that reads is gone without a word: the runtime was shut down, or it panicked.
    #[error("the task that reads sink {sink} ended early: keep its runtime until the dataflow is dropped")]
    Ended {
        /// The sink's name.
        sink: String,
    },
}

/// How a source ended, as its worker tells the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum End {
    Complete,
    Failed { worker: usize, what: String },
}

impl SourceError {
    pub(super) fn usage(what: String) -> SourceError {
        SourceError::Stash(stash::Error::InvalidUsage { what })
    }
}

/// How far a source is, as its token tells.
#[derive(Clone, Debug)]
pub enum SourceStatus {
    /// It reads. Everything below `frontier` was given out.
    Running {
        /// The capability's time.
        frontier: Frontier,
    },
    /// The chain is complete, and everything was given out.
    Complete,
    /// It ended early, and the collection stays open: drop the dataflow.
    Failed(Arc<SourceError>),
    /// The token or the dataflow was dropped.
    Stopped,
    /// Another worker reads. How that ends is told here as well.
    Elsewhere {
        /// Its index.
        worker: usize,
    },
}

impl SourceStatus {
    /// Whether nothing follows any more.
    pub fn is_over(&self) -> bool {
        !matches!(self, SourceStatus::Running { .. } | SourceStatus::Elsewhere { .. })
    }
}

/// What operator, tasks and token know of one source.
///
/// - The first end counts, and operator and tasks heed it at once.
/// - The token shows it once it was told to all workers: who drops the dataflow then takes nothing from them.
#[derive(Debug)]
pub(super) struct Shared {
    status: watch::Sender<SourceStatus>,
    end: watch::Sender<Option<SourceStatus>>,
    acknowledged: watch::Sender<Acknowledged>,
    uppers: Mutex<Uppers>,
    remembers: bool,
}

/// How far acknowledging is.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    upper: Frontier,
    ended: bool,
}

impl Shared {
    fn new(status: SourceStatus, remembers: bool) -> Shared {
        Shared {
            status: watch::Sender::new(status),
            end: watch::Sender::new(None),
            acknowledged: watch::Sender::new(Acknowledged { upper: Frontier::MIN, ended: false }),
            uppers: Mutex::default(),
            remembers,
        }
    }

    /// Everything below `upper`, a delivery's, was given out.
    pub(super) fn given_out(&self, upper: Frontier) {
        if self.remembers {
            self.uppers.lock().unwrap_or_else(PoisonError::into_inner).push(upper);
        }
        self.status.send_modify(|status| {
            if let SourceStatus::Running { frontier } = status {
                *frontier = upper.max(*frontier);
            }
        });
    }

    /// The largest upper given out that is not above `allowed`, once.
    pub(super) fn take_upper(&self, allowed: Frontier) -> Option<Frontier> {
        self.uppers.lock().unwrap_or_else(PoisonError::into_inner).take(allowed)
    }

    fn end(&self, end: SourceStatus) {
        self.end.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(end);
            first
        });
    }

    pub(super) fn fail(&self, error: SourceError) {
        tracing::warn!(%error, "a source failed; its collection stays open");
        self.end(SourceStatus::Failed(Arc::new(error)));
    }

    pub(super) fn complete(&self) {
        self.end(SourceStatus::Complete);
    }

    pub(super) fn stop(&self) {
        self.end(SourceStatus::Stopped);
        self.show();
    }

    /// Shows the end by the token, if there is one.
    fn show(&self) {
        let Some(end) = self.end.borrow().clone() else { return };
        self.status.send_if_modified(|status| {
            let first = !status.is_over();
            if first {
                *status = end;
            }
            first
        });
    }

    /// What all workers are told of the end: nothing where it was only stopped, for that is everybody's own.
    pub(super) fn to_tell(&self, worker: usize) -> Option<End> {
        match &*self.end.borrow() {
            Some(SourceStatus::Complete) => Some(End::Complete),
            Some(SourceStatus::Failed(error)) => Some(End::Failed { worker, what: error.to_string() }),
            _ => None,
        }
    }

    /// Takes what the worker that reads told all workers, itself included.
    pub(super) fn told(&self, end: End) {
        self.end(match end {
            End::Complete => SourceStatus::Complete,
            End::Failed { worker, what } => {
                SourceStatus::Failed(Arc::new(SourceError::Elsewhere { worker, what }))
            }
        });
        self.show();
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Waits for the end.
    pub(super) async fn over(&self) {
        let ended = self.end.subscribe().wait_for(Option::is_some).await.is_ok();
        debug_assert!(ended, "the sender is ours, and outlives this call");
    }

    /// Changes whenever something was given out.
    pub(super) fn watch(&self) -> watch::Receiver<SourceStatus> {
        self.status.subscribe()
    }

    pub(super) fn acknowledged(&self, upper: Frontier) {
        self.acknowledged.send_modify(|acknowledged| acknowledged.upper = upper);
    }

    pub(super) fn acknowledges_no_more(&self) {
        self.acknowledged.send_modify(|acknowledged| acknowledged.ended = true);
    }
}

/// One worker's hand on a source. Can be sent to, and asked from, other threads.
///
/// Dropped, it stops the source: nothing more is read, given out or acknowledged. The collection stays where it
/// is, and open; the capability goes with the dataflow, never before.
#[derive(Debug)]
#[must_use = "a source stops when its token is dropped"]
pub struct SourceToken {
    shared: Arc<Shared>,
    said: Hold,
    holds: Vec<Hold>,
    runtime: Handle,
    acknowledging: JoinSet<()>,
}

impl SourceToken {
    pub(super) fn new(options: &SourceOptions, elsewhere: Option<usize>) -> (SourceToken, Arc<Shared>) {
        let said = Hold::new();
        let holds = match &options.acknowledge {
            Acknowledge::Never => Vec::new(),
            Acknowledge::ByToken => vec![said.clone()],
            Acknowledge::Holds(holds) => holds.clone(),
        };
        let status = match elsewhere {
            Some(worker) => SourceStatus::Elsewhere { worker },
            None => SourceStatus::Running { frontier: Frontier::at(options.start.first()) },
        };
        let shared = Arc::new(Shared::new(status, !holds.is_empty()));
        let (runtime, acknowledging) = (options.runtime.clone(), JoinSet::new());
        (SourceToken { shared: Arc::clone(&shared), said, holds, runtime, acknowledging }, shared)
    }

    /// Starts the tasks: one that reads, which goes with the operator, and one that acknowledges, which goes
    /// with the token: the last acknowledgement comes after the operator is done.
    pub(super) fn begin(&mut self, reading: &mut JoinSet<()>, prepared: Reading, outlet: Outlet) {
        let (subscribed, subscription) = tokio::sync::oneshot::channel();
        reading.spawn_on(read(prepared, subscribed, outlet, Arc::clone(&self.shared)), &self.runtime);
        let (shared, holds) = (Arc::clone(&self.shared), self.holds.clone());
        self.acknowledging.spawn_on(acknowledge(subscription, holds, shared), &self.runtime);
    }

    /// How far the source is, or how it ended.
    pub fn status(&self) -> SourceStatus {
        self.shared.status.borrow().clone()
    }

    /// Waits until the status satisfies a condition, and gives it.
    pub async fn wait_for(&self, condition: impl FnMut(&SourceStatus) -> bool) -> SourceStatus {
        let mut watched = self.shared.watch();
        let found = watched.wait_for(condition).await.ok().map(|status| status.clone());
        // The sender is ours, and outlives this call.
        found.unwrap_or_else(|| self.status())
    }

    /// Says that everything below `frontier` is dealt with: the largest upper given out that is not above it is
    /// acknowledged soon, also an upper still to come. For [`Acknowledge::ByToken`]; else, and on workers that
    /// do not read, this does nothing.
    pub fn acknowledge(&self, frontier: Frontier) {
        self.said.raise(frontier);
    }

    /// Everything below was acknowledged by this source's consumer, now or in an earlier session.
    pub fn acknowledged(&self) -> Frontier {
        self.shared.acknowledged.borrow().upper
    }

    /// Waits until everything below `frontier` was acknowledged; `false` when it will not be, because
    /// acknowledging ended: there is no consumer, or the status tells why. It ends neither with the dataflow
    /// nor with a failure to read, since holds may still rise, so this may wait for what is never given out.
    pub async fn wait_acknowledged(&self, frontier: Frontier) -> bool {
        let mut watched = self.shared.acknowledged.subscribe();
        let done = watched.wait_for(|known| known.upper >= frontier || known.ended).await;
        done.is_ok_and(|known| known.upper >= frontier)
    }
}

impl Drop for SourceToken {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_can_be_sent_and_shared_between_threads() {
        fn is_send_and_sync<T: Send + Sync>() {}
        is_send_and_sync::<SourceToken>();
    }

    #[test]
    fn the_first_end_counts_and_is_shown_once_it_was_told() {
        let shared = Shared::new(SourceStatus::Running { frontier: Frontier::MIN }, true);
        shared.fail(SourceError::usage("first".to_owned()));
        shared.complete();
        shared.given_out(Frontier::at(3));
        assert!(shared.is_over());
        let shown = shared.status.borrow().clone();
        assert!(
            matches!(shown, SourceStatus::Running { frontier } if frontier == Frontier::at(3)),
            "{shown:?}"
        );
        shared.told(shared.to_tell(0).expect("it failed"));
        shared.stop();
        let shown = shared.status.borrow().clone();
        assert!(matches!(&shown, SourceStatus::Failed(error) if error.to_string() == "first"), "{shown:?}");
    }
}
