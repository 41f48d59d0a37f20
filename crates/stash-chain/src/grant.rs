//! Where a replica renders, and what its inputs must keep for that.
//!
//! A replica renders *with* the snapshot at its as-of (I9): all updates up to the as-of, accumulated, at the
//! as-of. While nothing is accepted that is the sink's original as-of, and the snapshot is the chain's first
//! batch. Afterwards it must be strictly below `U`, so that the snapshot is covered and dropped; `U − 1` is
//! granted, which asks the inputs for the least history (I10).

use stash_types::{DataflowError, Frontier};

use crate::{ChainError, ChainRules, Head, Status};

/// The answer to a replica that wants to render a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Render.
    Render {
        /// At this as-of, with its snapshot.
        as_of: u64,
        /// The chain's upper: what lies below need not be written.
        floor: Frontier,
    },
    /// Everything was accepted; nothing is to be rendered.
    Complete,
    /// The dataflow is in error; consumers have all they will get.
    Poisoned(DataflowError),
    /// The sink was dropped.
    Dropped,
}

/// What to answer a replica that wants to render the sink of this chain.
///
/// ```
/// use stash_chain::{ChainRules, Grant, Head, Status, grant};
/// use stash_types::Frontier;
///
/// let rules = ChainRules { as_of: 5, up_to: Frontier::EMPTY, seals: false };
/// let head = Head { upper: Frontier::at(30), status: Status::Open };
/// assert_eq!(grant(rules, &head), Grant::Render { as_of: 29, floor: Frontier::at(30) });
/// ```
pub fn grant(rules: ChainRules, head: &Head) -> Grant {
    match &head.status {
        Status::Dropped => Grant::Dropped,
        Status::Poisoned(error) => Grant::Poisoned(error.clone()),
        Status::Complete => Grant::Complete,
        Status::Open if head.upper.is_empty() => Grant::Complete,
        Status::Open => Grant::Render { as_of: granted(rules, head.upper), floor: head.upper },
    }
}

/// Whether a replica may render at `as_of` (I9). It says nothing about whether the inputs still have that time:
/// only the granted as-of is surely at or above their hold.
pub fn check_rendering(rules: ChainRules, head: &Head, as_of: u64) -> Result<(), ChainError> {
    let upper = head.upper;
    if head.status == Status::Dropped {
        return Err(ChainError::SinkDropped);
    }
    if as_of < rules.as_of {
        return Err(ChainError::RenderedTooEarly { as_of, original: rules.as_of });
    }
    let first = upper == rules.start() && as_of == rules.as_of;
    if first || Frontier::at(as_of) < upper {
        Ok(())
    } else {
        Err(ChainError::RenderedTooLate { as_of, upper })
    }
}

/// The sink's hold on its inputs (I10): times at or after it must stay readable. It is the meet of what the next
/// grant would say and the as-ofs of open incarnations whose first batch is unresolved. When the chain will never
/// grant again, only the latter hold; with none of them, it is empty.
pub fn read_hold(rules: ChainRules, head: &Head, pending_as_ofs: impl IntoIterator<Item = u64>) -> Frontier {
    let own = match grant(rules, head) {
        Grant::Render { as_of, floor: _ } => Frontier::at(as_of),
        Grant::Complete | Grant::Poisoned(_) | Grant::Dropped => Frontier::EMPTY,
    };
    pending_as_ofs.into_iter().map(Frontier::at).fold(own, Frontier::min)
}

/// `U − 1`, or the original as-of while nothing is accepted.
fn granted(rules: ChainRules, upper: Frontier) -> u64 {
    upper.as_u64().saturating_sub(1).max(rules.as_of)
}

#[cfg(test)]
mod tests;
