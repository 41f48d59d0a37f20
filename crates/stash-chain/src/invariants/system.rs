//! I20 to I25: what holds whatever fails.

use std::{collections::BTreeSet, fmt::Debug};

use stash_types::{PartKey, ShardId};

use super::{
    Checked,
    Invariant::{I20, I21, I22, I23, I24, I25},
    ensure,
};

/// I20: nothing of an epoch took effect after the revision that closed it. `effects` are the revisions of its writes.
pub fn i20_fenced(who: &str, closed_at: Option<u64>, effects: impl IntoIterator<Item = u64>) -> Checked {
    let Some(closed) = closed_at else { return Ok(()) };
    effects.into_iter().try_for_each(|effect| {
        ensure(effect <= closed, I20, || format!("{who} was closed at {closed} and wrote at {effect}"))
    })
}

/// I21: what was done again, or read back, is what was done at first.
pub fn i21_idempotent<T: PartialEq + Debug>(what: &str, first: &T, again: &T) -> Checked {
    ensure(first == again, I21, || format!("{what}: at first {first:?}, again {again:?}"))
}

/// I22: what was read is what was written, or an error.
pub fn i22_integrity<T: PartialEq, E>(what: &str, written: &T, read: Result<&T, E>) -> Checked {
    let honest = read.is_err() || read.is_ok_and(|read| read == written);
    ensure(honest, I22, || format!("{what}: altered bytes were returned as rows"))
}

/// I23: all keys touched for a sink are of its shard.
pub fn i23_isolated<'a>(shard: ShardId, touched: impl IntoIterator<Item = &'a PartKey>) -> Checked {
    touched.into_iter().try_for_each(|key| {
        ensure(key.shard == shard, I23, || format!("{key} was touched for shard {shard}"))
    })
}

/// I24: no more memory was held than there is, in bytes.
pub fn i24_bounded(what: &str, peak: u64, limit: u64) -> Checked {
    ensure(peak <= limit, I24, || format!("{what} held {peak} bytes of {limit}"))
}

/// What happened to a shared slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot<K> {
    /// The first touch made it.
    Made(K),
    /// Its last user let it go.
    Gone(K),
}

/// I25: a slot is not made over one that is there, and none is left. `events` in order.
pub fn i25_registry<K: Ord + Debug>(events: impl IntoIterator<Item = Slot<K>>) -> Checked {
    let mut open = BTreeSet::new();
    for event in events {
        match event {
            Slot::Made(key) if open.contains(&key) => {
                return ensure(false, I25, || format!("slot {key:?} was made over another"));
            }
            Slot::Made(key) => drop(open.insert(key)),
            Slot::Gone(key) => {
                let known = open.remove(&key);
                ensure(known, I25, || format!("slot {key:?} went without having been made"))?;
            }
        }
    }
    let left = open.first();
    ensure(left.is_none(), I25, || format!("slot {left:?} was left"))
}
