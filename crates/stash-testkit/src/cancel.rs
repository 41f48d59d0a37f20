//! Cancelling a future after so many polls.

use std::{future::Future, pin::pin, task::Poll};

use futures::{FutureExt, future::poll_fn};

/// What became of a future that was polled only so often.
#[derive(Debug)]
pub enum Polled<T> {
    /// It was ready in time.
    Ready(T),
    /// It was dropped pending.
    Cancelled,
}

impl<T> Polled<T> {
    /// What it gave, if it was ready.
    pub fn ready(self) -> Option<T> {
        match self {
            Polled::Ready(value) => Some(value),
            Polled::Cancelled => None,
        }
    }
}

/// Polls `future` at most `polls` times, each time after it was woken, and drops it then.
pub async fn poll_times<F: Future>(future: F, polls: usize) -> Polled<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(Polled::Cancelled);
        }
        left -= 1;
        match future.poll_unpin(context) {
            Poll::Ready(value) => Poll::Ready(Polled::Ready(value)),
            // The last poll is not waited for: that is the cancel.
            Poll::Pending if left == 0 => Poll::Ready(Polled::Cancelled),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
