//! The clocks of a run: virtual time, which only goes on, and the catalog's clock, which is set wrong at times.
//!
//! Virtual time is tokio's paused time: it moves only when every task waits, so nothing of a run takes real time and
//! all of it is repeatable.

use std::sync::atomic::{AtomicI64, Ordering};

use stash_types::{Clock, Timestamp};
use tokio::time::Instant;

/// Where the catalog's clock stands when a run begins: some moment, in milliseconds since 1970.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// A clock over virtual time that jumps forward and back.
#[derive(Debug)]
pub struct SimClock {
    begun: Instant,
    offset_ms: AtomicI64,
    highest_ms: AtomicI64,
}

impl SimClock {
    /// A clock that begins now. Must be made on a runtime whose time is paused.
    pub fn begin() -> SimClock {
        SimClock { begun: Instant::now(), offset_ms: AtomicI64::new(0), highest_ms: AtomicI64::new(0) }
    }

    /// Milliseconds of virtual time since the beginning.
    pub fn virtual_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Sets the clock forward, or back.
    pub fn jump(&self, by_ms: i64) {
        let now = self.offset_ms.fetch_add(by_ms, Ordering::AcqRel).saturating_add(by_ms);
        self.highest_ms.fetch_max(now, Ordering::AcqRel);
    }

    /// Puts the clock to the latest it ever ran at, so that nothing has to wait for it to come back there.
    pub fn heal(&self) {
        self.offset_ms.store(self.highest_ms.load(Ordering::Acquire), Ordering::Release);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let virtual_ms = EPOCH_MS.saturating_add(self.virtual_ms());
        Timestamp(virtual_ms.saturating_add_signed(self.offset_ms.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_jumps_both_ways_while_virtual_time_goes_on() {
        let clock = SimClock::begin();
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        clock.jump(100);
        assert_eq!((clock.virtual_ms(), clock.now()), (5, Timestamp(EPOCH_MS + 105)));
        clock.jump(-200);
        assert_eq!(clock.now(), Timestamp(EPOCH_MS - 95));
        clock.heal();
        assert_eq!(clock.now(), Timestamp(EPOCH_MS + 105));
    }
}
