//! Plans: who dies where. A world follows from its plan, so a plan is all that is needed to run it again.

use std::{fmt, path::Path, str::FromStr, time::Duration};

use anyhow::Context;

use crate::{
    At, Audit,
    audit::{audit, audit_dropped, audit_expired},
    feed::Chance,
    place::{Kind, PLACES, Place, When},
    setup::{ReplicaSetup, Setup, Who},
    world::{Outcome, World},
};

/// How long a world may take.
const DEADLINE: Duration = Duration::from_secs(300);

/// Somebody's death.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Death {
    /// Who.
    pub who: Who,
    /// Where.
    pub at: At,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.who, self.at)
    }
}

impl FromStr for Death {
    type Err = String;

    fn from_str(text: &str) -> Result<Death, String> {
        let wrong = || {
            format!(
                "{text:?} is not WHO@PLACE:COUNT, such as consumer@batch.deleted:2 or replica-0.1@blob.linked:1"
            )
        };
        let (who, at) = text.split_once('@').ok_or_else(wrong)?;
        let who = match who {
            "consumer" => Who::Consumer,
            "sweeper" => Who::Sweeper,
            "expirer" => Who::Expirer,
            "dropper" => Who::Dropper,
            replica => {
                let (replica, process) = replica
                    .strip_prefix("replica-")
                    .and_then(|rest| rest.split_once('.'))
                    .ok_or_else(wrong)?;
                Who::Replica(replica.parse().map_err(|_| wrong())?, process.parse().map_err(|_| wrong())?)
            }
        };
        Ok(Death { who, at: at.parse()? })
    }
}

/// A place that somebody of this kind is to die at.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The place.
    pub place: &'static Place,
    /// Who.
    pub kind: Kind,
    /// At which hit.
    pub hit: u64,
    /// How often it was missed.
    pub missed: u32,
}

impl Wanted {
    /// Every place by everybody who passes it: the first time, and where it is passed often, a later time too.
    pub fn all() -> Vec<Wanted> {
        let mut all = Vec::new();
        for place in PLACES {
            for (kind, hits) in place.by {
                all.push(Wanted { place, kind: *kind, hit: 1, missed: 0 });
                if *hits > 1 {
                    all.push(Wanted { place, kind: *kind, hit: *hits, missed: 0 });
                }
            }
        }
        all
    }

    /// Whether it takes a consumer that holds everything, or one that does not; `None`: either.
    fn keeper(&self) -> Option<bool> {
        let name = self.place.name;
        match self.kind {
            Kind::Expirer | Kind::Dropper => Some(true),
            Kind::Sweeper if name.starts_with("stash.sweep_") => Some(true),
            Kind::Consumer => {
                let deletes = ["blob.", "batch.d", "catalog.dequeue", "catalog.unlinked"];
                deletes.iter().any(|prefix| name.starts_with(prefix)).then_some(false)
            }
            Kind::Sweeper | Kind::Replica => None,
        }
    }

    /// Whether it takes a world that expires, or one that does not; `None`: either. Where all has expired, a drop has
    /// nothing left to delete; and a stash that expires is not new to whoever comes first.
    fn expires(&self) -> Option<bool> {
        match self.kind {
            Kind::Expirer => Some(true),
            Kind::Dropper => Some(false),
            _ => (self.place.when == When::First).then_some(false),
        }
    }

    /// Whether nobody may sweep afterwards. What a deleter had begun when it died is in the queue, and the queue alone
    /// must bring it to an end: a sweep would hide that it does not.
    fn is_unswept(&self) -> bool {
        self.keeper() == Some(false)
    }

    fn deaths(&self, chance: &mut Chance) -> Vec<Death> {
        let who = match self.kind {
            // Which of the two passes it follows from where the minting worker is: whoever comes there dies.
            Kind::Replica if self.place.when == When::Two => {
                let at = At::new(self.place.name, self.hit);
                return (0..2)
                    .map(|process| Death { who: Who::Replica(0, process), at: at.clone() })
                    .collect();
            }
            Kind::Replica => Who::Replica(usize::from(chance.percent(50)), 0),
            Kind::Consumer => Who::Consumer,
            Kind::Sweeper => Who::Sweeper,
            Kind::Expirer => Who::Expirer,
            Kind::Dropper => Who::Dropper,
        };
        let before = match self.place.when {
            When::After(before) => Some(Death { who, at: At::new(before, 1) }),
            When::Always | When::First | When::Two => None,
        };
        before.into_iter().chain([Death { who, at: At::new(self.place.name, self.hit) }]).collect()
    }
}

/// A world and its deaths.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all but the deaths follows from.
    pub seed: u64,
    /// The deaths, in order for each who.
    pub deaths: Vec<Death>,
    /// Whether a consumer holds everything; follows from the seed where it is not given.
    pub keeper: Option<bool>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {}", self.seed)?;
        if let Some(keeper) = self.keeper {
            write!(f, " --keeper {keeper}")?;
        }
        self.deaths.iter().try_for_each(|death| write!(f, " --die {death}"))
    }
}

