//! The budget: nobody is forgotten, nobody is passed, and the sum is kept.

use std::{pin::pin, sync::Arc};

use shuttle::future::{block_on, spawn, yield_now};
use stash_testkit::{Polled, poll_times};

use super::{below, explore};
use crate::{
    Budget, Traffic,
    budget::Relief,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        pause,
    },
};

const TOTAL: u64 = 80;

/// What is held, counted by the test itself.
#[derive(Default)]
struct Held {
    now: Mutex<[u64; 2]>,
}

impl Held {
    fn change(&self, traffic: Traffic, change: impl FnOnce(&mut u64)) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let [write, read] = &mut *now;
        change(match traffic {
            Traffic::Write => write,
            Traffic::Read => read,
        });
        assert!(*write + *read <= TOTAL, "{write} and {read} of {TOTAL} are held");
        assert!(*write <= 50 && *read <= 50, "each kind leaves the other its share: {write}, {read}");
    }

    /// Reserves, holds for a while and gives back.
    async fn hold(&self, budget: &Budget, traffic: Traffic, bytes: u64) {
        let reservation = budget.reserve(traffic, bytes).await.expect("it can fit");
        self.change(traffic, |now| *now += bytes);
        pause().await;
        self.change(traffic, |now| *now -= bytes);
        drop(reservation);
    }
}

/// All is free, and nobody stands in a queue.
fn at_rest(budget: &Budget) {
    assert_eq!((budget.usage().write, budget.usage().read), (0, 0), "all was given back");
    for traffic in [Traffic::Write, Traffic::Read] {
        let all = budget.try_reserve(traffic, budget.largest(traffic));
        assert!(all.is_some(), "{traffic:?}: somebody who is gone still stands in the queue");
    }
}

#[test]
fn every_waiter_is_served_and_the_sum_of_reservations_never_exceeds_the_total() {
    explore("every_waiter_is_served", 100, || {
        let (budget, held) = (Budget::new(TOTAL), Arc::new(Held::default()));
        let tasks: Vec<_> = (0..6)
            .map(|task| {
                let (budget, held) = (budget.clone(), Arc::clone(&held));
                spawn(async move {
                    let traffic = if task % 3 == 0 { Traffic::Read } else { Traffic::Write };
                    for _ in 0..2 {
                        held.hold(&budget, traffic, u64::from(1 + below(50))).await;
                    }
                })
            })
            .collect();
        block_on(async {
            for task in tasks {
                task.await.expect("it ends");
            }
        });
        at_rest(&budget);
    });
}

#[test]
fn a_large_request_is_not_passed_by_small_ones_that_came_after_it() {
    explore("a_large_request_is_not_passed", 50, || {
        let budget = Budget::new(TOTAL);
        let served = Arc::new(AtomicBool::new(false));
        let first = budget.try_reserve(Traffic::Write, 40).expect("free");
        let mut tasks = Vec::new();
        tasks.push({
            let (budget, served) = (budget.clone(), Arc::clone(&served));
            spawn(async move {
                // Beside it a small one does not fit: who is served while it waits has passed it.
                let large = budget.reserve(Traffic::Write, 45).await.expect("it can fit");
                pause().await;
                served.store(true, Ordering::SeqCst);
                drop(large);
            })
        });
        for _ in 0..3 {
            let (budget, served) = (budget.clone(), Arc::clone(&served));
            tasks.push(spawn(async move {
                while budget.usage().waits == 0 {
                    yield_now().await;
                }
                let small = budget.reserve(Traffic::Write, 6).await.expect("it can fit");
                assert!(served.load(Ordering::SeqCst), "a small one passed the large one that waited");
                drop(small);
            }));
        }
        block_on(async {
            while budget.usage().waits == 0 {
                yield_now().await;
            }
            drop(first);
            for task in tasks {
                task.await.expect("it ends");
            }
        });
        at_rest(&budget);
    });
}

#[test]
fn a_wait_that_is_cancelled_leaves_nothing_and_lets_the_next_one_on() {
    explore("a_wait_that_is_cancelled", 100, || {
        let budget = Budget::new(TOTAL);
        let held = Arc::new(Held::default());
        let mut tasks = Vec::new();
        for task in 0..6 {
            let (budget, held) = (budget.clone(), Arc::clone(&held));
            tasks.push(spawn(async move {
                let bytes = u64::from(1 + below(50));
                if task % 2 == 0 {
                    held.hold(&budget, Traffic::Write, bytes).await;
                    return;
                }
                // Given up after a few polls, wherever it stands then.
                let polls = usize::try_from(below(3)).expect("small");
                let mut woken = pin!(poll_times(budget.reserve(Traffic::Write, bytes), polls));
                let mut patience = pin!(async {
                    pause().await;
                    pause().await;
                });
                let ended = futures::future::select(&mut woken, &mut patience).await;
                if let futures::future::Either::Left((Polled::Ready(granted), _)) = ended {
                    drop(granted.expect("it can fit"));
                }
            }));
        }
        block_on(async {
            for task in tasks {
                task.await.expect("it ends");
            }
        });
        at_rest(&budget);
    });
}

/// Memory that somebody else can free, as shared batches are.
#[derive(Default)]
struct Pile {
    held: Mutex<Vec<crate::Reservation>>,
}

impl Pile {
    fn held(&self) -> crate::sync::MutexGuard<'_, Vec<crate::Reservation>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relief for Pile {
    async fn relieve(&self) -> bool {
        let oldest = {
            let mut held = self.held();
            if held.is_empty() { None } else { Some(held.remove(0)) }
        };
        pause().await;
        oldest.is_some()
    }
}

#[test]
fn what_others_hold_is_freed_for_whoever_waits() {
    explore("what_others_hold_is_freed", 50, || {
        let (budget, pile) = (Budget::new(TOTAL), Arc::new(Pile::default()));
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let (budget, pile) = (budget.clone(), Arc::clone(&pile));
                spawn(async move {
                    // Three of these are more than there is, and nobody gives back what it laid on the pile.
                    for _ in 0..2 {
                        let bytes = u64::from(20 + below(30));
                        let more = budget.reserve_or(Traffic::Write, bytes, &*pile).await;
                        pile.held().push(more.expect("it can fit"));
                        budget.poke();
                    }
                })
            })
            .collect();
        block_on(async {
            for task in tasks {
                task.await.expect("it ends");
            }
        });
        assert!(budget.usage().peak <= TOTAL);
        pile.held().clear();
        at_rest(&budget);
    });
}
