//! Why something is not there. An empty batch is only ever a proven empty batch (I22, case 15): whatever
//! cannot be read is asked of the catalog and gets its name.

use std::sync::Arc;

use stash_catalog::{Catalog, CatalogError, DeletionReason, HeadRow, HeadStatus, KeyState};
use stash_types::{DataflowError, Frontier, PartKey, SinkId};

/// Why data is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// All consumers acknowledged it.
    #[error("sink {sink}: everything below {released} was acknowledged by all consumers and deleted")]
    Acknowledged {
        /// The sink.
        sink: SinkId,
        /// The earliest frontier still linked.
        released: Frontier,
    },
    /// It outlived the sink's retention, or only consumers still held it that were not heard for the sink's absent
    /// hold. A consumer that stands there reads this again and again, until it subscribes with
    /// [`SkipExpired`](stash_catalog::StartAt::SkipExpired) and takes the gap upon itself.
    #[error(
        "sink {sink}: everything below {earliest} expired by the sink's retention or absent hold; a consumer that can do without it goes on at {earliest} by skipping what expired"
    )]
    Expired {
        /// The sink.
        sink: SinkId,
        /// The earliest frontier still linked.
        earliest: Frontier,
    },
    /// The sink was dropped.
    #[error("sink {sink} was dropped")]
    Dropped {
        /// The sink.
        sink: SinkId,
    },
    /// The dataflow is in error from this time on.
    #[error("sink {sink} is poisoned at time {}: {}; drop the sink and declare it anew", error.at, error.message)]
    Poisoned {
        /// The sink.
        sink: SinkId,
        /// The dataflow's error.
        error: DataflowError,
    },
    /// No batch was ever accepted there.
    #[error("sink {sink}: nothing was accepted at or above {upper}")]
    NeverWritten {
        /// The sink.
        sink: SinkId,
        /// The chain's upper.
        upper: Frontier,
    },
    /// The catalog references it and the store does not have it: data was lost outside of Stash.
    #[error(
        "{key} is referenced by the catalog but missing in the store: it was deleted from outside; `stash-admin explain` tells its history"
    )]
    Lost {
        /// The key.
        key: PartKey,
    },
    /// Its bytes are not those that were written.
    #[error("{key} does not hold what was written: {what}")]
    Corrupt {
        /// The key.
        key: PartKey,
        /// What differs.
        what: String,
    },
}

/// Asks the catalog why a part of a batch that ends at `upper` is not in the store.
pub(crate) async fn of_part(
    catalog: &Arc<dyn Catalog>,
    sink: SinkId,
    key: PartKey,
    upper: Frontier,
) -> Result<Absence, CatalogError> {
    let states = catalog.key_states(sink, &[key]).await?;
    let head = catalog.head(sink).await?;
    Ok(of_key(key, upper, states.first(), &head))
}

/// What all consumers acknowledged is called so, whoever took it in the end; of the rest, what lies below the
/// expired frontier expired.
fn of_key(key: PartKey, upper: Frontier, state: Option<&KeyState>, head: &HeadRow) -> Absence {
    let sink = head.sink;
    let earliest = head.released.max(head.expired);
    if head.status == HeadStatus::Dropped {
        return Absence::Dropped { sink };
    }
    match state {
        Some(KeyState { referenced_by: Some(_), .. }) => Absence::Lost { key },
        Some(KeyState { queued: Some(DeletionReason::Expired), .. }) => Absence::Expired { sink, earliest },
        Some(KeyState { queued: Some(DeletionReason::SinkDropped), .. }) => Absence::Dropped { sink },
        _ if head.released < upper && upper <= head.expired => Absence::Expired { sink, earliest },
        _ => Absence::Acknowledged { sink, released: head.released },
    }
}

#[cfg(test)]
mod tests {
    use stash_catalog::testing::SeededIds;
    use stash_types::{CatalogId, Description, IdSource, IncarnationId, PartName, ShardId};

    use super::*;

    #[test]
    fn what_is_gone_is_named_by_whoever_let_go_of_it_first() {
        let ids = SeededIds::new(1);
        let sink = SinkId::from_uuid(ids.random());
        let at = Frontier::at;
        let head_in = |status, released: u64, expired: u64| HeadRow {
            sink,
            upper: at(20),
            fence: 0,
            next_seq: 9,
            status,
            released: at(released),
            expired: at(expired),
            revision: 0,
        };
        // A straddler: offered as [3, 9), taken from 6 on.
        let description = Description::new(at(3), at(9)).expect("it covers a time");
        let incarnation = IncarnationId::from_uuid(ids.ordered());
        let shard = ShardId::derive(CatalogId::from_uuid(ids.random()), sink);
        let key = PartName { incarnation, description, process: 0, n: 0 }.under(shard);
        let state = |queued| KeyState { key, referenced_by: None, queued, incarnation: None };
        let head = |released, expired| head_in(HeadStatus::Open, released, expired);
        let absence =
            |queued, released, expired| of_key(key, at(9), Some(&state(queued)), &head(released, expired));
        let expired = |earliest: u64| Absence::Expired { sink, earliest: at(earliest) };
        let acknowledged = |released: u64| Absence::Acknowledged { sink, released: at(released) };
        assert_eq!(absence(None, 0, 9), expired(9));
        assert_eq!(absence(None, 0, 12), expired(12));
        assert_eq!(absence(None, 9, 6), acknowledged(9), "what expired ended where this begins");
        assert_eq!(absence(None, 12, 15), acknowledged(12), "all acknowledged it");
        assert_eq!(absence(None, 9, 12), acknowledged(9), "it was not there any more when its time came");
        assert_eq!(absence(Some(DeletionReason::Expired), 0, 9), expired(9));
        assert_eq!(absence(Some(DeletionReason::Expired), 9, 9), expired(9), "the queue knows who took it");
        assert_eq!(absence(Some(DeletionReason::Released), 9, 0), acknowledged(9));
        assert_eq!(absence(Some(DeletionReason::SinkDropped), 9, 12), Absence::Dropped { sink });
        assert_eq!(of_key(key, at(9), None, &head_in(HeadStatus::Dropped, 9, 12)), Absence::Dropped { sink });
        let referenced = KeyState { referenced_by: Some(3), ..state(Some(DeletionReason::Expired)) };
        assert_eq!(of_key(key, at(9), Some(&referenced), &head(9, 12)), Absence::Lost { key });
    }
}