impl Plan {
    /// Takes wanted deaths that fit into one world out of `wanted`, at least one.
    pub fn pack(seed: u64, wanted: &mut Vec<Wanted>) -> Plan {
        /// Deaths of one process in one world, so that each has something left to do.
        const EACH_MAX: usize = 3;
        let mut chance = Chance::new(seed);
        let (mut plan, mut first, mut keeper) =
            (Plan { seed, deaths: Vec::new(), keeper: None }, false, None);
        let (mut unswept, mut swept, mut expires) = (false, false, None);
        let mut left = Vec::new();
        for one in wanted.drain(..) {
            let is_first = one.place.when == When::First;
            let deaths = one.deaths(&mut chance);
            let whose = |death: &Death| {
                let of = plan.deaths.iter().filter(|other| other.who == death.who).count();
                of + deaths.len() > EACH_MAX
            };
            let sweeps = matches!(one.kind, Kind::Replica | Kind::Sweeper);
            let clash = (is_first && first)
                || (sweeps && unswept)
                || (one.is_unswept() && swept)
                || matches!((keeper, one.keeper()), (Some(a), Some(b)) if a != b)
                || matches!((expires, one.expires()), (Some(a), Some(b)) if a != b)
                || deaths.iter().any(whose);
            if clash {
                left.push(one);
                continue;
            }
            keeper = keeper.or(one.keeper());
            expires = expires.or(one.expires());
            first |= is_first;
            swept |= sweeps;
            unswept |= one.is_unswept();
            match is_first {
                true => plan.deaths.splice(0..0, deaths).for_each(drop),
                false => plan.deaths.extend(deaths),
            }
        }
        *wanted = left;
        plan.keeper = keeper;
        plan
    }

    /// A plan of a few deaths anywhere.
    pub fn random(seed: u64) -> Plan {
        let mut chance = Chance::new(seed ^ 0x5eed);
        let mut plan = Plan { seed, deaths: Vec::new(), keeper: Some(chance.percent(50)) };
        for _ in 0..2 + chance.below(6) {
            let Some(place) = chance.one_of(PLACES) else { continue };
            let Some((kind, hits)) = chance.one_of(place.by) else { continue };
            let hit = 1 + chance.below(*hits);
            let wanted = Wanted { place, kind: *kind, hit, missed: 0 };
            plan.deaths.extend(wanted.deaths(&mut chance));
        }
        plan
    }

    /// The world of this plan.
    pub fn setup(&self, binary: &Path) -> Setup {
        let mut chance = Chance::new(self.seed);
        let mut setup = Setup::new(binary, self.seed);
        let several = |chance: &mut Chance| (0..3).map(|_| 1 + chance.below(3)).collect::<Vec<_>>();
        let second = Who::Replica(0, 1);
        let two = chance.percent(30)
            || self.deaths.iter().any(|death| {
                let needs_two = PLACES.iter().any(|p| p.name == death.at.place && p.when == When::Two);
                death.who == second || needs_two
            });
        setup.replicas = vec![
            ReplicaSetup {
                processes: if two { 2 } else { 1 },
                workers: 1 + u32::from(chance.percent(60)),
                cuts: several(&mut chance),
            },
            ReplicaSetup {
                processes: 1,
                workers: 1 + u32::from(chance.percent(60)),
                cuts: several(&mut chance),
            },
        ];
        let dies = |kind| self.deaths.iter().any(|death| death.who.kind() == kind);
        // Half of the worlds heal by what replicas sweep when they open; who only lost readers needs no sweep at all.
        setup.sweeper = dies(Kind::Sweeper) || (dies(Kind::Replica) && chance.percent(50));
        setup.expires = dies(Kind::Expirer);
        setup.keeper = setup.expires || self.keeper.unwrap_or_else(|| chance.percent(50));
        let is_first = |death: &&Death| {
            PLACES.iter().any(|place| place.name == death.at.place && place.when == When::First)
        };
        setup.first = self.deaths.first().filter(is_first).map(|death| death.who);
        setup.deaths = self.deaths.clone();
        setup
    }

    /// Runs the plan's world to its end and audits it.
    pub async fn run(&self, binary: &Path) -> anyhow::Result<(Outcome, Audit)> {
        let life = async {
            let mut world = World::start(self.setup(binary)).await?;
            let audited = live(&mut world).await?;
            Ok((world.outcome, audited))
        };
        tokio::time::timeout(DEADLINE, life).await.context("the world did not end")?
    }
}

/// Lives a world to its end: until all is delivered, closed, audited, dropped and audited again.
pub async fn live(world: &mut World) -> anyhow::Result<Audit> {
    world.run_to_the_end().await?;
    world.stop_all().await?;
    let audited = audit(world).await?;
    if world.setup.expires {
        world.expire().await?;
        audit_expired(world).await?;
    }
    world.drop_sink().await?;
    audit_dropped(world).await?;
    Ok(audited)
}
