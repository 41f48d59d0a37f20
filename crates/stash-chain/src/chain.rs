//! The accept decision: what becomes of a batch that is offered to its chain.
//!
//! A chain is the gapless sequence of batches accepted for one sink; `U` is its upper. Whoever offers runs
//! [`decide`] against what the catalog says and commits the result by compare-and-set; who loses that race
//! decides again against the new `U`. In order:
//!
//! 1. What is resolved stays resolved (I8): a repeated offer is answered with what was recorded, even to an
//!    incarnation that was closed since, for it must not delete what was accepted.
//! 2. A dropped sink and a closed incarnation refuse.
//! 3. The offer must be well-formed for the sink ([`ChainRules`]) and its incarnation (I1, I8, I9).
//! 4. A complete or poisoned chain drops everything: consumers have all they will ever get.
//! 5. `lower > U` or `floor > U` is lost history (I7).
//! 6. A dataflow error below `U` is the replica's failure. At or above, it poisons the chain at its time `e`:
//!    the piece before it is taken, and `U` becomes `e`.
//! 7. `upper ≤ U` is dropped (I5).
//! 8. The rest is accepted from `U` on: whole, or trimmed if it straddles (I4, I6). A straddling batch is not
//!    refused, because replicas cut differently: if only `lower = U` were accepted, a survivor would never
//!    again meet the upper that a dead replica left behind.
//!
//! Decisions are plain values; [`Decision::apply`] says what they make of the rows.

use stash_types::{DataflowError, Description, Frontier, RunFacts};

use crate::{ChainError, ChainRules};

/// Whether a chain can still move.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It takes batches.
    Open,
    /// Nothing is to come; its upper is empty.
    Complete,
    /// The dataflow is in error from the upper on. Only dropping the sink ends this.
    Poisoned(DataflowError),
    /// The sink was dropped.
    Dropped,
}

/// The head row of a chain.
///
/// - `Complete` iff `upper` is empty, unless dropped; `Poisoned` has `upper` at its error's time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// `U`: up to where batches were accepted; the original as-of while nothing was.
    pub upper: Frontier,
    /// Whether it can still move.
    pub status: Status,
}

impl Head {
    /// The head of a sink just declared.
    pub fn new(rules: ChainRules) -> Head {
        Head { upper: rules.start(), status: Status::Open }
    }
}

/// What the catalog knows of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rendering {
    /// The as-of it was granted: the lower of its first description.
    pub as_of: u64,
    /// Up to where its offers are resolved, as far as that was written; at first its as-of.
    pub resolved: Frontier,
    /// Whether it may still offer.
    pub open: bool,
    /// The last outcome that was written.
    pub last: Option<(Description, Outcome)>,
}

impl Rendering {
    /// An incarnation just opened.
    pub fn new(as_of: u64) -> Rendering {
        Rendering { as_of, resolved: Frontier::at(as_of), open: true, last: None }
    }

    /// Whether no batch of it is resolved yet: while it is open, its as-of counts for the read hold (I10).
    pub fn awaits_first(&self) -> bool {
        self.resolved == Frontier::at(self.as_of)
    }
}

/// A batch as it is offered, as far as the decision cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which times it covers.
    pub description: Description,
    /// The floor it was minted with.
    pub floor: Frontier,
    /// The earliest dataflow error in it.
    pub poisoned: Option<DataflowError>,
    /// Whether it carries updates, inline or in parts.
    pub has_updates: bool,
}

/// What became of an offered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Accepted from its lower on.
    Accepted,
    /// Accepted from a later time on.
    Trimmed {
        /// The chain's upper at that moment: where the accepted piece begins.
        from: Frontier,
    },
    /// Nothing of it was accepted; its blobs are deleted.
    Dropped,
}

/// The accepted piece of a batch, and what it makes of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// `Accepted` or `Trimmed`.
    pub outcome: Outcome,
    /// The times that are delivered. It begins at the old upper (I4); parts that hold nothing of it
    /// ([`keeps`]) are unlinked and deleted at once (I6).
    pub piece: Description,
    /// The chain's new upper: the piece's.
    pub upper: Frontier,
    /// The chain's new status.
    pub status: Status,
    /// The incarnation's new resolved upper: that of the whole batch.
    pub resolved: Frontier,
    /// The batch carries no update at all: the last row is extended, no row is written. (If it carries some, but
    /// [`keeps`] leaves nothing of them, the caller may do the same.)
    pub empty: bool,
}

