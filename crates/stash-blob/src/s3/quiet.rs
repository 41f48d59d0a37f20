//! Requests of the SDK, of which nobody hears.
//!
//! The SDK tells `tracing` at TRACE and at DEBUG what it signs and with what: the access key and the session token are among it.
//! What becomes of a request, its caller tells by itself.

use tracing::{
    Dispatch,
    instrument::{WithDispatch, WithSubscriber},
};

/// Whatever asks through the SDK.
pub(crate) trait Quietly: Future + Sized {
    /// The same, whose spans and events go nowhere.
    fn quietly(self) -> WithDispatch<Self> {
        self.with_subscriber(Dispatch::none())
    }
}

impl<F: Future> Quietly for F {}
