//! Many worlds, several at a time, and what came of them together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    Audit, Outcome, Plan, Wanted,
    feed::Chance,
    place::{Kind, PLACES},
};

/// How often a wanted death may be missed before it counts as not to be had.
const MISSES_MAX: u32 = 6;

/// How often is told how far a campaign is.
const TELL: Duration = Duration::from_secs(10);

/// What came of one world.
type Ran = anyhow::Result<(Outcome, Audit)>;

/// How worlds are run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The binary that plays the roles.
    pub binary: PathBuf,
    /// What the seeds of all worlds follow from.
    pub seed: u64,
    /// Worlds that live at the same time.
    pub jobs: usize,
    /// Whether a line is printed for each world.
    pub verbose: bool,
}

/// What came of many worlds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Worlds that were run.
    pub worlds: u64,
    /// Deaths by SIGKILL at a place.
    pub kills: u64,
    /// Deaths by place.
    pub by_place: BTreeMap<String, u64>,
    /// Deaths by kind of process.
    pub by_kind: BTreeMap<Kind, u64>,
    /// Planned deaths that did not happen.
    pub missed: u64,
    /// Deliveries that came again.
    pub redelivered: u64,
    /// Outcomes of offers.
    pub outcomes: BTreeMap<String, u64>,
    /// Parts that were left for the drop, all of them referenced.
    pub parts: usize,
    /// Plans that failed, and why.
    pub failures: Vec<(String, String)>,
    /// When it was told last how far this is.
    told: Option<Instant>,
}

impl Report {
    /// The places nobody died at.
    pub fn never_hit(&self) -> Vec<&'static str> {
        let hit: BTreeSet<&str> = self.by_place.keys().map(String::as_str).collect();
        PLACES.iter().map(|place| place.name).filter(|name| !hit.contains(name)).collect()
    }

    fn add(&mut self, plan: &Plan, ran: Ran) {
        self.worlds += 1;
        let (outcome, audit) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                self.failures.push((plan.to_string(), format!("{error:#}")));
                return;
            }
        };
        for (who, at) in &outcome.deaths {
            self.kills += 1;
            *self.by_place.entry(at.place.clone()).or_default() += 1;
            *self.by_kind.entry(who.kind()).or_default() += 1;
        }
        self.missed += outcome.missed.len() as u64;
        self.redelivered += outcome.redelivered;
        self.parts += audit.parts;
        for (kind, count) in outcome.outcomes {
            *self.outcomes.entry(kind).or_default() += count;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "worlds {}, kills {}, missed {}, redelivered {}, offers {:?}, parts audited {}, failures {}",
            self.worlds,
            self.kills,
            self.missed,
            self.redelivered,
            self.outcomes,
            self.parts,
            self.failures.len()
        )?;
        writeln!(f, "by kind: {:?}", self.by_kind)?;
        for (place, kills) in &self.by_place {
            writeln!(f, "  {kills:6}  {place}")?;
        }
        for place in self.never_hit() {
            writeln!(f, "  never   {place}")?;
        }
        self.failures
            .iter()
            .try_for_each(|(plan, why)| writeln!(f, "FAILED: crash-torture {plan}\n    {why}"))
    }
}

impl Campaign {
    /// Has somebody die at every place, each kind of process that passes it; what was missed is tried again,
    /// sooner.
    pub async fn cover(&self, mut wanted: Vec<Wanted>, report: &mut Report) {
        let mut seeds = Chance::new(self.seed);
        let mut living: JoinSet<(Plan, Vec<Wanted>, Ran)> = JoinSet::new();
        loop {
            while living.len() < self.jobs && !wanted.is_empty() {
                let before = wanted.clone();
                let plan = Plan::pack(seeds.draw() >> 32, &mut wanted);
                let is_left = |one: &Wanted| {
                    wanted.iter().any(|left| {
                        (left.place.name, left.kind, left.hit) == (one.place.name, one.kind, one.hit)
                    })
                };
                let taken: Vec<Wanted> = before.into_iter().filter(|one| !is_left(one)).collect();
                let binary = self.binary.clone();
                living.spawn(async move {
                    let ran = plan.run(&binary).await;
                    (plan, taken, ran)
                });
            }
            let Some(joined) = living.join_next().await else { return };
            let (plan, taken, ran) = match joined {
                Ok(done) => done,
                Err(panicked) => {
                    report.failures.push(("a world panicked".to_owned(), panicked.to_string()));
                    continue;
                }
            };
            if let Ok((outcome, _)) = &ran {
                for one in taken {
                    let is_it = |(who, at): &(crate::Who, crate::At)| {
                        who.kind() == one.kind && at.place == one.place.name && at.hit == one.hit
                    };
                    if !outcome.deaths.iter().any(is_it) && one.missed < MISSES_MAX {
                        let again = Wanted { hit: one.hit.div_ceil(2), missed: one.missed + 1, ..one };
                        wanted.push(again);
                    }
                }
            }
            self.done(&plan, ran, report);
        }
    }

    /// Runs worlds of random deaths until the report has so many kills.
    pub async fn random(&self, kills: u64, report: &mut Report) {
        let mut seeds = Chance::new(self.seed ^ 0x7a11);
        let mut living = JoinSet::new();
        loop {
            while living.len() < self.jobs && report.kills < kills && report.failures.len() < 20 {
                let (plan, binary) = (Plan::random(seeds.draw() >> 32), self.binary.clone());
                living.spawn(async move {
                    let ran = plan.run(&binary).await;
                    (plan, ran)
                });
            }
            let Some(joined) = living.join_next().await else { return };
            match joined {
                Ok((plan, ran)) => self.done(&plan, ran, report),
                Err(panicked) => report.failures.push(("a world panicked".to_owned(), panicked.to_string())),
            }
        }
    }

    fn done(&self, plan: &Plan, ran: Ran, report: &mut Report) {
        match &ran {
            Ok((outcome, _)) if self.verbose => println!("ok, {} deaths: {plan}", outcome.deaths.len()),
            Ok(_) => {}
            Err(error) => println!("FAILED: crash-torture {plan}\n    {error:#}"),
        }
        report.add(plan, ran);
        if report.told.get_or_insert_with(Instant::now).elapsed() >= TELL {
            report.told = Some(Instant::now());
            let Report { kills, worlds, failures, .. } = &*report;
            eprintln!("crash-torture: {kills} kills in {worlds} worlds, {} failed", failures.len());
        }
    }
}
