//! What can happen, one step at a time. Incarnations are numbered in the order of their opening.

use std::fmt;

use stash_types::Frontier;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A replica is granted an incarnation; its older ones are closed by the same transaction.
    Open {
        /// The replica.
        replica: u8,
        /// Whether its former process let go before, as at a reconnect, or goes on without knowing.
        lets_go: bool,
    },
    /// The next description is minted, at this frontier of the input.
    Mint {
        /// The incarnation.
        by: usize,
        /// The frontier.
        frontier: Frontier,
    },
    /// The PUTs of the first batch that waits for them are sent.
    Put {
        /// The incarnation.
        by: usize,
    },
    /// A PUT lands, at whatever time.
    Land {
        /// The incarnation.
        by: usize,
        /// The part's time.
        time: u64,
    },
    /// All parts of a batch are seen to have landed: its shares are merged.
    Merge {
        /// The incarnation.
        by: usize,
    },
    /// A share fails: the merge ends, and all that was collected is given up. The closing follows.
    Fail {
        /// The incarnation.
        by: usize,
    },
    /// Head and incarnation are read, and the offer of this place in the queue is decided.
    Look {
        /// The incarnation.
        by: usize,
        /// The place in its queue, which is the first.
        place: usize,
    },
    /// What was decided is committed.
    Commit {
        /// The incarnation.
        by: usize,
        /// Whether the offerer hears of it.
        heard: bool,
    },
    /// The offerer gives up waiting; the commit may land later.
    Doubt {
        /// The incarnation.
        by: usize,
    },
    /// A commit nobody waits for reaches the catalog.
    Arrive {
        /// The incarnation.
        by: usize,
    },
    /// The incarnation is closed, by its replica or because its lease ran out.
    Close {
        /// The incarnation.
        of: usize,
    },
    /// All processes of a replica die.
    Crash {
        /// The replica.
        replica: u8,
    },
    /// The sink is dropped.
    DropSink,
    /// A consumer is done with everything below this; what all are done with is released.
    Acknowledge {
        /// The consumer.
        consumer: usize,
        /// The frontier.
        upper: Frontier,
    },
    /// A consumer was away too long: it holds nothing any longer.
    GoAway {
        /// The consumer.
        consumer: usize,
    },
    /// Retention takes everything below this.
    Expire {
        /// The frontier.
        upper: Frontier,
    },
    /// A ledger asks about a part that was given up, and queues it if it is proven garbage.
    Ledger {
        /// The incarnation.
        by: usize,
        /// The part's time.
        time: u64,
    },
    /// The sweep lists the store.
    SweepLists,
    /// The sweep reads references, queue and incarnations, and judges what it listed.
    SweepJudges,
    /// The sweep queues what it judged garbage, after a last look at references and queue.
    SweepQueues,
    /// The deleter deletes a queued part from the store.
    Delete {
        /// The incarnation.
        by: usize,
        /// The part's time.
        time: u64,
    },
    /// The deleter forgets a part that the store said is gone.
    Dequeue {
        /// The incarnation.
        by: usize,
        /// The part's time.
        time: u64,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Open { replica, lets_go: true } => write!(f, "replica {replica} renders"),
            Action::Open { replica, lets_go: false } => {
                write!(f, "replica {replica} renders, and its former process does not know")
            }
            Action::Mint { by, frontier } => write!(f, "i{by} mints at frontier {frontier}"),
            Action::Put { by } => write!(f, "i{by} sends the parts of a batch"),
            Action::Land { by, time } => write!(f, "i{by}'s part of time {time} lands"),
            Action::Merge { by } => write!(f, "i{by} merges the shares of a batch"),
            Action::Fail { by } => write!(f, "i{by} has a share that failed, and lets go"),
            Action::Look { by, place: 0 } => write!(f, "i{by} looks and decides"),
            Action::Look { by, place } => {
                write!(f, "i{by} looks and decides about place {place} of its queue")
            }
            Action::Commit { by, heard: true } => write!(f, "i{by} commits and hears of it"),
            Action::Commit { by, heard: false } => write!(f, "i{by} commits, and the reply is lost"),
            Action::Doubt { by } => write!(f, "i{by} gives up waiting for its commit"),
            Action::Arrive { by } => write!(f, "i{by}'s late commit arrives"),
            Action::Close { of } => write!(f, "i{of} is closed"),
            Action::Crash { replica } => write!(f, "replica {replica} dies"),
            Action::DropSink => f.write_str("the sink is dropped"),
            Action::Acknowledge { consumer, upper } => write!(f, "consumer {consumer} acknowledges {upper}"),
            Action::GoAway { consumer } => write!(f, "consumer {consumer} is away too long"),
            Action::Expire { upper } => write!(f, "retention takes everything below {upper}"),
            Action::Ledger { by, time } => write!(f, "the ledger asks about i{by}'s part of time {time}"),
            Action::SweepLists => f.write_str("the sweep lists"),
            Action::SweepJudges => f.write_str("the sweep reads and judges"),
            Action::SweepQueues => f.write_str("the sweep queues"),
            Action::Delete { by, time } => write!(f, "the deleter deletes i{by}'s part of time {time}"),
            Action::Dequeue { by, time } => write!(f, "the deleter forgets i{by}'s part of time {time}"),
        }
    }
}
