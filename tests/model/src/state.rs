//! What the model remembers: the catalog's rows, the replicas' processes, the parts and the sweep.
//!
//! Where the product has a type for a row, that type stands here: [`Head`] and [`Rendering`] are what the real
//! decisions read and write. Two things are abstracted, and lose nothing:
//!
//! - The fence is only ever compared for equality, so a request remembers whether it *moved* since.
//! - A batch is not its updates: they follow from its incarnation's as-of, its description and its floor.

use stash_chain::invariants::Invariant;
use stash_chain::{Head, Outcome, Rendering};
use stash_types::{Description, Frontier};

/// One state of the whole system, as far as one sink is concerned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Which of the configuration's scenarios this is.
    pub scenario: usize,
    /// The chain's head row.
    pub head: Head,
    /// The rows that are linked, in order; none where the configuration keeps none.
    pub rows: Vec<Row>,
    /// Below this, everything was unlinked.
    pub released: Frontier,
    /// How often the update of each time was accepted.
    pub delivered: Vec<i64>,
    /// Up to where the inputs forgot their history: at once as far as the sink's hold allows.
    pub compacted: Frontier,
    /// All incarnations, in the order of their opening.
    pub incarnations: Vec<Incarnation>,
    /// How many more may be opened.
    pub opens_left: u8,
    /// Who reads the chain.
    pub consumers: Vec<Consumer>,
    /// How far the sweep is.
    pub sweep: Sweep,
    /// Which invariants a step broke; none, unless a rule was broken on purpose.
    pub broken: Broken,
}

/// A linked row: updates in `[lower, upper)`, proven empty up to `extent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Where it begins.
    pub lower: Frontier,
    /// Where its updates end.
    pub upper: Frontier,
    /// Where the next row begins.
    pub extent: Frontier,
}

/// A consumer, and up to where it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Consumer {
    /// Everything below was acknowledged.
    pub acked: Frontier,
    /// Whether it counts: one that was away too long holds nothing.
    pub present: bool,
}

/// How far the sweep is: it lists, then reads, then queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sweep {
    /// None is under way.
    Idle,
    /// The store was listed.
    Listed,
    /// References, queue and incarnations were read, and each listed key was judged.
    Judged,
    /// The wrong way round: the references were read and nothing is listed yet.
    ReadFirst,
}

/// One rendering: its row, the process that works for it, and the parts it wrote.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// Whose rendering it is.
    pub replica: u8,
    /// The catalog's row.
    pub row: Rendering,
    /// Whether the rendering contains its snapshot. It always does, unless that rule is broken.
    pub snapshot: bool,
    /// What mints, merges and offers; `None` once it died or gave up.
    pub process: Option<Process>,
    /// A commit that was sent and whose reply nobody waits for.
    pub flying: Option<Request>,
    /// The last answer that was committed or given, for the statements only.
    pub answered: Option<(Description, Option<Outcome>)>,
    /// What was committed of the first in the queue while its offerer does not know; for the statements only.
    pub unheard: Option<Outcome>,
    /// The parts that still matter to anybody.
    pub parts: Vec<Part>,
}

/// The process side of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Where the first in the queue begins.
    pub position: Frontier,
    /// The chain's upper as it is known here: the floor of what is minted.
    pub known: Frontier,
    /// What was minted and is not resolved.
    pub queue: Vec<Batch>,
    /// What was decided, and is to be committed.
    pub saw: Option<Request>,
}

impl Process {
    /// The upper of what was minted last.
    pub fn next(&self) -> Frontier {
        self.queue.last().map_or(self.position, |batch| batch.description.upper())
    }
}

/// A minted description on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Which times it covers.
    pub description: Description,
    /// The floor it was minted with.
    pub floor: Frontier,
    /// How far it is.
    pub stage: Stage,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Its parts are still to be sent.
    Minted,
    /// Its parts were sent to the store.
    Sent,
    /// All its shares were merged: it may be offered.
    Merged,
}

/// A batch and what its offerer saw of the rows when it decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is offered.
    pub batch: Batch,
    /// The head as it was seen.
    pub head: Head,
    /// The incarnation as it was seen.
    pub row: Rendering,
    /// Whether the fence rose since.
    pub fence_moved: bool,
}

/// A part: one key, one PUT, the updates of one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The time at which its updates stand.
    pub time: u64,
    /// The description in its key.
    pub description: Description,
    /// The PUT is under way: it may land at any time, or never.
    pub landing: bool,
    /// It stands in the store.
    pub stored: bool,
    /// Who has a handle of it.
    pub holder: Holder,
    /// A row references it.
    pub linked: bool,
    /// The deletion queue has it.
    pub queued: bool,
    /// A crash lost it, or it landed when nobody wanted it any longer: only the sweep can find it.
    pub lost: bool,
    /// The sweep saw it when it listed.
    pub listed: bool,
    /// The sweep judged it garbage.
    pub planned: bool,
}

/// Who has a handle of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// Nobody in any process.
    Nobody,
    /// The upload, and then the share and the merge.
    Upload,
    /// The offer.
    Offer,
    /// It was given up; the ledger keeps it until it is proven garbage.
    Ledger,
}

/// A set of invariants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Broken(u32);

impl Broken {
    fn bit(invariant: Invariant) -> u32 {
        let place = Invariant::ALL.iter().position(|one| *one == invariant).unwrap_or_default();
        1 << place
    }

    /// Adds one.
    pub fn add(&mut self, invariant: Invariant) {
        self.0 |= Broken::bit(invariant);
    }

    /// Whether it is one of them.
    pub fn has(self, invariant: Invariant) -> bool {
        self.0 & Broken::bit(invariant) != 0
    }
}

impl Incarnation {
    /// Whether anything of it can still happen or is still there.
    pub fn matters(&self) -> bool {
        self.row.open || self.process.is_some() || self.flying.is_some() || !self.parts.is_empty()
    }
}

impl Part {
    /// A part whose PUT is sent.
    pub fn sent(time: u64, description: Description) -> Part {
        Part {
            time,
            description,
            landing: true,
            stored: false,
            holder: Holder::Upload,
            linked: false,
            queued: false,
            lost: false,
            listed: false,
            planned: false,
        }
    }

    /// Whether anything of it can still happen or is still there.
    pub fn matters(&self) -> bool {
        self.landing || self.stored || self.linked || self.queued || self.holder != Holder::Nobody
    }

    /// Whether the catalog owns it.
    pub fn owned_by_catalog(&self) -> bool {
        self.linked || self.queued
    }
}
