//! Expiry: what of a sink its declaration and the catalog's clock let go of. Pure; every catalog decides by it
//! under the head row.
//!
//! A consumer is *absent* once it was not heard for the sink's absent hold; without one nobody ever is. Absent
//! consumers hold nothing. Who is present holds what it has not acknowledged. Where nobody is present, nobody
//! holds anything, and the chain is kept within the sink's retention; without one it is kept for ever.
//!
//! A clock that goes back makes everything younger, so that nothing is taken; one that jumps ahead takes too
//! early, and never more than a prefix whose keys are queued with it (I4, I15).

use stash_types::{Frontier, Timestamp};

use crate::rows::ConsumerRow;

/// Whether `ms` have passed since `since`. `None` never passes.
pub(crate) fn has_passed(since: Timestamp, ms: Option<u64>, now: Timestamp) -> bool {
    ms.and_then(|ms| since.0.checked_add(ms)).is_some_and(|end| end <= now.0)
}

/// What may go of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayGo {
    /// Nothing: somebody who is present holds it.
    Nothing,
    /// Everything below, which only absent consumers have not acknowledged.
    Below(Frontier),
    /// The prefix that outlived the retention: nobody holds anything.
    Outlived,
}

/// Splits consumers into the present and the absent ones.
pub(crate) fn split(
    consumers: Vec<ConsumerRow>,
    absent_hold_ms: Option<u64>,
    now: Timestamp,
) -> (Vec<ConsumerRow>, Vec<ConsumerRow>) {
    consumers.into_iter().partition(|consumer| !has_passed(consumer.seen, absent_hold_ms, now))
}

/// What may go, where these consumers are present and those absent.
///
/// What the absent ones acknowledged too is left to the next acknowledgement: a consumer that was registered at
/// the chain's upper lets go of what lies before it only then.
pub(crate) fn may_go(present: &[ConsumerRow], absent: &[ConsumerRow]) -> MayGo {
    let lowest = |rows: &[ConsumerRow]| rows.iter().map(|row| row.acked).min();
    match (lowest(present), lowest(absent)) {
        (None, _) => MayGo::Outlived,
        (Some(held), Some(absent)) if absent < held => MayGo::Below(held),
        (Some(_), _) => MayGo::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use stash_types::SessionId;
    use uuid::Uuid;

    use super::*;

    fn consumer(name: &str, acked: u64, seen: u64) -> ConsumerRow {
        ConsumerRow {
            name: name.parse().expect("a name"),
            acked: Frontier::at(acked),
            session: SessionId::from_uuid(Uuid::from_u128(1)),
            seen: Timestamp(seen),
        }
    }

    #[test]
    fn a_duration_has_passed_at_its_last_millisecond_and_for_ever_never_has() {
        let passed = |since, ms, now| has_passed(Timestamp(since), ms, Timestamp(now));
        assert!(!passed(10, Some(5), 14));
        assert!(passed(10, Some(5), 15));
        assert!(!passed(10, Some(5), 0), "a clock that went back");
        assert!(!passed(10, None, u64::MAX));
        assert!(!passed(10, Some(u64::MAX), u64::MAX), "beyond what a clock can say is for ever");
    }

    #[test]
    fn whoever_is_present_holds_and_whoever_is_absent_does_not() {
        let rows = vec![consumer("a", 3, 100), consumer("b", 9, 50)];
        for (now, present, may) in [
            (100, vec!["a", "b"], MayGo::Nothing),
            // The absent one is ahead: it held nothing back.
            (110, vec!["a"], MayGo::Nothing),
            (160, vec![], MayGo::Outlived),
        ] {
            let (here, away) = split(rows.clone(), Some(60), Timestamp(now));
            assert_eq!(here.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), present, "at {now}");
            assert_eq!(may_go(&here, &away), may, "at {now}");
        }
        let (here, away) = split(rows, None, Timestamp(u64::MAX));
        assert_eq!((here.len(), away.len()), (2, 0));
        let may = may_go(&[consumer("b", 9, 0), consumer("c", 7, 0)], &[consumer("a", 3, 0)]);
        assert_eq!(may, MayGo::Below(Frontier::at(7)));
        for acked in [7, 9] {
            let may = may_go(&[consumer("b", 7, 0)], &[consumer("a", acked, 0)]);
            assert_eq!(may, MayGo::Nothing, "an absent one at {acked} holds nothing back");
        }
        assert_eq!(may_go(&[], &[]), MayGo::Outlived);
    }
}
