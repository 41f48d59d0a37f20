//! Locks, atomics, wake-ups, tasks and time, as this crate uses them.
//!
//! - Everywhere but in this crate's own tests under the feature `shuttle` they are those of std and tokio, by their
//!   own names: no wrapper, no cost. So the feature changes nothing for whoever enables it from elsewhere.
//! - In those tests they are the schedule explorer's (`sync/explored.rs`): it decides at every lock, atomic, wake-up and
//!   spawn who goes on.
//!
//! Whatever two tasks of a process share is made of these and of nothing else, or a schedule that breaks it
//! is never tried.

#[cfg(all(test, feature = "shuttle"))]
mod explored;

#[cfg(all(test, feature = "shuttle"))]
pub(crate) use explored::{JoinSet, Notify, pause, sleep, spawn_blocking, timeout};
#[cfg(all(test, feature = "shuttle"))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, PoisonError, atomic};

#[cfg(not(all(test, feature = "shuttle")))]
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, atomic};
#[cfg(not(all(test, feature = "shuttle")))]
pub(crate) use tokio::{
    sync::Notify,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

// What holds across an await and what answers once need no points of their own: tokio's wake whoever polls them, and
// between them and the next shared state there is always a lock.
pub(crate) use tokio::sync::{Mutex as AsyncMutex, oneshot};
