//! Cancelling futures: after so many polls, and at every poll there is.

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

/// More polls than any call of a small world takes: beyond it the call does not end.
const POLLS_MAX: usize = 10_000;

/// Cancels a call at every place where it waits: builds a fresh world, polls the call `k` times, drops it, and hands
/// the world on to be driven to its end and looked at, for `k` = 0, 1, 2, … until the call is ready before it is
/// dropped. Says how many polls that took.
///
/// A world whose operations yield ([`YieldingStore`](crate::YieldingStore),
/// [`YieldingCatalog`](crate::YieldingCatalog)) has a place to cancel at before and after each of them.
pub async fn cancel_at_every_poll<W, T>(
    make: impl AsyncFn() -> W,
    call: impl AsyncFn(&mut W) -> T,
    after_each_check: impl AsyncFn(W, Polled<T>),
) -> usize {
    for polls in 0..POLLS_MAX {
        let mut world = make().await;
        let polled = poll_times(call(&mut world), polls).await;
        let done = matches!(polled, Polled::Ready(_));
        after_each_check(world, polled).await;
        if done {
            return polls;
        }
    }
    panic!("the call is not ready after {POLLS_MAX} polls");
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_call_is_cut_off_once_at_each_place_where_it_waits() {
        let reached = RefCell::new(Vec::new());
        let call = async |steps: &mut u32| {
            for _ in 0..3 {
                yield_now().await;
                *steps += 1;
            }
            *steps
        };
        let check = async |steps, polled: Polled<u32>| reached.borrow_mut().push((steps, polled.ready()));
        let polls = cancel_at_every_poll(async || 0, call, check).await;
        assert_eq!(polls, 4);
        assert_eq!(reached.into_inner(), [(0, None), (0, None), (1, None), (2, None), (3, Some(3))]);
    }
}