/// What to do with an offer. All of it belongs into one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Accept a piece.
    Take(Take),
    /// The error stands exactly at the upper: nothing is accepted, the batch's blobs are deleted, and the chain
    /// becomes poisoned.
    Poison {
        /// The error.
        error: DataflowError,
        /// The incarnation's new resolved upper.
        resolved: Frontier,
    },
    /// Accept nothing and delete the batch's blobs. Whether that needs a transaction, [`Decision::must_commit`]
    /// says.
    Drop {
        /// The incarnation's new resolved upper.
        resolved: Frontier,
    },
    /// The batch was resolved before. With `None` the outcome is no longer known: its blobs are left to the
    /// sweep, for they may be the chain's.
    Recorded(Option<Outcome>),
}

impl Decision {
    /// The outcome to report to whoever offered; `None` if it is no longer known.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Decision::Take(take) => Some(take.outcome),
            Decision::Poison { .. } | Decision::Drop { .. } => Some(Outcome::Dropped),
            Decision::Recorded(outcome) => *outcome,
        }
    }

    /// Whether this needs a transaction. A drop that owns no blob writes nothing, except for the incarnation's
    /// first: the inputs hold its as-of until that one is resolved (I10), and a replica that loses every race with
    /// small updates would else hold them forever.
    pub fn must_commit(&self, rendering: &Rendering, owns_blobs: bool) -> bool {
        match self {
            Decision::Take(_) | Decision::Poison { .. } => true,
            Decision::Drop { .. } => owns_blobs || rendering.awaits_first(),
            Decision::Recorded(_) => false,
        }
    }

    /// Makes of the two rows what the decision says, once it is durable. Not to be called for a drop that was
    /// not committed. To let queued batches of one incarnation share a transaction, decide and apply one after the
    /// other on copies of the rows, then write what the copies say.
    pub fn apply(&self, description: Description, head: &mut Head, rendering: &mut Rendering) {
        let (outcome, resolved) = match self {
            Decision::Take(Take { outcome, piece: _, upper, status, resolved, empty: _ }) => {
                *head = Head { upper: *upper, status: status.clone() };
                (*outcome, *resolved)
            }
            Decision::Poison { error, resolved } => {
                head.status = Status::Poisoned(error.clone());
                (Outcome::Dropped, *resolved)
            }
            Decision::Drop { resolved } => (Outcome::Dropped, *resolved),
            Decision::Recorded(_) => return,
        };
        rendering.resolved = resolved;
        rendering.last = Some((description, outcome));
    }
}

/// Decides what becomes of `offer`, given the chain's head and what is known of the offering incarnation.
///
/// # Errors
///
/// Whatever the rules above refuse, typed. Nothing changes by it; [`ChainError::remedy`] says what to do.
///
/// ```
/// use stash_chain::{ChainRules, Decision, Head, Offer, Outcome, Rendering, decide};
/// use stash_types::{Description, Frontier};
///
/// let at = Frontier::at;
/// let rules = ChainRules { as_of: 0, up_to: Frontier::EMPTY, seals: false };
/// // A dead replica left the chain at 10; the survivor cuts at 7 and 12.
/// let head = Head { upper: at(10), ..Head::new(rules) };
/// let survivor = Rendering { resolved: at(7), ..Rendering::new(0) };
/// let offer = Offer {
///     description: Description::new(at(7), at(12)).ok_or("covers no time")?,
///     floor: at(0),
///     poisoned: None,
///     has_updates: true,
/// };
/// let Decision::Take(take) = decide(rules, &head, &survivor, &offer)? else { panic!("not taken") };
/// assert_eq!(take.outcome, Outcome::Trimmed { from: at(10) });
/// assert_eq!(take.piece.to_string(), "[10, 12)");
/// assert_eq!((take.upper, take.resolved), (at(12), at(12)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn decide(
    rules: ChainRules,
    head: &Head,
    rendering: &Rendering,
    offer: &Offer,
) -> Result<Decision, ChainError> {
    let description = offer.description;
    let resolved = description.upper();
    if resolved <= rendering.resolved {
        return recorded(rendering, description);
    }
    if head.status == Status::Dropped {
        return Err(ChainError::SinkDropped);
    }
    if !rendering.open {
        return Err(ChainError::IncarnationClosed { description });
    }
    check_offer(rules, rendering, offer)?;
    if head.status != Status::Open || head.upper.is_empty() {
        return Ok(Decision::Drop { resolved });
    }
    check_history(rules, head.upper, rendering, offer)?;
    if let Some(error) = &offer.poisoned {
        return poison(head.upper, offer, error);
    }
    Ok(match description.from(head.upper) {
        None => Decision::Drop { resolved },
        Some(piece) => {
            let status = if resolved.is_empty() { Status::Complete } else { Status::Open };
            Decision::Take(take(offer, piece, status))
        }
    })
}

