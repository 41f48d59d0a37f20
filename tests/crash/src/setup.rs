//! What a world is made of.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use crate::{place::Kind, plan::Death};

/// A process of a world, by its part in it. It may die and be started again; its place stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A process of a replica: which replica, and which of its processes.
    Replica(usize, u32),
    /// The consumer.
    Consumer,
    /// The sweeper.
    Sweeper,
    /// The expirer.
    Expirer,
    /// The dropper.
    Dropper,
}

impl Who {
    /// What kind of process it is.
    pub fn kind(self) -> Kind {
        match self {
            Who::Replica(..) => Kind::Replica,
            Who::Consumer => Kind::Consumer,
            Who::Sweeper => Kind::Sweeper,
            Who::Expirer => Kind::Expirer,
            Who::Dropper => Kind::Dropper,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Replica(replica, process) => write!(f, "replica-{replica}.{process}"),
            Who::Consumer => f.write_str("consumer"),
            Who::Sweeper => f.write_str("sweeper"),
            Who::Expirer => f.write_str("expirer"),
            Who::Dropper => f.write_str("dropper"),
        }
    }
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetup {
    /// Its processes.
    pub processes: u32,
    /// Workers in each.
    pub workers: u32,
    /// How many times each of its descriptions takes, over and over.
    pub cuts: Vec<u64>,
}

/// A world before it begins.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The binary that plays the roles.
    pub binary: PathBuf,
    /// The seed of the feed.
    pub seed: u64,
    /// The first time without updates.
    pub end: u64,
    /// How much larger than usual the large times are.
    pub weight: u64,
    /// By how many times the input advances at once.
    pub round: u64,
    /// The replicas.
    pub replicas: Vec<ReplicaSetup>,
    /// Whether somebody sweeps and verifies all the time.
    pub sweeper: bool,
    /// Whether a second consumer holds everything to the end.
    pub keeper: bool,
    /// Whether the sink has a retention, and expires at the end, before it is dropped. Needs the keeper, who holds
    /// everything until then.
    pub expires: bool,
    /// Who dies where, in this order for each of them.
    pub deaths: Vec<Death>,
    /// Who starts before the others do, and is waited for until it has opened the stash or died of it.
    pub first: Option<Who>,
    /// The lease of incarnations.
    pub lease_secs: u32,
    /// Where who stops itself, at its first start.
    pub stops: BTreeMap<Who, crate::At>,
    /// What is put before who's command line, at its first start.
    pub wraps: BTreeMap<Who, Vec<String>>,
    /// The folder of the stash; in a temporary folder where it is not given.
    pub stash: Option<PathBuf>,
    /// Whether a process that ends with an error is started again, rather than failing the world.
    pub errors_allowed: bool,
    /// Whether deletes may be refused: they are due again later, and the audit waits for that.
    pub deletes_refused: bool,
}

impl Setup {
    /// Two replicas, a consumer and a sweeper; nobody dies.
    pub fn new(binary: impl Into<PathBuf>, seed: u64) -> Setup {
        Setup {
            binary: binary.into(),
            seed,
            end: 24,
            weight: 1,
            round: 3,
            replicas: vec![
                ReplicaSetup { processes: 1, workers: 2, cuts: vec![1, 2] },
                ReplicaSetup { processes: 1, workers: 1, cuts: vec![3, 1] },
            ],
            sweeper: true,
            keeper: false,
            expires: false,
            deaths: Vec::new(),
            first: None,
            lease_secs: 60,
            stops: BTreeMap::new(),
            wraps: BTreeMap::new(),
            stash: None,
            errors_allowed: false,
            deletes_refused: false,
        }
    }

    /// Everybody who takes part from the beginning.
    pub fn everybody(&self) -> Vec<Who> {
        let mut all = Vec::new();
        for (replica, setup) in self.replicas.iter().enumerate() {
            all.extend((0..setup.processes).map(|process| Who::Replica(replica, process)));
        }
        all.push(Who::Consumer);
        if self.sweeper {
            all.push(Who::Sweeper);
        }
        all
    }
}
