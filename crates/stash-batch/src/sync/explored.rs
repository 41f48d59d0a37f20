//! What [`sync`](super) is under the explorer, where the explorer has nothing of the kind.
//!
//! - A [`JoinSet`] keeps tasks of the explorer, and ends them with their owner, as tokio's does.
//! - [`Notify`] is tokio's, with a point before each call at which another task may go on.
//! - Time does not pass: a [`timeout`] never fires and a [`sleep`] is one turn of the others. What comes only by
//!   waiting long enough does not come at all, so a wake-up that is lost shows as a deadlock.
//! - Blocking work is done in place.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use shuttle::{
    future::{JoinError, JoinHandle, spawn},
    sync::atomic::{AtomicBool, Ordering},
};

/// Lets the explorer choose who goes on, here.
fn point() {
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Waits for one turn of the others: a place where a task can be ended.
pub(crate) async fn pause() {
    let mut paused = false;
    poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Takes no time, and lets others go on.
pub(crate) async fn sleep(_: Duration) {
    pause().await;
}

/// Waits for ever: time does not pass.
pub(crate) async fn timeout<F: Future>(_: Duration, work: F) -> Result<F::Output, JoinError> {
    Ok(work.await)
}

/// Works in place.
pub(crate) async fn spawn_blocking<T>(work: impl FnOnce() -> T) -> Result<T, JoinError> {
    pause().await;
    Ok(work())
}

/// Wakes tasks.
#[derive(Debug, Default)]
pub(crate) struct Notify(tokio::sync::Notify);

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify::default()
    }

    pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        point();
        self.0.notified()
    }

    pub(crate) fn notify_waiters(&self) {
        point();
        self.0.notify_waiters();
    }

    pub(crate) fn notify_one(&self) {
        point();
        self.0.notify_one();
    }
}

/// Tasks that end with their owner.
pub(crate) struct JoinSet<T> {
    tasks: Vec<JoinHandle<T>>,
}

impl<T> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet { tasks: Vec::new() }
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.tasks.len()).finish()
    }
}

impl<T: Send + 'static> JoinSet<T> {
    pub(crate) fn new() -> JoinSet<T> {
        JoinSet::default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.tasks.push(spawn(work));
    }

    fn poll_joined(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        for place in 0..self.tasks.len() {
            if let Poll::Ready(joined) = Pin::new(&mut self.tasks[place]).poll(context) {
                drop(self.tasks.swap_remove(place));
                return Poll::Ready(Some(joined));
            }
        }
        if self.tasks.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }

    pub(crate) fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        match self.poll_joined(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(joined) => joined,
            Poll::Pending => None,
        }
    }

    pub(crate) async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|context| self.poll_joined(context)).await
    }

    pub(crate) async fn shutdown(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        while self.join_next().await.is_some() {}
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
