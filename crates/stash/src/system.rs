//! The real clock and the real source of ids: the only place of the libraries that reads them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stash_types::{Clock, IdSource, Timestamp};
use uuid::Uuid;

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everyone else is given")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Ids from the machine's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemIds;

impl IdSource for SystemIds {
    #[expect(clippy::disallowed_methods, reason = "this is the source that everyone else is given")]
    fn random(&self) -> Uuid {
        Uuid::new_v4()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the source that everyone else is given")]
    fn ordered(&self) -> Uuid {
        Uuid::now_v7()
    }
}
