//! `sim`: a seed plays the same history each time, many seeds are summed up, and words that mean none are refused.

use crate::world::World;

#[test]
fn a_seed_plays_the_same_history_each_time_and_says_what_came_of_it() {
    let world = World::new();
    let first = world.run("sim --seed 7").ok();
    assert!(first.contains("violated      none: every promise held"), "{first}");
    assert!(first.contains("mints ["), "a history that a person can read: {first}");
    assert_eq!(world.run("sim --seed 7").ok(), first);
    assert_ne!(world.run("sim --seed 8").ok(), first);
}

#[test]
fn many_seeds_are_summed_up_and_an_empty_stretch_is_refused() {
    let world = World::new();
    let sums = world.run("sim --seeds 3..6 --json").json().remove(0);
    assert_eq!((&sums["seeds"], &sums["failed"]), (&3.into(), &serde_json::json!([])));
    assert!(sums["faults_least"].as_u64().is_some_and(|faults| faults >= 50), "{sums}");
    assert!(sums["fewest_faults_seed"].is_u64(), "{sums}");
    world.run("sim --seeds 6..3").fails(2, &["A must be below B"]);
    world.run("sim").fails(2, &["--seed"]);
    assert_eq!(world.blobs(), Vec::<String>::new(), "a simulation touches no stash");
}
