//! Requests as the server sees them: each try, each page, each piece of an upload.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use metrics::{Counter, Histogram};
use stash_blob::{Request, RequestEnd, RequestObserver, RequestOp};
use stash_types::BlobKey;

use super::{
    Meters,
    list::{HTTP_DURATION, HTTP_RECEIVED, HTTP_REQUESTS, HTTP_RETRIES, HTTP_SENT},
    requests::{BlobOp, RequestCounts},
};

const OPS: [RequestOp; 12] = [
    RequestOp::Put,
    RequestOp::CreateUpload,
    RequestOp::UploadPart,
    RequestOp::CompleteUpload,
    RequestOp::AbortUpload,
    RequestOp::Get,
    RequestOp::Head,
    RequestOp::Delete,
    RequestOp::BulkDelete,
    RequestOp::List,
    RequestOp::ListUploads,
    RequestOp::Other,
];

/// How a request ended, as a label: the class of its status, or why there is none.
const ENDS: [&str; 9] = ["1xx", "2xx", "3xx", "4xx", "5xx", "unsent", "timed_out", "broken", "cancelled"];

fn end_word(end: RequestEnd) -> &'static str {
    match end {
        RequestEnd::Status(100..=199) => "1xx",
        RequestEnd::Status(200..=299) => "2xx",
        RequestEnd::Status(300..=399) => "3xx",
        RequestEnd::Status(400..=499) => "4xx",
        RequestEnd::Status(_) => "5xx",
        RequestEnd::Unsent => "unsent",
        RequestEnd::TimedOut => "timed_out",
        RequestEnd::Broken => "broken",
        RequestEnd::Cancelled => "cancelled",
    }
}

/// What such a request is paid as. Only what reached the server is.
fn paid_as(request: &Request<'_>) -> Option<BlobOp> {
    if request.end == RequestEnd::Unsent {
        return None;
    }
    match request.op {
        RequestOp::Put | RequestOp::CreateUpload | RequestOp::UploadPart | RequestOp::CompleteUpload => {
            Some(BlobOp::Put)
        }
        RequestOp::Get => Some(BlobOp::Get),
        RequestOp::Head => Some(BlobOp::Head),
        RequestOp::List | RequestOp::ListUploads => Some(BlobOp::List),
        RequestOp::Delete | RequestOp::BulkDelete => Some(BlobOp::Delete),
        RequestOp::AbortUpload => Some(BlobOp::Abort),
        RequestOp::Other => None,
    }
}

/// The handles of one operation for one sink; made when it first ends so.
#[derive(Default)]
struct OpMeters {
    ends: [OnceLock<Counter>; ENDS.len()],
    rest: OnceLock<Rest>,
}

struct Rest {
    retries: Counter,
    sent: Counter,
    received: Counter,
    duration: Histogram,
}

/// What is measured of a sink's requests.
#[derive(Default)]
pub(super) struct HttpMeters {
    ops: [OpMeters; OPS.len()],
    pub(super) counts: RequestCounts,
}

impl HttpMeters {
    fn ended(&self, sink: &str, request: &Request<'_>) {
        let place = |of: RequestOp| OPS.iter().position(|op| *op == of);
        if let Some(of) = place(request.op).and_then(|place| self.ops.get(place)) {
            let op = request.op.name();
            let end = end_word(request.end);
            if let Some(counter) = ENDS.iter().position(|word| *word == end).and_then(|at| of.ends.get(at)) {
                counter.get_or_init(|| HTTP_REQUESTS.counter(&[op, sink, end])).increment(1);
            }
            let rest = of.rest.get_or_init(|| Rest {
                retries: HTTP_RETRIES.counter(&[op, sink]),
                sent: HTTP_SENT.counter(&[op, sink]),
                received: HTTP_RECEIVED.counter(&[op, sink]),
                duration: HTTP_DURATION.histogram(&[op]),
            });
            rest.retries.increment(u64::from(request.attempt > 1));
            rest.sent.increment(request.sent);
            rest.received.increment(request.received);
            rest.duration.record(request.elapsed);
        }
        if let Some(op) = paid_as(request) {
            self.counts.add(op, 1);
            match op {
                BlobOp::Put => self.counts.add_bytes(op, request.sent),
                BlobOp::Get => self.counts.add_bytes(op, request.received),
                BlobOp::Head | BlobOp::List | BlobOp::Delete | BlobOp::Abort => {}
            }
        }
    }
}

/// Whether anybody told of requests: a local store has none.
#[derive(Default)]
pub(super) struct Heard(AtomicBool);

impl Heard {
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl RequestObserver for Meters {
    fn ended(&self, request: &Request<'_>) {
        self.shared.heard.0.store(true, Ordering::Relaxed);
        let key: Option<BlobKey> = request.key.parse().ok();
        let sink = match &key {
            Some(key) => self.of_key(key),
            None => self.none(),
        };
        sink.http.ended(sink.name(), request);
    }
}
