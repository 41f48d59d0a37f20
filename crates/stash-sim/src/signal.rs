//! A value that many wait for, woken in the order in which they came.
//!
//! Tokio's own watch channel spreads its waiters over several lists that it draws at random: who waits there is woken in
//! another order each time, and a seed would not replay.

use std::sync::Mutex;

use tokio::sync::Notify;

use crate::world::lock;

/// A value to wait for.
#[derive(Debug)]
pub(crate) struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy + PartialEq> Signal<T> {
    /// A signal that stands at `value`.
    pub(crate) fn new(value: T) -> Signal<T> {
        Signal { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Where it stands.
    pub(crate) fn get(&self) -> T {
        *lock(&self.value)
    }

    /// Makes of the value what `turn` says, and wakes who waits if that is another.
    pub(crate) fn turn(&self, turn: impl FnOnce(T) -> T) {
        let mut value = lock(&self.value);
        let (before, after) = (*value, turn(*value));
        *value = after;
        drop(value);
        if before != after {
            self.changed.notify_waiters();
        }
    }

    /// Returns once the value is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(T) -> bool) {
        loop {
            // SUBTLE: registered before the value is looked at, else a change in between would be missed for ever.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if wanted(self.get()) {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn who_waits_is_woken_by_the_value_it_wants() {
        let signal = Signal::new(1);
        let mut waiting = Box::pin(signal.until(|value| value >= 3));
        assert!(poll!(&mut waiting).is_pending());
        signal.turn(|value| value + 1);
        assert!(poll!(&mut waiting).is_pending());
        signal.turn(|value| value + 1);
        waiting.await;
        assert_eq!(signal.get(), 3);
    }
}
