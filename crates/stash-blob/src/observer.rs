//! Who is told of each request that a store makes.
//!
//! A store that speaks to a server tells a [`RequestObserver`] of every request, once its answer has been read to the end
//! or given up: which operation, how it ended, how many bytes, how long. Metrics count by it, and tests check that nothing
//! is asked that need not be.

use std::{fmt, time::Duration};

/// What a request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestOp {
    /// Creates an object.
    Put,
    /// Begins an upload of several requests.
    CreateUpload,
    /// Sends one piece of an upload.
    UploadPart,
    /// Publishes an upload.
    CompleteUpload,
    /// Abandons an upload.
    AbortUpload,
    /// Reads an object, or a range of it.
    Get,
    /// Reads an object's length.
    Head,
    /// Deletes one object.
    Delete,
    /// Deletes many objects.
    BulkDelete,
    /// Lists one page of objects.
    List,
    /// Lists one page of uploads.
    ListUploads,
    /// Something else.
    Other,
}

impl RequestOp {
    /// A name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            RequestOp::Put => "put",
            RequestOp::CreateUpload => "create_upload",
            RequestOp::UploadPart => "upload_part",
            RequestOp::CompleteUpload => "complete_upload",
            RequestOp::AbortUpload => "abort_upload",
            RequestOp::Get => "get",
            RequestOp::Head => "head",
            RequestOp::Delete => "delete",
            RequestOp::BulkDelete => "bulk_delete",
            RequestOp::List => "list",
            RequestOp::ListUploads => "list_uploads",
            RequestOp::Other => "other",
        }
    }
}

impl fmt::Display for RequestOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// The server answered with this status, and its answer was read to the end.
    Status(u16),
    /// No connection was made, so nothing was sent.
    Unsent,
    /// It was sent, and took too long to be answered.
    TimedOut,
    /// It was sent, and its connection failed.
    Broken,
    /// Whoever asked stopped waiting.
    Cancelled,
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What it asked for.
    pub op: RequestOp,
    /// The object's key below the store's prefix; empty for requests that concern none, or many.
    pub key: &'a str,
    /// Which try of its operation it was, from 1; what is above 1 is a retry.
    pub attempt: u32,
    /// How it ended.
    pub end: RequestEnd,
    /// Bytes of the body that was sent.
    pub sent: u64,
    /// Bytes of the body that was received.
    pub received: u64,
    /// From its first byte to its end.
    pub elapsed: Duration,
}

/// Is told of each request. It is called where requests are made, so it must be quick and never wait.
pub trait RequestObserver: Send + Sync + fmt::Debug {
    /// A request has ended.
    fn ended(&self, request: &Request<'_>);
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl RequestObserver for NoObserver {
    fn ended(&self, _: &Request<'_>) {}
}
