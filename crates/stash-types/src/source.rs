//! Where time and identity come from: parameters, never globals.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Milliseconds since the Unix epoch, by some clock that is named where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This moment `millis` milliseconds later; stays at the largest value instead of wrapping.
    pub const fn plus_millis(self, millis: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(millis))
    }
}

/// Reads the time. Decisions never read it: it is used for leases, history and progress.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// Draws ids.
pub trait IdSource: Send + Sync + fmt::Debug {
    /// A UUID v4: unguessable, in no order.
    fn random(&self) -> Uuid;
    /// A UUID v7: later ones sort after earlier ones.
    fn ordered(&self) -> Uuid;
}
