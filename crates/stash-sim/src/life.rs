//! The life of a simulated process: it runs, stands still, or is dead.
//!
//! A process acts on the world only through its handles on store, catalog and network, and each call of them passes
//! [`Life::gate`]: whoever stands still waits there, whoever is dead waits for ever. So a process can be stopped
//! between any two steps and go on much later as if nothing had happened, and a dead one does nothing more, although
//! its memory is still there.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::signal::Signal;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Runs,
    StandsStill,
    Dead,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Life {
    name: String,
    state: Signal<State>,
    /// It dies at this call of a handle, counted down; 0 for never.
    doom: AtomicU64,
}

impl Life {
    /// A process that runs.
    pub(crate) fn new(name: impl Into<String>) -> Life {
        Life { name: name.into(), state: Signal::new(State::Runs), doom: AtomicU64::new(0) }
    }

    /// Its name, for the history.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is dead.
    pub(crate) fn is_dead(&self) -> bool {
        self.state.get() == State::Dead
    }

    /// Lets it die at its `calls`-th call from now on.
    pub(crate) fn doom(&self, calls: u64) {
        self.doom.store(calls, Ordering::Release);
    }

    /// Kills it, for good.
    pub(crate) fn die(&self) {
        self.state.turn(|_| State::Dead);
    }

    /// Makes it stand still, unless it is dead.
    pub(crate) fn stand_still(&self) {
        self.turn(State::StandsStill);
    }

    /// Lets it go on, unless it is dead.
    pub(crate) fn go_on(&self) {
        self.turn(State::Runs);
    }

    fn turn(&self, into: State) {
        self.state.turn(|state| if state == State::Dead { state } else { into });
    }

    /// Counts a call, at which it may die.
    pub(crate) fn count_call(&self) {
        let counted = self.doom.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        if counted == Ok(1) {
            self.die();
        }
    }

    /// Returns while it runs; waits while it stands still, and for ever once it is dead.
    pub(crate) async fn gate(&self) {
        self.state.until(|state| state != State::StandsStill).await;
        if self.is_dead() {
            std::future::pending().await
        }
    }

    /// Returns when it is dead.
    pub(crate) async fn died(&self) {
        self.state.until(|state| state == State::Dead).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn who_stands_still_waits_at_the_gate_and_who_is_dead_never_passes_it() {
        let life = Life::new("p");
        life.gate().await;
        life.stand_still();
        let mut waiting = Box::pin(life.gate());
        assert!(poll!(&mut waiting).is_pending());
        life.go_on();
        assert!(poll!(&mut waiting).is_ready());
        life.doom(2);
        life.count_call();
        assert!(life.gate().now_or_never().is_some());
        life.count_call();
        life.go_on();
        assert!(life.gate().now_or_never().is_none() && life.is_dead());
        life.died().await;
    }
}
