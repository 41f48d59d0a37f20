//! Explores the protocol's worlds and tells what was found. `--help` says how.

use std::process::ExitCode;

use stash_model::check::{Report, exhaust, exhaust_merge};
use stash_model::config::Config;
use stash_model::mutants::{name, named, pursue};
use stash_types::fault::Mutant;

const HELP: &str = "\
stash-model [--config NAME [--bound NAME=NUMBER]...]... [--mutants] [--mutant NAME]

Without arguments it exhausts what CI does: the share merge, expiry, cutover and ownership.

--config   exhausts a world: merge, small, expiry, cutover, ownership or large; may be given more than once
--bound    moves a bound of the world before it: scenarios, horizon, replicas, opens, in_flight, consumers, or
           zombies, closings, doubts, drops, expiry (0 or 1)
--mutants  shows that each broken rule is found out by the invariant named for it
--mutant   shows how one of them comes to harm
";

/// What is asked for.
enum Task {
    Merge,
    World(Config),
    Mutant { mutant: Mutant, story: bool },
}

fn main() -> ExitCode {
    let tasks = match tasks(std::env::args().skip(1)) {
        Ok(tasks) => tasks,
        Err(wrong) => {
            eprintln!("{wrong}\n\n{HELP}");
            return ExitCode::FAILURE;
        }
    };
    // All of them are run, whatever the first one says.
    let good: Vec<bool> = tasks.into_iter().map(perform).collect();
    if good.iter().all(|good| *good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tasks(mut arguments: impl Iterator<Item = String>) -> Result<Vec<Task>, String> {
    let mut tasks = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--config" => tasks.push(world(&value()?)?),
            "--bound" => {
                let bound = value()?;
                let moved =
                    bound.split_once('=').zip(tasks.pop()).and_then(|((name, value), task)| match task {
                        Task::World(config) => config.with(name, value.parse().ok()?),
                        Task::Merge | Task::Mutant { .. } => None,
                    });
                tasks.push(Task::World(moved.ok_or(format!("no such bound of a world before it: {bound}"))?));
            }
            "--mutants" => tasks.extend(Mutant::ALL.map(|mutant| Task::Mutant { mutant, story: false })),
            "--mutant" => {
                let wanted = value()?;
                let found = Mutant::ALL.into_iter().find(|mutant| name(*mutant) == wanted);
                let all = || Mutant::ALL.map(name).join(", ");
                let mutant = found.ok_or_else(|| format!("no such mutant: {wanted}; there are {}", all()))?;
                tasks.push(Task::Mutant { mutant, story: true });
            }
            other => return Err(format!("what is {other}?")),
        }
    }
    if tasks.is_empty() {
        let worlds = [Config::expiry(), Config::cutover(), Config::ownership()];
        tasks.push(Task::Merge);
        tasks.extend(worlds.map(Task::World));
    }
    Ok(tasks)
}

fn world(wanted: &str) -> Result<Task, String> {
    if wanted == "merge" {
        return Ok(Task::Merge);
    }
    let found = Config::all().into_iter().find(|config| config.name == wanted);
    found.map(Task::World).ok_or(format!("no such world: {wanted}"))
}

fn perform(task: Task) -> bool {
    match task {
        Task::Merge => {
            println!("merge: shares that arrive in any order, twice or never");
            print(&exhaust_merge())
        }
        Task::World(config) => {
            println!("{}: {}", config.name, config.about);
            print(&exhaust(config))
        }
        Task::Mutant { mutant, story } => mutated(mutant, story),
    }
}

fn print(report: &Report) -> bool {
    let Report { states, depth, took, answers } = report;
    println!("  {states} distinct states, depth {depth}, {:.1} s", took.as_secs_f64());
    for answer in answers {
        let word = match (answer.always, answer.good) {
            (true, true) => "holds",
            (true, false) => "BROKEN",
            (false, true) => "reached",
            (false, false) => "NEVER REACHED",
        };
        println!("  {word:14} {}", answer.property);
        if answer.always && !answer.good {
            println!("{}", answer.story);
        }
    }
    report.good()
}

/// Whether the mutant was found out by its invariant.
fn mutated(mutant: Mutant, tells: bool) -> bool {
    let (name, invariant) = (name(mutant), named(mutant));
    let report = pursue(mutant);
    let broken = report.of(invariant).filter(|answer| !answer.good);
    let word = if broken.is_some() { "breaks" } else { "DOES NOT BREAK" };
    let (states, took) = (report.states, report.took.as_secs_f64());
    println!("{name:20} {word} {invariant:4} {:40} {states:7} states, {took:.1} s", invariant.promise());
    if let Some(answer) = broken.filter(|_| tells) {
        println!("{}", answer.story);
    }
    broken.is_some()
}
