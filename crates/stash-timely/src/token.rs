//! What a worker keeps of a sink in its dataflow.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use stash::Frontier;
use timely::scheduling::Activator;

use crate::{Connection, Hold, Stop};

/// How a sink is doing, as a worker's token sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkStatus {
    /// It writes.
    Running,
    /// It stopped, on all workers for the same reason.
    Stopped(Stop),
}

/// What a worker holds of updates that are not yet written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldUse {
    /// Arrangement batches that wait for their description.
    pub batches: usize,
    /// Updates in these.
    pub updates: usize,
    /// Distinct errors of the dataflow that wait for their description: a thousand at most.
    pub errors: usize,
    /// Bytes of their messages: a MiB at most, or one message.
    pub error_bytes: usize,
    /// Updates in batches that this process's scans in the background still read.
    pub scanning: usize,
    /// Updates that the worker has let go of, and whose rows it has not all freed yet. It does so also once the sink has
    /// stopped; what is left when the dataflow is dropped is freed on another thread.
    pub freeing: usize,
}

/// Tells what a worker holds, and the worker what it cannot see.
#[derive(Clone, Debug)]
pub struct HeldWatch {
    connection: Connection,
    worker: Arc<WorkerState>,
}

impl HeldWatch {
    /// Has the sink rendered again, for a reason that it cannot see: a source that failed, say, and whose collection stays
    /// empty and open. The operator learns of it when it is next activated, or within a second.
    pub fn reopen(&self, reason: impl Into<String>) {
        *self.worker.reopen.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.into());
    }

    /// What it holds now.
    pub fn held(&self) -> HeldUse {
        HeldUse {
            batches: self.worker.batches.load(Ordering::Relaxed),
            updates: self.worker.updates.load(Ordering::Relaxed),
            errors: self.worker.errors.load(Ordering::Relaxed),
            error_bytes: self.worker.error_bytes.load(Ordering::Relaxed),
            scanning: self.connection.scanning(),
            freeing: self.worker.freeing.load(Ordering::Relaxed),
        }
    }
}

/// A worker's hold on its part of a sink.
///
/// While it lives the sink writes. Dropping it on any worker stops the sink on all of them: what was written and not
/// handed over is deleted, what was accepted stays; the chain does not complete, and another rendering goes on from
/// where it stands. [`SinkToken::detach`] leaves the sink to its dataflow instead.
///
/// A dataflow is dropped once the sink has stopped, and alike on all workers: timely takes progress no further where one
/// worker lacks it. Should a worker drop its dataflow before, with the token or without, the sink stops too, and the
/// workers of its process and of the minting worker's are told; so are all others, unless it is the minting worker itself
/// that has none any more: then there is nobody who could, and those of other processes stay as they are.
#[must_use = "dropping the token stops the sink: keep it, or detach it"]
#[derive(Debug)]
pub struct SinkToken {
    connection: Connection,
    worker: Arc<WorkerState>,
    /// Wakes the operator, so that it sees that this was dropped. `None` once detached.
    activator: Option<Activator>,
}

/// What an operator and the token of its worker share.
#[derive(Debug, Default)]
pub(crate) struct WorkerState {
    pub(crate) dropped: AtomicBool,
    pub(crate) stopped: AtomicBool,
    /// Why the sink has to be rendered again, said from outside.
    pub(crate) reopen: Mutex<Option<String>>,
    pub(crate) batches: AtomicUsize,
    pub(crate) updates: AtomicUsize,
    pub(crate) errors: AtomicUsize,
    pub(crate) error_bytes: AtomicUsize,
    pub(crate) freeing: AtomicUsize,
}

impl SinkToken {
    pub(crate) fn new(connection: &Connection, worker: &Arc<WorkerState>, activator: Activator) -> SinkToken {
        SinkToken { connection: connection.clone(), worker: Arc::clone(worker), activator: Some(activator) }
    }

    /// How the sink is doing. It is `Stopped` only once this worker's operator has been told, unless nothing is left that
    /// could tell it.
    pub fn status(&self) -> SinkStatus {
        match self.connection.stop() {
            Some(stop) if self.worker.stopped.load(Ordering::Acquire) || self.connection.is_unheard() => {
                SinkStatus::Stopped(stop.clone())
            }
            _ => SinkStatus::Running,
        }
    }

    /// `U`, the chain's upper, as far as it is known here; told a few times a second.
    pub fn upper(&self) -> Frontier {
        self.connection.upper()
    }

    /// The frontier up to which the inputs have to keep their history (I10). The caller's compaction of what it renders
    /// from may follow it, and no further.
    pub fn hold(&self) -> &Hold {
        self.connection.hold()
    }

    /// What this worker holds.
    pub fn held(&self) -> HeldUse {
        self.watch().held()
    }

    /// Tells what this worker holds, without holding the sink: for whoever feeds its input.
    pub fn watch(&self) -> HeldWatch {
        HeldWatch { connection: self.connection.clone(), worker: Arc::clone(&self.worker) }
    }

    /// The rendering it belongs to.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Asks the sink to stop on all workers, as a drop of the token does; [`SinkToken::status`] tells when it has.
    pub fn stop(&self) {
        self.worker.dropped.store(true, Ordering::Release);
        if let Some(activator) = &self.activator {
            activator.activate();
        }
    }

    /// Lets the sink write until its dataflow ends, without a token.
    pub fn detach(mut self) {
        self.activator = None;
    }
}

impl Drop for SinkToken {
    fn drop(&mut self) {
        if self.activator.is_some() {
            self.stop();
        }
    }
}
