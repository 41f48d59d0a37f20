//! Misuse of the protocol: every way in which a message or a call contradicts what is known.
//!
//! Outcomes such as a dropped batch are no errors: they are ordinary values of
//! [`Decision`](crate::Decision). Each variant here holds the frontiers or ids at fault, and its text
//! says what to do; [`ChainError::remedy`] says the same to code.

use std::num::NonZeroU32;

use stash_types::{Description, Frontier, IncarnationId, SinkId, WorkerIndex};

/// What the caller should do about a [`ChainError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The call or message is wrong: refuse it, and fix who sent it. State is unharmed.
    FixTheCall,
    /// This incarnation cannot go on: close it, and render anew with a fresh grant.
    Reopen,
    /// The catalog contradicts what was seen of it: stop, and repair it before anything is written.
    Stop,
}

/// A message or call that the protocol refuses. Nothing was changed by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A frontier moved back.
    #[error("frontier moved back from {before} to {now}: give the minter its input's frontier in order")]
    FrontierMovedBack {
        /// The frontier seen before.
        before: Frontier,
        /// The one given now.
        now: Frontier,
    },
    /// A description was resolved that is not open.
    #[error("{description} is not open at the minter: resolve each minted description once")]
    NotOpen {
        /// The description.
        description: Description,
    },
    /// I1: a description does not begin where the one before it ended.
    #[error("{description} must begin at {expected}: open descriptions in the order they were minted")]
    NotContiguous {
        /// The lower that was due.
        expected: Frontier,
        /// What was given.
        description: Description,
    },
    /// The merge has ended, by a failure or a drop; nothing may follow.
    #[error("the merge has ended and takes nothing more for {description}: close it and delete the share")]
    MergeEnded {
        /// What came too late.
        description: Description,
    },
    /// A share of another sink.
    #[error("share is of sink {found}, this merge is of {expected}: delete it and check the route")]
    OtherSink {
        /// The merge's sink.
        expected: SinkId,
        /// The share's sink.
        found: SinkId,
    },
    /// A share of another incarnation: a restarted worker, or a message from before a reconnect.
    #[error("share is of incarnation {found}, this merge is of {expected}: delete it")]
    OtherIncarnation {
        /// The merge's incarnation.
        expected: IncarnationId,
        /// The share's incarnation.
        found: IncarnationId,
    },
    /// A share of a worker that does not exist.
    #[error("worker {worker} is unknown among {workers}: check that all processes agree on their number")]
    UnknownWorker {
        /// The worker named.
        worker: WorkerIndex,
        /// How many there are.
        workers: NonZeroU32,
    },
    /// A worker reported twice.
    #[error("worker {worker} already reported its share of {description}: report each share once")]
    DuplicateShare {
        /// The worker.
        worker: WorkerIndex,
        /// What it reported for.
        description: Description,
    },
    /// A share of a description that is not open: never minted, of other bounds, or already merged.
    #[error("{description} is not open at the merge: delete the share, its batch left or was never minted")]
    ShareNotOpen {
        /// What the share was for.
        description: Description,
    },
    /// A share made with another floor than was minted: it may lack updates, or hold too many.
    #[error("share of {description} was written with floor {found}, minted was {expected}: delete it")]
    OtherFloor {
        /// What the share was for.
        description: Description,
        /// The floor minted.
        expected: Frontier,
        /// The share's floor.
        found: Frontier,
    },
    /// A dataflow error whose time lies outside its description.
    #[error("dataflow error at {at} lies outside {description}: report it with the description it is in")]
    ErrorOutside {
        /// The time of the error.
        at: u64,
        /// What it was reported for.
        description: Description,
    },
    /// A dataflow error at a time that nobody asked for.
    #[error("dataflow error at {at} is not below up_to {up_to}: leave such errors out, as updates are")]
    ErrorBeyondUpTo {
        /// The time of the error.
        at: u64,
        /// The sink's bound.
        up_to: Frontier,
    },
    /// A dataflow error at a time the chain has passed: the replicas disagree, which is this one's failure.
    #[error("dataflow error at {at} is below the chain's upper {upper}: close the incarnation, render anew")]
    ErrorBelowUpper {
        /// The time of the error.
        at: u64,
        /// The chain's upper.
        upper: Frontier,
    },
    /// The incarnation is closed.
    #[error("the incarnation is closed, {description} is refused: delete its queue and render anew")]
    IncarnationClosed {
        /// What was offered.
        description: Description,
    },
    /// The sink was dropped.
    #[error("the sink was dropped: delete what is queued for it and stop")]
    SinkDropped,
    /// I8: an offer neither continues its incarnation nor repeats what was resolved.
    #[error(
        "{description} does not continue this incarnation, resolved up to {resolved}: offer in minted order"
    )]
    OutOfOrder {
        /// What was offered.
        description: Description,
        /// Up to where the incarnation is resolved.
        resolved: Frontier,
    },
    /// I7: an offer begins beyond the chain's upper. History is lost.
    #[error(
        "{description} begins above the chain's upper {upper}: the catalog is behind, stop and restore it"
    )]
    CatalogBehind {
        /// What was offered.
        description: Description,
        /// The chain's upper.
        upper: Frontier,
    },
    /// A batch was minted with a floor that the chain has not reached. History is lost.
    #[error("floor {floor} is above the chain's upper {upper}: the catalog is behind, stop and restore it")]
    FloorAboveUpper {
        /// The floor of the offer.
        floor: Frontier,
        /// The chain's upper.
        upper: Frontier,
    },
    /// An offer claims to complete a chain that has no end.
    #[error("{description} would complete a sink that has no up_to and does not seal: end the incarnation")]
    MayNotComplete {
        /// What was offered.
        description: Description,
    },
    /// An offer has a finite upper at or after `up_to`, where it should be empty.
    #[error("{description} ends finitely at or after up_to {up_to}: read such frontiers as empty")]
    BeyondUpTo {
        /// What was offered.
        description: Description,
        /// The sink's bound.
        up_to: Frontier,
    },
    /// I9: a rendering before the sink's original as-of.
    #[error("rendering at {as_of} is before the sink's as-of {original}: render at what the grant says")]
    RenderedTooEarly {
        /// The as-of of the rendering.
        as_of: u64,
        /// The sink's.
        original: u64,
    },
    /// I9: a rendering at or after the chain's upper: its snapshot would count twice.
    #[error("rendering at {as_of} is not strictly below the upper {upper}: render at what the grant says")]
    RenderedTooLate {
        /// The as-of of the rendering.
        as_of: u64,
        /// The chain's upper.
        upper: Frontier,
    },
}

impl ChainError {
    /// What to do about it.
    pub fn remedy(&self) -> Remedy {
        use ChainError::*;
        match self {
            CatalogBehind { .. } | FloorAboveUpper { .. } => Remedy::Stop,
            IncarnationClosed { .. }
            | ErrorBelowUpper { .. }
            | RenderedTooEarly { .. }
            | RenderedTooLate { .. }
            | MergeEnded { .. } => Remedy::Reopen,
            FrontierMovedBack { .. }
            | NotOpen { .. }
            | NotContiguous { .. }
            | OtherSink { .. }
            | OtherIncarnation { .. }
            | UnknownWorker { .. }
            | DuplicateShare { .. }
            | ShareNotOpen { .. }
            | OtherFloor { .. }
            | ErrorOutside { .. }
            | ErrorBeyondUpTo { .. }
            | SinkDropped
            | OutOfOrder { .. }
            | MayNotComplete { .. }
            | BeyondUpTo { .. } => Remedy::FixTheCall,
        }
    }
}
