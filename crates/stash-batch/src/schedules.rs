//! The concurrent heart of a process under every order of its tasks that a schedule explorer finds.
//!
//! `cargo test --release -p stash-batch --features shuttle --locked` runs these tests and no others. Each builds a
//! world anew for every schedule: the real budget, shared batches, ledger, deleter and process, over a store and a
//! catalog in memory (`schedules/fake.rs`) that know what may not happen. Half of a test's schedules are random, half are
//! of few preemptions at random depths (PCT), which find what needs one rare switch at one place.
//!
//! - `STASH_SCHEDULES` is how many schedules all tests try together: 20,000 unless it says otherwise.
//! - `STASH_SCHEDULE_SEED` is where they begin; the same seed tries the same schedules.
//! - What fails prints its schedule. `STASH_SCHEDULE=<schedule>` and the test's name replay it.
//!
//! A lock that is never given back, a wake-up that is lost, a waiter that is forgotten: each ends as a deadlock, which
//! the explorer names. Time does not pass here, so nothing is healed by a timer (see `sync`).

mod budget;
mod deleting;
mod fake;
mod sharing;

use shuttle::{
    Config, MaxSteps, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, ReplayScheduler},
};

/// How many schedules all tests try together.
const SCHEDULES: usize = 20_000;
/// Where they begin.
const SEED: u64 = 25;
/// Preemptions of a PCT schedule.
const DEPTH: usize = 3;
/// A schedule of more steps turns in a circle.
const STEPS_MAX: usize = 200_000;
/// What encoding a part needs, with room to spare.
const STACK_BYTES: usize = 1 << 20;

/// Runs `world` under `permille` of all schedules.
fn explore(name: &'static str, permille: usize, world: impl Fn() + Clone + Send + Sync + 'static) {
    let config = || {
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
        config.silence_warnings = true;
        config
    };
    if let Some(schedule) = setting("STASH_SCHEDULE") {
        Runner::new(ReplayScheduler::new_from_encoded(schedule.trim()), config()).run(world);
        return;
    }
    let number = |what| setting(what).map(|text| text.parse::<u64>().expect("a number"));
    let all = number("STASH_SCHEDULES").map_or(SCHEDULES, |all| usize::try_from(all).expect("a count"));
    let seed = number("STASH_SCHEDULE_SEED").unwrap_or(SEED);
    let each = (all * permille / 2000).max(1);
    let _told = Told { name, seed };
    let random = RandomScheduler::new_from_seed(seed, each);
    let tried = Runner::new(random, config()).run(world.clone());
    let pct = PctScheduler::new_from_seed(seed, DEPTH, each);
    let tried = tried + Runner::new(pct, config()).run(world);
    println!("{name}: {tried} schedules from seed {seed}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "how much is tried is the environment's to say, in tests alone"
)]
fn setting(what: &str) -> Option<String> {
    std::env::var(what).ok()
}

/// Says how to try again what failed.
struct Told {
    name: &'static str,
    seed: u64,
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Told { name, seed } = self;
            eprintln!(
                "{name} failed: the schedule above replays it as STASH_SCHEDULE=<schedule> cargo test --release \
                 -p stash-batch --features shuttle --locked {name}; STASH_SCHEDULE_SEED={seed} tries all again"
            );
        }
    }
}

/// A number below `end` that the schedule holds, so that it replays.
fn below(end: u32) -> u32 {
    thread_rng().gen_range(0..end)
}

/// True `percent` times of a hundred.
fn percent(percent: u32) -> bool {
    below(100) < percent
}
