//! One byte budget per process, shared by reading and writing.
//!
//! - Each kind of traffic has a guaranteed share; what lies between is first come, first served.
//! - A reservation is all or nothing, and first in first out within its kind: a large one is not starved by
//!   small ones.
//! - Who waits holds nothing else of the same kind. That is the callers' rule: a writer spills what it
//!   holds before it waits, a reader reserves for all its runs at once. Deletes need no memory.
//!
//! Invariants: I24; the sum of all reservations never exceeds the total.

use std::{collections::VecDeque, fmt, sync::Arc, time::Instant};

use metrics::{Counter, Histogram};

use crate::{
    BatchError,
    meters::list::{BUDGET_WAIT_DURATION, BUDGET_WAITS},
    sync::{Mutex, MutexGuard, Notify, PoisonError},
};

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Updates on their way into the store.
    Write,
    /// Updates on their way out of it.
    Read,
}

impl Traffic {
    /// As a label.
    pub fn word(self) -> &'static str {
        match self {
            Traffic::Write => "write",
            Traffic::Read => "read",
        }
    }
}

/// Makes room in a budget that is spent.
pub(crate) trait Relief: Sync {
    /// Makes some room if it can, and says whether it did.
    fn relieve(&self) -> impl Future<Output = bool> + Send;
}

/// Who has nothing to give.
struct NoRelief;

impl Relief for NoRelief {
    async fn relieve(&self) -> bool {
        false
    }
}

/// How a budget is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetUse {
    /// Bytes in all.
    pub total: u64,
    /// Bytes reserved for writing now.
    pub write: u64,
    /// Bytes reserved for reading now.
    pub read: u64,
    /// The most that was reserved at once.
    pub peak: u64,
    /// Reservations that had to wait so far.
    pub waits: u64,
}

/// A budget of bytes; clones share it.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    freed: Notify,
    write_waits: Waits,
    read_waits: Waits,
}

/// What is told of those who wait.
struct Waits {
    count: Counter,
    durations: Histogram,
}

impl Waits {
    fn of(traffic: Traffic) -> Waits {
        let labels = [traffic.word()];
        Waits { count: BUDGET_WAITS.counter(&labels), durations: BUDGET_WAIT_DURATION.histogram(&labels) }
    }
}

#[derive(Default)]
struct State {
    usage: BudgetUse,
    write_guaranteed: u64,
    read_guaranteed: u64,
    next_ticket: u64,
    write_queue: VecDeque<u64>,
    read_queue: VecDeque<u64>,
}

impl State {
    fn room(&self, traffic: Traffic) -> u64 {
        let (mine, other) = match traffic {
            Traffic::Write => (self.usage.write, self.usage.read.max(self.read_guaranteed)),
            Traffic::Read => (self.usage.read, self.usage.write.max(self.write_guaranteed)),
        };
        self.usage.total.saturating_sub(mine).saturating_sub(other)
    }

    fn take(&mut self, traffic: Traffic, bytes: u64) -> bool {
        if bytes > self.room(traffic) {
            return false;
        }
        *self.used(traffic) += bytes;
        self.usage.peak = self.usage.peak.max(self.usage.write + self.usage.read);
        true
    }

    fn used(&mut self, traffic: Traffic) -> &mut u64 {
        match traffic {
            Traffic::Write => &mut self.usage.write,
            Traffic::Read => &mut self.usage.read,
        }
    }

    fn queue(&mut self, traffic: Traffic) -> &mut VecDeque<u64> {
        match traffic {
            Traffic::Write => &mut self.write_queue,
            Traffic::Read => &mut self.read_queue,
        }
    }
}

