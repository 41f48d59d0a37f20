//! What harness and roles say to one another: one line of JSON each.
//!
//! A *launch* is one start of a replica, counted by the harness; what is said of an older one is passed over.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

/// What the harness orders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Open an incarnation with this token, shared by the processes of the replica; what was under way is over.
    Launch {
        /// Which start of the replica.
        launch: u64,
        /// The launch token.
        token: String,
    },
    /// The input is complete below this time.
    Advance {
        /// Below this.
        to: u64,
    },
    /// Another process of the replica minted this.
    Minted {
        /// Which start of the replica.
        launch: u64,
        /// The description's lower.
        lower: u64,
        /// Its upper.
        upper: u64,
        /// The floor.
        floor: u64,
    },
    /// A share of another process of the replica.
    Share {
        /// Which start of the replica.
        launch: u64,
        /// Its frame.
        frame: Vec<u8>,
    },
    /// What stood in the way is out of it: try again.
    GoOn,
    /// End: close everything.
    Stop,
}

/// What a role tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The stash is open.
    Ready,
    /// A rendering begins.
    Opened {
        /// Which start of the replica.
        launch: u64,
        /// Its incarnation.
        incarnation: String,
        /// Where it renders.
        as_of: u64,
        /// Whether the minting worker is here.
        minting: bool,
    },
    /// A description for the other processes.
    Minted {
        /// Which start of the replica.
        launch: u64,
        /// The description's lower.
        lower: u64,
        /// Its upper.
        upper: u64,
        /// The floor.
        floor: u64,
    },
    /// A share for the minting worker.
    Share {
        /// Which start of the replica.
        launch: u64,
        /// Its frame.
        frame: Vec<u8>,
    },
    /// An offer has its outcome.
    Resolved {
        /// The description's lower.
        lower: u64,
        /// Its upper.
        upper: u64,
        /// What became of it.
        outcome: String,
    },
    /// All below this time is resolved.
    Reached {
        /// Which start of the replica.
        launch: u64,
        /// Below this.
        to: u64,
    },
    /// The rendering is over: a new launch is wanted.
    Ended {
        /// Which start of the replica.
        launch: u64,
        /// The kind of the error.
        kind: String,
        /// The error.
        error: String,
    },
    /// There is nothing to write any more.
    Complete {
        /// Which start of the replica.
        launch: u64,
    },
    /// A call failed that may succeed later; it is made again after [`Order::GoOn`].
    Stuck {
        /// The kind of the error.
        kind: String,
        /// The error.
        error: String,
    },
    /// A batch was delivered, recorded and acknowledged.
    Delivered {
        /// Its lower.
        lower: u64,
        /// Its upper.
        upper: u64,
        /// Whether it had been recorded before.
        again: bool,
    },
    /// The chain is complete and everything was delivered.
    End,
    /// A promise does not hold.
    Violation {
        /// Which, and what was found.
        what: String,
    },
    /// The process stops itself here, and goes on when it is continued.
    Stopping {
        /// Where.
        place: String,
    },
    /// Everything was closed; how often each place was passed.
    Done {
        /// Hits by place.
        hits: BTreeMap<String, u64>,
    },
}

/// Tells the harness. Who cannot be heard any more is an orphan, and ends.
pub fn tell(event: &Event) {
    let mut out = std::io::stdout().lock();
    let told = serde_json::to_writer(&mut out, event)
        .map_err(std::io::Error::from)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    if told.is_err() {
        std::process::exit(super::role::ORPHANED);
    }
}
