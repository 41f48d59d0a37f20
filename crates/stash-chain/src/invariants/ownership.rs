//! I14 to I19: who answers for a blob.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use super::{
    Checked,
    Invariant::{I14, I15, I16, I17, I18, I19},
    ensure,
};
use crate::{KeyFacts, Verdict};

/// I14 and I16: what went in came out exactly once, nothing is missing and nothing was made up.
pub fn i14_one_owner<K: Ord + Debug>(
    entered: impl IntoIterator<Item = K>,
    left: impl IntoIterator<Item = K>,
) -> Checked {
    let mut balance = BTreeMap::<K, i64>::new();
    entered.into_iter().for_each(|key| *balance.entry(key).or_default() += 1);
    left.into_iter().for_each(|key| *balance.entry(key).or_default() -= 1);
    balance.iter().try_for_each(|(key, owners)| {
        ensure(*owners >= 0, I14, || format!("{key:?} has {} owners too many", -owners))?;
        ensure(*owners == 0, I16, || format!("{key:?} was forgotten"))
    })
}

/// I15: every referenced key is stored as its row says (a digest, a length), and none is queued for deletion.
pub fn i15_no_live_delete<K: Ord + Debug, D: PartialEq + Debug>(
    referenced: &BTreeMap<K, D>,
    stored: &BTreeMap<K, D>,
    queued: &BTreeSet<K>,
) -> Checked {
    referenced.iter().try_for_each(|(key, said)| {
        ensure(!queued.contains(key), I15, || format!("{key:?} is referenced and queued for deletion"))?;
        let found = stored.get(key);
        ensure(found == Some(said), I15, || format!("{key:?} is referenced as {said:?}, stored is {found:?}"))
    })
}

/// I16: what a hop did not pass on is queued or gone.
pub fn i16_delete_at_drop<K: Ord + Debug>(
    let_go: impl IntoIterator<Item = K>,
    stored: &BTreeSet<K>,
    queued: &BTreeSet<K>,
) -> Checked {
    let_go.into_iter().try_for_each(|key| {
        let disposed = queued.contains(&key) || !stored.contains(&key);
        ensure(disposed, I16, || format!("{key:?} was let go, and is stored and not queued"))
    })
}

/// I17: at rest, what is listed is what is referenced. Unpublished uploads count as listed.
pub fn i17_no_leak<K: Ord + Debug>(listed: &BTreeSet<K>, referenced: &BTreeSet<K>) -> Checked {
    let leaked = listed.difference(referenced).next();
    ensure(leaked.is_none(), I17, || format!("{leaked:?} is stored and not referenced"))?;
    let missing = referenced.difference(listed).next();
    ensure(missing.is_none(), I17, || format!("{missing:?} is referenced and not stored"))
}

/// I17: where every handle was closed and nobody died, a sweep finds nothing. Else it hides what a hop forgot to delete.
pub fn i17_nothing_to_sweep<K: Debug>(found: impl IntoIterator<Item = K>) -> Checked {
    let first = found.into_iter().next();
    ensure(first.is_none(), I17, || format!("a sweep found {first:?} although every handle was closed"))
}

/// I18: a sweep takes only what no row references, and what no open incarnation may still link.
pub fn i18_safe_sweep(facts: &KeyFacts, verdict: Verdict) -> Checked {
    let unowned = match facts.incarnation {
        None => false,
        Some((open, resolved)) => !open || resolved >= facts.description.upper(),
    };
    let safe = !matches!(verdict, Verdict::Garbage(_)) || (unowned && !facts.referenced && !facts.queued);
    ensure(safe, I18, || format!("{verdict:?} of {facts:?}"))
}

/// I19: no key was created twice. `created` names a key each time an object came to be under it.
pub fn i19_fresh_keys<K: Ord + Debug>(created: impl IntoIterator<Item = K>) -> Checked {
    let mut seen = BTreeSet::new();
    created.into_iter().try_for_each(|key| {
        let known = seen.contains(&key);
        ensure(!known, I19, || format!("{key:?} was written twice"))?;
        seen.insert(key);
        Ok(())
    })
}
