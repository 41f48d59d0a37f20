use stash_chain::invariants::Invariant;
use stash_types::fault::Mutant;
use stateright::Model;

use crate::action::Action;
use crate::check::{Report, exhaust, exhaust_merge};
use crate::config::Config;
use crate::mutants::{control, name, named, pursue, pursue_to};
use crate::protocol::Protocol;
use crate::state::State;
use crate::symmetry::representative;

#[track_caller]
fn all_good(report: &Report) {
    for answer in &report.answers {
        assert!(answer.good, "{} is not as it should be:\n{}", answer.property, answer.story);
    }
}

#[test]
fn a_small_world_of_parts_keeps_every_promise_and_reaches_what_it_is_about() {
    let report = exhaust(Config { closings: false, ..Config::small() });
    all_good(&report);
    assert!(report.states > 5_000, "{} states", report.states);
}

#[test]
fn a_small_world_of_races_keeps_every_promise_and_reaches_what_it_is_about() {
    let report = exhaust(Config { in_flight: 1, ..Config::least_cutover() });
    all_good(&report);
    assert!(report.states > 5_000, "{} states", report.states);
}

#[test]
fn the_share_merge_keeps_every_promise_whatever_arrives_twice_or_never() {
    all_good(&exhaust_merge());
}

/// The cheap ones; the binary runs all of them (`--mutants`), and CI with it.
#[test]
fn a_broken_rule_is_found_out_by_the_invariant_named_for_it() {
    let costly = [
        Mutant::NoTrim,
        Mutant::DropKeepsBlobs,
        Mutant::TrimDeletesKept,
        Mutant::SweepReadsFirst,
        Mutant::StrictLower,
        Mutant::EmptyCompletes,
        Mutant::CompactedPast,
    ];
    for mutant in Mutant::ALL.into_iter().filter(|mutant| !costly.contains(mutant)) {
        let report = pursue(mutant);
        let answer = report.of(named(mutant)).expect("it was asked");
        assert!(!answer.good, "{} does not break {}", name(mutant), named(mutant));
        assert!(answer.story.contains("   1. "), "its story is told: {}", answer.story);
    }
}

#[test]
fn promises_that_no_mutant_is_named_for_can_be_broken_too() {
    for (mutant, invariant) in [
        (Mutant::DescriptionSkipped, Invariant::I7),
        (Mutant::NoFence, Invariant::I13),
        (Mutant::TrimDeletesKept, Invariant::I14),
        (Mutant::AckKeepsBlobs, Invariant::I17),
        (Mutant::NoFence, Invariant::I5),
    ] {
        let report = pursue_to(mutant, invariant);
        assert!(report.of(invariant).is_some_and(|answer| !answer.good), "{} and {invariant}", name(mutant));
    }
}

#[test]
fn a_world_whose_consumers_stay_away_keeps_every_promise_and_reaches_what_it_is_about() {
    all_good(&exhaust(Config { drops: false, consumers: 1, ..Config::expiry() }));
}

#[test]
fn where_no_rule_is_broken_the_same_search_finds_nothing() {
    for mutant in [Mutant::RehydrateAt, Mutant::MergeTakesDuplicate] {
        let report = control(mutant);
        assert!(report.of(named(mutant)).is_some_and(|answer| answer.good), "{}", name(mutant));
    }
}

#[test]
fn every_mutant_is_named_for_an_invariant_that_is_asked() {
    let asked = crate::properties::ASKED;
    for mutant in Mutant::ALL {
        let merges = matches!(mutant, Mutant::MergeTakesDuplicate | Mutant::ErrorAsEmpty);
        assert!(merges || asked.contains(&named(mutant)), "{}", name(mutant));
    }
    assert!(!asked.contains(&Invariant::I22), "bytes are not modelled");
}

#[test]
fn states_that_differ_in_names_only_have_one_representative() {
    let model = Protocol { config: Config::cutover(), mutant: None, asked: None };
    let start = model.init_states().remove(0);
    let opens = |state: &State, replica: u8| {
        model.next_state(state, Action::Open { replica, lets_go: true }).expect("opens")
    };
    let ahead = |by: usize, state: &State| {
        let frontier = stash_types::Frontier::at(2);
        model.next_state(state, Action::Mint { by, frontier }).expect("mints")
    };
    let (one, other) = (opens(&opens(&start, 0), 1), opens(&opens(&start, 1), 0));
    assert_ne!(one, other);
    assert_eq!(representative(&one), representative(&other));
    assert_ne!(ahead(0, &one), ahead(1, &one));
    assert_eq!(representative(&ahead(0, &one)), representative(&ahead(1, &one)));
    assert_ne!(representative(&one), representative(&ahead(0, &one)));
}
