//! Runs a world to its end and tells what was found.

use std::fmt::{Display, Write};
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use stash_chain::invariants::Invariant;
use stash_types::fault::Mutant;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use crate::config::Config;
use crate::merge::Merging;
use crate::protocol::Protocol;
use crate::symmetry::representative;

/// A world that can tell a state in a few words.
pub trait Told: Model {
    /// The state on a line or a few.
    fn tell(&self, state: &Self::State) -> String;
}

/// What came of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its name.
    pub property: &'static str,
    /// Whether it must hold always, or be reached once.
    pub always: bool,
    /// Whether it is as it should be.
    pub good: bool,
    /// How it came to what was found, readable; empty where nothing was.
    pub story: String,
}

/// What a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Distinct states.
    pub states: usize,
    /// The length of the longest run looked at.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// One answer for each property.
    pub answers: Vec<Answer>,
}

impl Report {
    /// Whether everything is as it should be.
    pub fn good(&self) -> bool {
        self.answers.iter().all(|answer| answer.good)
    }

    /// The answer of an invariant.
    pub fn of(&self, invariant: Invariant) -> Option<&Answer> {
        self.answers.iter().find(|answer| answer.property == invariant.name())
    }
}

/// Visits every state of a world, states that differ in names only once; stops early only at a violation.
pub fn exhaust(config: Config) -> Report {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let model = Protocol { config, mutant: None, asked: None };
    let checker = model.checker().threads(threads).symmetry_fn(representative);
    report(&checker.finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join(), began)
}

/// Visits every state of the share merge.
pub fn exhaust_merge() -> Report {
    let began = Instant::now();
    let checker = Merging::new(None, None).checker().finish_when(HasDiscoveries::AnyFailures);
    report(&checker.spawn_bfs().join(), began)
}

/// Looks for the shortest way to break one invariant.
pub fn hunt(config: Config, mutant: Option<Mutant>, invariant: Invariant) -> Report {
    let began = Instant::now();
    let model = Protocol { config, mutant, asked: Some(invariant) };
    report(&model.checker().finish_when(HasDiscoveries::Any).spawn_bfs().join(), began)
}

/// The same in the share merge.
pub fn hunt_merge(mutant: Option<Mutant>, invariant: Invariant) -> Report {
    let began = Instant::now();
    let model = Merging::new(mutant, Some(invariant));
    report(&model.checker().finish_when(HasDiscoveries::Any).spawn_bfs().join(), began)
}

fn report<M>(checker: &impl Checker<M>, began: Instant) -> Report
where
    M: Told,
    M::State: Clone + PartialEq + Hash,
    M::Action: Clone + PartialEq + Display,
{
    let found = checker.discoveries();
    let model = checker.model();
    let answers = model.properties().into_iter().map(|property| {
        let path = found.get(property.name);
        let always = property.expectation != Expectation::Sometimes;
        let story = path.map(|path| story(model, path)).unwrap_or_default();
        Answer { property: property.name, always, good: path.is_some() != always, story }
    });
    let answers = answers.collect();
    Report {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        answers,
    }
}

/// A run, step by step.
fn story<M>(model: &M, path: &Path<M::State, M::Action>) -> String
where
    M: Told,
    M::State: Clone + PartialEq,
    M::Action: Clone + PartialEq + Display,
{
    let mut told = String::new();
    for (place, (state, action)) in path.clone().into_vec().into_iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(told, "{}", model.tell(&state));
        if let Some(action) = action {
            let _ = writeln!(told, "{:>4}. {action}", place + 1);
        }
    }
    told
}
