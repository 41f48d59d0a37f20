//! The ledger: every key this process PUT or took over, until it is certain that somebody else owns it.
//!
//! A key enters before its first byte is sent, so a PUT whose outcome nobody learned is still known. It
//! leaves when the chain references it or the deletion queue holds it. What is left when the process closes
//! is queued for deletion, and the catalog passes over what a row references (I14, I15).

use std::collections::BTreeMap;

use stash_types::{PartKey, SinkId};

use crate::sync::{Mutex, MutexGuard, Notify, PoisonError};

/// What a process is responsible for.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    surrendered: Notify,
}

#[derive(Debug, Default)]
struct State {
    keys: BTreeMap<PartKey, Entry>,
    closing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    sink: SinkId,
    surrendered: bool,
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes responsibility for `key`.
    pub(crate) fn enter(&self, sink: SinkId, key: PartKey) {
        let mut state = self.state();
        // SUBTLE: a share that is armed while the process closes takes up a key that was given up already. It stays
        // given up: else closing would pass over it, and nobody would be left to delete it.
        let surrendered = state.closing;
        state.keys.insert(key, Entry { sink, surrendered });
    }

    /// Somebody else owns these for certain: the chain, or the deletion queue.
    pub(crate) fn settle<'a>(&self, keys: impl IntoIterator<Item = &'a PartKey>) {
        let mut state = self.state();
        for key in keys {
            state.keys.remove(key);
        }
    }

    /// Gives these up: they are to be queued for deletion. A key that was settled stays settled.
    pub(crate) fn surrender(&self, keys: impl IntoIterator<Item = PartKey>) {
        let mut any = false;
        let mut state = self.state();
        for key in keys {
            if let Some(entry) = state.keys.get_mut(&key) {
                entry.surrendered = true;
                any = true;
            }
        }
        drop(state);
        if any {
            self.surrendered.notify_one();
        }
    }

    /// Gives up everything, and what is entered from now on.
    pub(crate) fn surrender_all(&self) {
        let mut state = self.state();
        state.closing = true;
        for entry in state.keys.values_mut() {
            entry.surrendered = true;
        }
    }

    /// What was given up and is not queued yet, by sink.
    pub(crate) fn given_up(&self) -> BTreeMap<SinkId, Vec<PartKey>> {
        let mut by_sink: BTreeMap<SinkId, Vec<PartKey>> = BTreeMap::new();
        for (key, entry) in &self.state().keys {
            if entry.surrendered {
                by_sink.entry(entry.sink).or_default().push(*key);
            }
        }
        by_sink
    }

    /// How many keys are entered.
    pub(crate) fn len(&self) -> usize {
        self.state().keys.len()
    }

    /// Waits until something was given up.
    pub(crate) async fn wait(&self) {
        self.surrendered.notified().await;
    }

    /// Wakes the one who waits.
    pub(crate) fn wake(&self) {
        self.surrendered.notify_one();
    }
}