/// Whether a part with these facts holds, by its times, anything of the piece. Of an accepted batch, the parts
/// that do not are unlinked and deleted in the same transaction.
pub fn keeps(facts: &RunFacts, piece: &Description) -> bool {
    facts.update_count > 0
        && Frontier::at(facts.max_time) >= piece.lower()
        && Frontier::at(facts.min_time) < piece.upper()
}

fn recorded(rendering: &Rendering, description: Description) -> Result<Decision, ChainError> {
    match rendering.last {
        _ if description.lower() < Frontier::at(rendering.as_of) => {
            Err(ChainError::OutOfOrder { description, resolved: rendering.resolved })
        }
        Some((last, outcome)) if last == description => Ok(Decision::Recorded(Some(outcome))),
        // It ends within the last one, or with it, but is another: no incarnation cuts one time twice.
        Some((last, _)) if last.lower() < description.upper() => {
            Err(ChainError::OutOfOrder { description, resolved: rendering.resolved })
        }
        _ => Ok(Decision::Recorded(None)),
    }
}

/// What must hold of an offer whatever the state of the chain.
fn check_offer(rules: ChainRules, rendering: &Rendering, offer: &Offer) -> Result<(), ChainError> {
    let description = offer.description;
    if description.lower() < rendering.resolved {
        return Err(ChainError::OutOfOrder { description, resolved: rendering.resolved });
    }
    if rendering.as_of < rules.as_of {
        return Err(ChainError::RenderedTooEarly { as_of: rendering.as_of, original: rules.as_of });
    }
    if description.upper().is_empty() {
        if !rules.may_complete() {
            return Err(ChainError::MayNotComplete { description });
        }
    } else if description.upper() >= rules.up_to {
        return Err(ChainError::BeyondUpTo { description, up_to: rules.up_to });
    }
    match &offer.poisoned {
        Some(error) if !description.contains(error.at) => {
            Err(ChainError::ErrorOutside { at: error.at, description })
        }
        Some(error) if Frontier::at(error.at) >= rules.up_to => {
            Err(ChainError::ErrorBeyondUpTo { at: error.at, up_to: rules.up_to })
        }
        _ => Ok(()),
    }
}

/// That the chain has the history this offer builds upon.
fn check_history(
    rules: ChainRules,
    upper: Frontier,
    rendering: &Rendering,
    offer: &Offer,
) -> Result<(), ChainError> {
    if offer.description.lower() > upper {
        return Err(ChainError::CatalogBehind { description: offer.description, upper });
    }
    if offer.floor > upper {
        return Err(ChainError::FloorAboveUpper { floor: offer.floor, upper });
    }
    // SUBTLE: a snapshot rendered at U itself lies at time U, survives the trim, and would count a second time
    // all that was delivered before. Only the chain's very first batch may begin with one.
    if Frontier::at(rendering.as_of) == upper && rendering.as_of != rules.as_of {
        return Err(ChainError::RenderedTooLate { as_of: rendering.as_of, upper });
    }
    Ok(())
}

fn poison(upper: Frontier, offer: &Offer, error: &DataflowError) -> Result<Decision, ChainError> {
    let at = Frontier::at(error.at);
    if at < upper {
        return Err(ChainError::ErrorBelowUpper { at: error.at, upper });
    }
    Ok(match Description::new(upper, at) {
        Some(piece) => Decision::Take(take(offer, piece, Status::Poisoned(error.clone()))),
        None => Decision::Poison { error: error.clone(), resolved: offer.description.upper() },
    })
}

fn take(offer: &Offer, piece: Description, status: Status) -> Take {
    let outcome = if offer.description.lower() == piece.lower() {
        Outcome::Accepted
    } else {
        Outcome::Trimmed { from: piece.lower() }
    };
    let resolved = offer.description.upper();
    Take { outcome, piece, upper: piece.upper(), status, resolved, empty: !offer.has_updates }
}

#[cfg(test)]
mod tests;
