//! Who watches a request until it has ended, and the answer's body until it was read.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};
use tokio::time::{Instant, Sleep};

use crate::{Request, RequestEnd, RequestObserver, RequestOp};

/// Tells the observer of one request when it is dropped: then it has ended.
pub(crate) struct Watch {
    pub(crate) observer: Arc<dyn RequestObserver>,
    pub(crate) op: RequestOp,
    pub(crate) key: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) end: RequestEnd,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) started: Instant,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Watch { observer, op, key, attempt, end, sent, received, started } = self;
        observer.ended(&Request {
            op: *op,
            key,
            attempt: *attempt,
            end: *end,
            sent: *sent,
            received: *received,
            elapsed: started.elapsed(),
        });
    }
}

/// An answer's body that fails when its next bytes do not come, however long the whole of it may take.
///
/// The time in which nobody asks for them does not count: a slow reader is no stalled store.
pub(crate) struct WatchedBody {
    inner: HttpResponseBody,
    watch: Watch,
    status: u16,
    stall_timeout: Duration,
    /// Runs while somebody waits.
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

/// A body whose next bytes did not come.
#[derive(Debug, thiserror::Error)]
#[error("the answer stalled for {} s", .0.as_secs())]
pub(crate) struct Stalled(pub(crate) Duration);

impl WatchedBody {
    pub(crate) fn new(
        inner: HttpResponseBody,
        mut watch: Watch,
        status: u16,
        stall_timeout: Duration,
    ) -> Self {
        // Nobody reads the body of what has none, or of what only its head matters.
        let matters = matches!(watch.op, RequestOp::Get | RequestOp::List);
        watch.end = if inner.is_end_stream() || !matters {
            RequestEnd::Status(status)
        } else {
            RequestEnd::Cancelled
        };
        let deadline = Box::pin(tokio::time::sleep(stall_timeout));
        WatchedBody { inner, watch, status, stall_timeout, deadline, waiting: false }
    }
}

impl fmt::Debug for WatchedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedBody").field("op", &self.watch.op).finish_non_exhaustive()
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        if polled.is_pending() {
            if !this.waiting {
                this.waiting = true;
                this.deadline.as_mut().reset(Instant::now() + this.stall_timeout);
            }
            ready!(this.deadline.as_mut().poll(cx));
            this.watch.end = RequestEnd::TimedOut;
            let stalled = HttpError::new(HttpErrorKind::Timeout, Stalled(this.stall_timeout));
            return Poll::Ready(Some(Err(stalled)));
        }
        this.waiting = false;
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                this.watch.received += frame.data_ref().map_or(0, |data| data.len() as u64);
                if this.inner.is_end_stream() {
                    this.watch.end = RequestEnd::Status(this.status);
                }
            }
            Poll::Ready(Some(Err(_))) => this.watch.end = RequestEnd::Broken,
            Poll::Ready(None) => this.watch.end = RequestEnd::Status(this.status),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
