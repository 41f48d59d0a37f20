//! States that differ only in what their parts are called are one.
//!
//! Incarnations of which nothing can come any longer are left out, the others are put in an order of what they are, and
//! replicas are numbered anew. Nothing in a state refers to an incarnation by its number.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::state::{Incarnation, State};

/// The state that stands for all that differ from it in names only.
pub fn representative(state: &State) -> State {
    let mut kept: Vec<(u64, Incarnation)> = Vec::new();
    for one in state.incarnations.iter().filter(|one| one.matters()) {
        let mut nameless = one.clone();
        nameless.replica = 0;
        kept.push((fingerprint(&nameless), one.clone()));
    }
    kept.sort_by_key(|(print, _)| *print);
    let mut replicas: Vec<(Vec<u64>, u8)> = Vec::new();
    for (print, one) in &kept {
        match replicas.iter_mut().find(|(_, replica)| *replica == one.replica) {
            Some((prints, _)) => prints.push(*print),
            None => replicas.push((vec![*print], one.replica)),
        }
    }
    replicas.sort();
    let renamed = |replica: u8| {
        let place = replicas.iter().position(|(_, former)| *former == replica).unwrap_or_default();
        u8::try_from(place).unwrap_or(u8::MAX)
    };
    let mut incarnations: Vec<(u8, u64, Incarnation)> = kept
        .into_iter()
        .map(|(print, one)| {
            (renamed(one.replica), print, Incarnation { replica: renamed(one.replica), ..one })
        })
        .collect();
    incarnations.sort_by_key(|(replica, print, _)| (*replica, *print));
    let mut consumers = state.consumers.clone();
    consumers.sort_by_key(|one| (one.acked, one.present));
    State {
        incarnations: incarnations.into_iter().map(|(_, _, one)| one).collect(),
        consumers,
        ..state.clone()
    }
}

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
