//! How large a world is explored, and which sinks are tried in it.

use stash_chain::ChainRules;
use stash_types::Frontier;

/// The original as-of of every sink here. Not 0, so that there is something below it.
pub const AS_OF: u64 = 1;

/// A sink and what its dataflow does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What was declared.
    pub rules: ChainRules,
    /// The dataflow is in error from this time on.
    pub error: Option<u64>,
}

impl Scenario {
    const fn plain() -> Scenario {
        Scenario { rules: ChainRules { as_of: AS_OF, up_to: Frontier::EMPTY, seals: false }, error: None }
    }

    const fn up_to(time: u64) -> Scenario {
        let plain = Scenario::plain();
        Scenario { rules: ChainRules { up_to: Frontier::at(time), ..plain.rules }, error: None }
    }

    const fn sealing() -> Scenario {
        let plain = Scenario::plain();
        Scenario { rules: ChainRules { seals: true, ..plain.rules }, error: None }
    }

    const fn error_at(time: u64) -> Scenario {
        Scenario { error: Some(time), ..Scenario::plain() }
    }
}

/// The bounds of a world. Within them everything that can happen is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// The sinks that are tried, each from its own start.
    pub scenarios: Vec<Scenario>,
    /// The last finite upper at which a replica can cut.
    pub horizon: u64,
    /// The times at which anything changes.
    pub updates: Vec<u64>,
    /// The times whose updates travel in parts; those of others are inline.
    pub parts: Vec<u64>,
    /// How many replicas there are.
    pub replicas: u8,
    /// How many incarnations may ever be opened.
    pub opens: u8,
    /// How many descriptions may be open.
    pub in_flight: usize,
    /// How many consumers there are.
    pub consumers: usize,
    /// Whether a replica may go on while another process of it renders anew.
    pub zombies: bool,
    /// Whether incarnations are closed by others, as when their lease runs out.
    pub closings: bool,
    /// Whether an offerer may give up waiting for a commit that lands later.
    pub doubts: bool,
    /// Whether the sink may be dropped.
    pub drops: bool,
    /// Whether rows are kept, consumers acknowledge, and a sweep and a deleter run.
    pub cleaning: bool,
    /// Whether consumers may be away too long, and retention takes what nobody present holds.
    pub expiry: bool,
}

impl Config {
    /// What the protocol decides: races, stale views, lost replies, zombies, crashes, over every kind of sink.
    pub fn cutover() -> Config {
        Config {
            name: "cutover",
            about: "races, stale views, lost replies, zombies and crashes, without parts",
            scenarios: vec![
                Scenario::plain(),
                Scenario::up_to(4),
                Scenario::sealing(),
                Scenario::error_at(3),
                Scenario::error_at(2),
            ],
            horizon: 4,
            updates: vec![0, 1, 2, 3],
            parts: Vec::new(),
            replicas: 2,
            opens: 3,
            in_flight: 2,
            consumers: 0,
            // Whoever was closed while it lives is a zombie already.
            zombies: false,
            closings: true,
            doubts: true,
            drops: true,
            cleaning: false,
            expiry: false,
        }
    }

    /// Who answers for a part: uploads, crashes, the chain, consumers, the sweep and the deleter.
    pub fn ownership() -> Config {
        Config {
            name: "ownership",
            about: "parts from their PUT to their deletion, with a sweep, a deleter and a consumer",
            scenarios: vec![Scenario::plain()],
            horizon: 4,
            updates: vec![1, 2, 3],
            parts: vec![2, 3],
            replicas: 2,
            opens: 2,
            in_flight: 1,
            consumers: 1,
            zombies: false,
            // A replica that renders anew or dies is closed all the same.
            closings: false,
            doubts: false,
            drops: false,
            cleaning: true,
            expiry: false,
        }
    }

    /// A larger world, on demand.
    pub fn large() -> Config {
        Config {
            name: "large",
            about: "ownership, and anybody may close any incarnation at any time",
            closings: true,
            ..Config::ownership()
        }
    }

    /// What leaves without having been read.
    pub fn expiry() -> Config {
        Config {
            name: "expiry",
            about: "two consumers that may stay away, retention, and a drop of the sink",
            consumers: 2,
            replicas: 1,
            expiry: true,
            drops: true,
            closings: false,
            ..Config::small()
        }
    }

    /// A world for the tests of every day.
    pub fn small() -> Config {
        Config {
            name: "small",
            about: "a few seconds without optimisation",
            horizon: 3,
            updates: vec![1, 2],
            parts: vec![2],
            ..Config::ownership()
        }
    }

    /// The cutover, no larger than it takes to see a rule of it broken.
    pub fn least_cutover() -> Config {
        let cutover = Config::cutover();
        Config { name: "least", opens: 2, closings: false, doubts: false, drops: false, ..cutover }
    }

    /// Ownership, no larger than it takes to see a trim.
    pub fn least_trim() -> Config {
        let small = Config::small();
        Config { name: "trim", horizon: 4, updates: vec![1, 2, 3], parts: vec![3], closings: false, ..small }
    }

    /// Whether a batch can be cut in the middle: there are two times behind the snapshot.
    pub fn has_straddlers(&self) -> bool {
        self.horizon > AS_OF + 2
    }

    /// The same world with one bound moved; `None` if there is no such bound.
    pub fn with(self, bound: &str, value: u64) -> Option<Config> {
        let small = u8::try_from(value).ok()?;
        let count = usize::from(small);
        let yes = value > 0;
        Some(match bound {
            "scenarios" => Config { scenarios: self.scenarios.into_iter().take(count).collect(), ..self },
            "horizon" => Config { horizon: value, ..self },
            "replicas" => Config { replicas: small, ..self },
            "opens" => Config { opens: small, ..self },
            "in_flight" => Config { in_flight: count, ..self },
            "consumers" => Config { consumers: count, ..self },
            "zombies" => Config { zombies: yes, ..self },
            "closings" => Config { closings: yes, ..self },
            "doubts" => Config { doubts: yes, ..self },
            "drops" => Config { drops: yes, ..self },
            "expiry" => Config { expiry: yes, ..self },
            _ => return None,
        })
    }

    /// All of them.
    pub fn all() -> [Config; 5] {
        [Config::small(), Config::expiry(), Config::cutover(), Config::ownership(), Config::large()]
    }
}
