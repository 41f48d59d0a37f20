//! Gates: operations are held until the test lets them go.
//!
//! A test acts "while a PUT is in flight" by holding it, waiting until it stands at the gate, acting, and
//! releasing it. No clock is involved. A gate that is dropped is open, so a failing test does not hang.

use std::sync::Arc;

use tokio::sync::watch;

/// Where an operation is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before it has any effect.
    Before,
    /// After its effect, before its caller hears of it.
    After,
}

/// The test's side of a gate.
#[derive(Debug)]
#[must_use = "a gate that is dropped is open"]
pub struct Gate {
    state: Arc<GateState>,
}

/// The store's side of a gate.
#[derive(Debug)]
pub(crate) struct GateState {
    kind: &'static str,
    point: Point,
    key: Option<String>,
    open: watch::Sender<bool>,
    held: watch::Sender<usize>,
}

impl Gate {
    /// A gate for operations of this kind, all or those on one key.
    pub(crate) fn new(kind: &'static str, point: Point, key: Option<String>) -> (Gate, Arc<GateState>) {
        let (open, held) = (watch::Sender::new(false), watch::Sender::new(0));
        let state = Arc::new(GateState { kind, point, key, open, held });
        (Gate { state: Arc::clone(&state) }, state)
    }

    /// Waits until at least `count` operations stand at the gate.
    pub async fn wait_held(&self, count: usize) {
        let mut held = self.state.held.subscribe();
        // The sender lives in `self`, so the wait ends only by the count.
        let _ = held.wait_for(|held| *held >= count).await;
    }

    /// How many operations stand at the gate.
    pub fn held(&self) -> usize {
        *self.state.held.borrow()
    }

    /// Lets all go, and holds nothing more.
    pub fn release(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.state.open.send_replace(true);
    }
}

impl GateState {
    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    pub(crate) fn concerns(&self, kind: &str, point: Point, key: &str) -> bool {
        let fits = self.key.as_ref().is_none_or(|wanted| wanted == key);
        self.kind == kind && self.point == point && fits && !self.is_open()
    }

    /// Stands at the gate until it opens. A cancelled operation leaves it.
    pub(crate) async fn pass(self: Arc<Self>) {
        struct Standing<'a>(&'a GateState);
        impl Drop for Standing<'_> {
            fn drop(&mut self) {
                self.0.held.send_modify(|held| *held -= 1);
            }
        }
        let mut open = self.open.subscribe();
        self.held.send_modify(|held| *held += 1);
        let _standing = Standing(&self);
        let _ = open.wait_for(|open| *open).await;
    }
}
