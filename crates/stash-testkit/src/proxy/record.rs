//! What was asked through a proxy.

use super::{Call, Fault};

/// A request, as the client sent it and as it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which call it is.
    pub call: Call,
    /// The bucket; empty where none is meant.
    pub bucket: String,
    /// The key, decoded; empty where none is meant.
    pub key: String,
    /// The query as it was sent, the signature's parameters included where it has any.
    pub query: String,
    /// The range, as it was sent.
    pub range: Option<String>,
    /// Whether it is to create only (`If-None-Match: *`).
    pub create_only: bool,
    /// Which time this was asked: from 1, counting the same call of the same key, query and range.
    pub attempt: u32,
    /// How it went wrong.
    pub fault: Option<Fault>,
    /// What the server answered; `None` if it was not asked, or the client left before.
    pub answered: Option<u16>,
    /// What the client was told; `None` if the connection was reset, or it left before.
    pub status: Option<u16>,
    /// Bytes of the body that came from the client.
    pub bytes_in: u64,
    /// Bytes of the body that went to the client.
    pub bytes_out: u64,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            call: Call::Other,
            bucket: String::new(),
            key: String::new(),
            query: String::new(),
            range: None,
            create_only: false,
            attempt: 1,
            fault: None,
            answered: None,
            status: None,
            bytes_in: 0,
            bytes_out: 0,
        }
    }
}

impl Request {
    /// Whether the client was told that it was done.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
            && !matches!(self.fault, Some(Fault::CutResponse))
    }
}

/// Requests of one kind, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All of them.
    pub requests: u64,
    /// Those whose client was told that they are done.
    pub succeeded: u64,
    /// Those that went wrong by plan.
    pub faults: u64,
    /// Those that were asked before: the same call of the same key, query and range.
    pub repeated: u64,
    /// Bytes of bodies from clients.
    pub bytes_in: u64,
    /// Bytes of bodies to clients.
    pub bytes_out: u64,
}

impl Tally {
    pub(super) fn add(&mut self, request: &Request) {
        self.requests += 1;
        self.succeeded += u64::from(request.succeeded());
        self.faults += u64::from(request.fault.is_some());
        self.repeated += u64::from(request.attempt > 1);
        self.bytes_in += request.bytes_in;
        self.bytes_out += request.bytes_out;
    }
}
