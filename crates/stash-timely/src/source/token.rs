//! The token of a source: how far it is, how it ended, what it may acknowledge, and the end of it when dropped.

use std::sync::{Arc, Mutex, PoisonError};

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
    /// The task that reads is gone without a word: the runtime was shut down, or it panicked.
    #[error("the task that reads sink {sink} ended early: keep its runtime until the dataflow is dropped")]
    Ended {
        /// The sink's name.
        sink: String,
    },
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
    /// Another worker reads.
    Elsewhere {
        /// Its index.
        worker: usize,
    },
}

impl SourceStatus {
    /// Whether nothing follows any more on this worker.
    pub fn is_over(&self) -> bool {
        !matches!(self, SourceStatus::Running { .. })
    }
}

/// What operator, tasks and token know of one source.
#[derive(Debug)]
pub(super) struct Shared {
    status: watch::Sender<SourceStatus>,
    acknowledged: watch::Sender<Frontier>,
    uppers: Mutex<Uppers>,
    remembers: bool,
}

impl Shared {
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

    /// The first end is the one that counts.
    fn end(&self, end: SourceStatus) {
        self.status.send_if_modified(|status| {
            let first = !status.is_over();
            if first {
                *status = end;
            }
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
    }

    pub(super) fn is_over(&self) -> bool {
        self.status.borrow().is_over()
    }

    pub(super) fn watch(&self) -> watch::Receiver<SourceStatus> {
        self.status.subscribe()
    }

    pub(super) fn acknowledged(&self, upper: Frontier) {
        self.acknowledged.send_replace(upper);
    }
}

/// One worker's hand on a source. Can be sent to, and asked from, other threads.
///
/// Dropped, it stops the source: nothing more is read, given out or acknowledged. The collection stays where it is, and
/// open; the capability goes with the dataflow, never before.
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
        let shared = Arc::new(Shared {
            status: watch::Sender::new(status),
            acknowledged: watch::Sender::new(Frontier::MIN),
            uppers: Mutex::default(),
            remembers: !holds.is_empty(),
        });
        let (runtime, acknowledging) = (options.runtime.clone(), JoinSet::new());
        (SourceToken { shared: Arc::clone(&shared), said, holds, runtime, acknowledging }, shared)
    }

    /// Starts the tasks: one that reads, which goes with the operator, and one that acknowledges, which goes with the
    /// token: the last acknowledgement comes after the operator is done.
    pub(super) fn begin(&mut self, reading: &mut JoinSet<()>, prepared: Reading, outlet: Outlet) {
        let (subscribed, subscription) = tokio::sync::oneshot::channel();
        reading.spawn_on(read(prepared, subscribed, outlet, self.shared.watch()), &self.runtime);
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
    /// acknowledged soon, also an upper still to come. For [`Acknowledge::ByToken`]; else, and on workers that do not read, this does
    /// nothing.
    pub fn acknowledge(&self, frontier: Frontier) {
        self.said.raise(frontier);
    }

    /// Everything below was acknowledged by this source.
    pub fn acknowledged(&self) -> Frontier {
        *self.shared.acknowledged.borrow()
    }

    /// Waits until everything below `frontier` was acknowledged by this source.
    pub async fn wait_acknowledged(&self, frontier: Frontier) {
        let mut watched = self.shared.acknowledged.subscribe();
        let reached = watched.wait_for(|acknowledged| *acknowledged >= frontier).await.is_ok();
        debug_assert!(reached, "the sender is ours, and outlives this call");
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

    fn shared() -> Shared {
        Shared {
            status: watch::Sender::new(SourceStatus::Running { frontier: Frontier::MIN }),
            acknowledged: watch::Sender::new(Frontier::MIN),
            uppers: Mutex::default(),
            remembers: true,
        }
    }

    #[test]
    fn the_first_end_counts() {
        let shared = shared();
        shared.fail(SourceError::usage("first".to_owned()));
        shared.complete();
        shared.stop();
        shared.given_out(Frontier::at(3));
        assert!(
            matches!(&*shared.status.borrow(), SourceStatus::Failed(error) if error.to_string() == "first")
        );
    }
}
