//! Properties of the whole protocol against a single-replica oracle.
//!
//! A [`Plan`] is a random changefeed, a random sink and a random sequence of events over two or three replicas:
//! they advance, mint, write and offer each at its own pace, race one another, lose replies, fail, die and render
//! anew. The [`World`] checks the invariants after each event, so every test here runs all of them.

mod world;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use stash_types::Frontier;

use self::world::{Plan, TIME_LAST, World};
use crate::{ChainRules, Status};

fn rules() -> impl Strategy<Value = ChainRules> {
    let up_to = prop_oneof![
        3 => Just(Frontier::EMPTY),
        2 => (0..=TIME_LAST + 2).prop_map(Frontier::at),
    ];
    (0..4u64, up_to, any::<bool>()).prop_map(|(as_of, up_to, seals)| ChainRules { as_of, up_to, seals })
}

fn plans() -> impl Strategy<Value = Plan> {
    let updates = prop::collection::vec((0..=TIME_LAST, 0..5u8, -2..=2i64), 0..40);
    let error = prop_oneof![2 => Just(None), 1 => (0..=TIME_LAST).prop_map(Some)];
    let drop_at = prop_oneof![9 => Just(None), 1 => (0..200usize).prop_map(Some)];
    let steps = prop::collection::vec((0..100u8, any::<u8>(), any::<u8>()), 0..260);
    (rules(), 1..4u32, 2..4usize, updates, error, 1..4usize, drop_at, steps).prop_map(
        |(rules, workers, replicas, updates, error, in_flight_max, drop_at, steps)| Plan {
            rules,
            workers,
            replicas,
            updates,
            error,
            in_flight_max,
            drop_at,
            steps,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn oracle_what_is_delivered_is_what_one_replica_would_have_computed(plan in plans()) {
        let mut world = World::new(plan);
        world.run();
        world.finish();
    }

    #[test]
    fn oracle_one_live_replica_brings_the_chain_to_its_end(plan in plans()) {
        let plan = Plan { drop_at: None, ..plan };
        let (rules, error) = (plan.rules, plan.error_shown());
        let mut world = World::new(plan);
        world.run();
        world.drain();
        let head = world.head().clone();
        match (error, head.status) {
            (Some(at), Status::Poisoned(_)) => {
                prop_assert!(head.upper == Frontier::at(at), "poisoned at {}, not {at}", head.upper);
            }
            (None, Status::Complete) => prop_assert!(rules.may_complete() && head.upper.is_empty()),
            (None, Status::Open) => {
                prop_assert!(!rules.may_complete());
                prop_assert_eq!(head.upper, Frontier::at(TIME_LAST + 1));
            }
            (error, status) => prop_assert!(false, "error {error:?}, but the chain is {status:?}"),
        }
        world.finish();
    }
}

#[test]
fn oracle_runs_reach_every_outcome_they_claim_to_test() {
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeMap::<&'static str, u32>::new();
    for _ in 0..1500 {
        let plan = plans().new_tree(&mut runner).expect("plans are not filtered").current();
        let mut world = World::new(plan);
        world.run();
        world.drain();
        world.finish();
        world.seen().iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
    }
    for what in [
        "accepted",
        "trimmed",
        "dropped",
        "dropped without a write",
        "part unlinked by a trim",
        "empty batch extended a row",
        "poisoned with a piece",
        "poisoned at the upper",
        "error below the upper",
        "complete",
        "race lost",
        "reply lost, outcome recorded",
        "zombie offer refused",
        "share refused",
        "skipping offer refused",
        "failed share",
        "dropped share",
        "died",
        "rendered as granted",
        "rendered elsewhere",
        "rendering refused",
        "in flight limit met",
        "incarnation ended",
        "covered from birth",
    ] {
        assert!(seen.get(what).is_some_and(|times| *times >= 4), "{what} hardly happened: {seen:#?}");
    }
}