impl Budget {
    /// A budget of `total` bytes of which writing and reading are each guaranteed three eighths.
    pub fn new(total: u64) -> Budget {
        let guaranteed = total / 8 * 3;
        let state = State {
            usage: BudgetUse { total, ..BudgetUse::default() },
            write_guaranteed: guaranteed,
            read_guaranteed: guaranteed,
            ..State::default()
        };
        let (write_waits, read_waits) = (Waits::of(Traffic::Write), Waits::of(Traffic::Read));
        let (state, freed) = (Mutex::new(state), Notify::new());
        Budget { shared: Arc::new(Shared { state, freed, write_waits, read_waits }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is used.
    pub fn usage(&self) -> BudgetUse {
        self.state().usage
    }

    /// The largest reservation that can ever be granted to this kind of traffic.
    pub fn largest(&self, traffic: Traffic) -> u64 {
        let state = self.state();
        let other = match traffic {
            Traffic::Write => state.read_guaranteed,
            Traffic::Read => state.write_guaranteed,
        };
        state.usage.total.saturating_sub(other)
    }

    /// Reserves at once, or not at all.
    pub fn try_reserve(&self, traffic: Traffic, bytes: u64) -> Option<Reservation> {
        let mut state = self.state();
        let granted = state.queue(traffic).is_empty() && state.take(traffic, bytes);
        granted.then(|| Reservation { budget: self.clone(), traffic, bytes })
    }

    /// Reserves, waiting until there is room. The caller holds no other reservation of this kind that only
    /// it can free. More than [`Budget::largest`] is refused by name.
    pub async fn reserve(&self, traffic: Traffic, bytes: u64) -> Result<Reservation, BatchError> {
        self.reserve_or(traffic, bytes, &NoRelief).await
    }

    /// The same; while there is no room, `relief` may make some.
    pub(crate) async fn reserve_or(
        &self,
        traffic: Traffic,
        bytes: u64,
        relief: &impl Relief,
    ) -> Result<Reservation, BatchError> {
        let largest = self.largest(traffic);
        if bytes > largest {
            return Err(BatchError::OverBudget { wanted: bytes, largest });
        }
        if let Some(reservation) = self.try_reserve(traffic, bytes) {
            return Ok(reservation);
        }
        let place = Place::take(self, traffic);
        let begun = Instant::now();
        self.waits(traffic).count.increment(1);
        loop {
            // SUBTLE: the wake-up is asked for before the state is looked at, and is owed from then on; the other way
            // round, a release between look and wait would be missed for ever.
            let freed = self.shared.freed.notified();
            if place.is_first_and_takes(bytes) {
                self.waits(traffic).durations.record(begun.elapsed());
                return Ok(Reservation { budget: self.clone(), traffic, bytes });
            }
            if !relief.relieve().await {
                freed.await;
            }
        }
    }

    fn waits(&self, traffic: Traffic) -> &Waits {
        match traffic {
            Traffic::Write => &self.shared.write_waits,
            Traffic::Read => &self.shared.read_waits,
        }
    }

    /// Wakes those who wait: something they can have freed was added.
    pub(crate) fn poke(&self) {
        self.shared.freed.notify_waiters();
    }

    fn give_back(&self, traffic: Traffic, bytes: u64) {
        let mut state = self.state();
        let used = state.used(traffic);
        *used = used.saturating_sub(bytes);
        drop(state);
        self.shared.freed.notify_waiters();
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Budget").field(&self.usage()).finish()
    }
}

/// A place in the queue; a cancelled wait leaves it.
struct Place<'a> {
    budget: &'a Budget,
    traffic: Traffic,
    ticket: u64,
}

impl<'a> Place<'a> {
    fn take(budget: &'a Budget, traffic: Traffic) -> Place<'a> {
        let mut state = budget.state();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.usage.waits += 1;
        state.queue(traffic).push_back(ticket);
        drop(state);
        Place { budget, traffic, ticket }
    }

    fn is_first_and_takes(&self, bytes: u64) -> bool {
        let mut state = self.budget.state();
        state.queue(self.traffic).front() == Some(&self.ticket) && state.take(self.traffic, bytes)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.budget.state().queue(self.traffic).retain(|ticket| *ticket != self.ticket);
        self.budget.shared.freed.notify_waiters();
    }
}

/// Bytes that are held until this is dropped.
#[must_use = "dropping a reservation gives the bytes back"]
pub struct Reservation {
    budget: Budget,
    traffic: Traffic,
    bytes: u64,
}

impl Reservation {
    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes another reservation of the same budget and kind into this one.
    pub fn absorb(&mut self, mut other: Reservation) {
        debug_assert_eq!(self.traffic, other.traffic, "reservations of one kind join");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back what is held beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        if freed > 0 {
            self.budget.give_back(self.traffic, freed);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({:?}, {} bytes)", self.traffic, self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(self.traffic, self.bytes);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use futures::{FutureExt, poll};

    use super::*;

    #[test]
    fn kinds_of_traffic_are_called_as_the_labels_that_dashboards_ask_for() {
        assert_eq!([Traffic::Write, Traffic::Read].map(Traffic::word), ["write", "read"]);
    }

    #[test]
    fn each_kind_keeps_its_guaranteed_share() {
        let budget = Budget::new(80);
        let write = budget.try_reserve(Traffic::Write, 50).expect("all but the readers' share");
        assert!(budget.try_reserve(Traffic::Write, 1).is_none());
        let read = budget.try_reserve(Traffic::Read, 30).expect("the readers' share is there");
        assert!(budget.try_reserve(Traffic::Read, 1).is_none());
        drop((write, read));
        assert_eq!(budget.usage(), BudgetUse { total: 80, peak: 80, ..BudgetUse::default() });
    }

    #[tokio::test]
    async fn a_large_request_is_not_starved_and_a_cancelled_one_makes_room() {
        let budget = Budget::new(80);
        let held = budget.try_reserve(Traffic::Write, 40).expect("free");
        let mut large = Box::pin(budget.reserve(Traffic::Write, 45));
        assert!(poll!(&mut large).is_pending());
        assert!(budget.try_reserve(Traffic::Write, 1).is_none(), "a small one does not pass it");
        let mut small = Box::pin(budget.reserve(Traffic::Write, 5));
        assert!(poll!(&mut small).is_pending());
        drop(large);
        let small = small.now_or_never().expect("its turn came").expect("fits");
        drop(held);
        assert_eq!(budget.usage().write, small.bytes());
        assert_eq!(budget.usage().waits, 2);
    }

    #[tokio::test]
    async fn what_can_never_fit_is_refused_by_name() {
        let error = Budget::new(80).reserve(Traffic::Read, 51).await.expect_err("too large");
        assert!(matches!(error, BatchError::OverBudget { wanted: 51, largest: 50 }), "{error}");
        let whole = Budget::new(80).reserve(Traffic::Read, 50).await.expect("the largest there is");
        assert_eq!(whole.bytes(), 50);
    }

    #[test]
    fn absorbing_and_shrinking_keep_the_sum() {
        let budget = Budget::new(80);
        let mut first = budget.try_reserve(Traffic::Write, 10).expect("free");
        first.absorb(budget.try_reserve(Traffic::Write, 20).expect("free"));
        assert_eq!((first.bytes(), budget.usage().write), (30, 30));
        first.shrink_to(5);
        assert_eq!((first.bytes(), budget.usage().write), (5, 5));
        first.shrink_to(20);
        assert_eq!((first.bytes(), budget.usage().write), (5, 5), "nothing is beyond it");
        drop(first);
        assert_eq!(budget.usage().write, 0);
    }
}
