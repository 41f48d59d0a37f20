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
    /// Retention took it.
    #[error("sink {sink}: everything below {earliest} expired under the sink's retention")]
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

/// Asks the catalog why a part that a batch named is not in the store.
pub(crate) async fn of_part(
    catalog: &Arc<dyn Catalog>,
    sink: SinkId,
    key: PartKey,
) -> Result<Absence, CatalogError> {
    let states = catalog.key_states(sink, &[key]).await?;
    let head = catalog.head(sink).await?;
    Ok(of_key(key, states.first(), &head))
}

fn of_key(key: PartKey, state: Option<&KeyState>, head: &HeadRow) -> Absence {
    let sink = head.sink;
    if head.status == HeadStatus::Dropped {
        return Absence::Dropped { sink };
    }
    match state {
        Some(KeyState { referenced_by: Some(_), .. }) => Absence::Lost { key },
        Some(KeyState { queued: Some(DeletionReason::Expired), .. }) => {
            Absence::Expired { sink, earliest: head.expired }
        }
        Some(KeyState { queued: Some(DeletionReason::SinkDropped), .. }) => Absence::Dropped { sink },
        _ if key.name.description.lower() < head.expired => Absence::Expired { sink, earliest: head.expired },
        _ => Absence::Acknowledged { sink, released: head.released },
    }
}
