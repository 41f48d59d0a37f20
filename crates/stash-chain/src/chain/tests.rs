use super::*;
use crate::Remedy;

const RULES: ChainRules = ChainRules { as_of: 5, up_to: Frontier::EMPTY, seals: false };

fn at(time: u64) -> Frontier {
    Frontier::at(time)
}

fn description(lower: u64, upper: u64) -> Description {
    Description::new(at(lower), at(upper)).expect("not empty")
}

fn offer(lower: u64, upper: u64) -> Offer {
    Offer { description: description(lower, upper), floor: Frontier::MIN, poisoned: None, has_updates: true }
}

fn error(at: u64) -> DataflowError {
    DataflowError { at, message: "division by zero".to_owned() }
}

fn head(upper: u64) -> Head {
    Head { upper: at(upper), status: Status::Open }
}

/// An incarnation granted the original as-of and resolved up to there.
fn resolved(upper: u64) -> Rendering {
    Rendering { resolved: at(upper), ..Rendering::new(5) }
}

fn taken(decision: Result<Decision, ChainError>) -> Take {
    match decision {
        Ok(Decision::Take(take)) => take,
        other => panic!("not taken: {other:?}"),
    }
}

#[test]
fn the_first_batch_of_a_chain_is_accepted_whole() {
    let take = taken(decide(RULES, &Head::new(RULES), &Rendering::new(5), &offer(5, 6)));
    assert_eq!((take.outcome, take.piece), (Outcome::Accepted, description(5, 6)));
    assert_eq!((take.upper, take.status, take.resolved), (at(6), Status::Open, at(6)));
    assert!(!take.empty);
}

#[test]
fn a_batch_that_begins_at_the_upper_is_accepted_whole() {
    let take = taken(decide(RULES, &head(10), &resolved(10), &offer(10, 12)));
    assert_eq!((take.outcome, take.piece), (Outcome::Accepted, description(10, 12)));
}

#[test]
fn a_straddler_is_accepted_from_the_upper_on() {
    let take = taken(decide(RULES, &head(10), &resolved(7), &offer(7, 12)));
    assert_eq!((take.outcome, take.piece), (Outcome::Trimmed { from: at(10) }, description(10, 12)));
    assert_eq!((take.upper, take.resolved), (at(12), at(12)));
}

#[test]
fn a_covered_batch_is_dropped_and_resolved() {
    for upper in [12, 15] {
        let decision = decide(RULES, &head(upper), &resolved(7), &offer(7, 12));
        assert_eq!(decision, Ok(Decision::Drop { resolved: at(12) }));
    }
}

#[test]
fn a_batch_without_updates_moves_the_upper_and_writes_no_row() {
    let offer = Offer { has_updates: false, ..offer(10, 12) };
    let take = taken(decide(RULES, &head(10), &resolved(10), &offer));
    assert!(take.empty && take.upper == at(12));
}

#[test]
fn an_offer_after_drops_that_wrote_nothing_is_decided() {
    let take = taken(decide(RULES, &head(10), &resolved(5), &offer(10, 12)));
    assert_eq!(take.outcome, Outcome::Accepted);
    let take = taken(decide(RULES, &head(10), &resolved(5), &offer(9, 12)));
    assert_eq!(take.outcome, Outcome::Trimmed { from: at(10) });
}

#[test]
fn a_repeated_offer_is_answered_with_what_was_recorded() {
    for outcome in [Outcome::Accepted, Outcome::Trimmed { from: at(8) }, Outcome::Dropped] {
        let rendering = Rendering { last: Some((description(7, 12), outcome)), ..resolved(12) };
        let again = decide(RULES, &head(20), &rendering, &offer(7, 12));
        assert_eq!(again, Ok(Decision::Recorded(Some(outcome))));
        let closed = Rendering { open: false, ..rendering };
        let again = decide(RULES, &head(20), &closed, &offer(7, 12));
        assert_eq!(again, Ok(Decision::Recorded(Some(outcome))), "closing does not undo an outcome");
    }
}

#[test]
fn a_repeated_offer_from_before_the_last_one_is_recorded_as_unknown() {
    let rendering = Rendering { last: Some((description(7, 12), Outcome::Accepted)), ..resolved(12) };
    assert_eq!(decide(RULES, &head(20), &rendering, &offer(6, 7)), Ok(Decision::Recorded(None)));
}

#[test]
fn an_offer_that_cuts_resolved_times_otherwise_is_misuse() {
    let rendering = Rendering { last: Some((description(7, 12), Outcome::Accepted)), ..resolved(12) };
    for (lower, upper) in [(6, 12), (8, 12), (7, 11), (7, 13), (11, 13), (3, 5)] {
        let offer = offer(lower, upper);
        let out_of_order = ChainError::OutOfOrder { description: offer.description, resolved: at(12) };
        assert_eq!(decide(RULES, &head(12), &rendering, &offer), Err(out_of_order));
    }
}

#[test]
fn an_offer_above_the_upper_stops_everything() {
    let error = decide(RULES, &head(10), &resolved(11), &offer(11, 12)).expect_err("history is lost");
    assert_eq!(error, ChainError::CatalogBehind { description: description(11, 12), upper: at(10) });
    assert_eq!(error.remedy(), Remedy::Stop);
}

#[test]
fn a_floor_above_the_upper_stops_everything() {
    let offer = Offer { floor: at(11), ..offer(10, 12) };
    let error = decide(RULES, &head(10), &resolved(10), &offer).expect_err("history is lost");
    assert_eq!(error, ChainError::FloorAboveUpper { floor: at(11), upper: at(10) });
    let offer = Offer { floor: at(10), ..offer };
    assert_eq!(taken(decide(RULES, &head(10), &resolved(10), &offer)).upper, at(12));
}

#[test]
fn a_closed_incarnation_is_refused_even_where_it_would_be_dropped() {
    let closed = Rendering { open: false, ..resolved(7) };
    for upper in [7, 10, 20] {
        let refused = decide(RULES, &head(upper), &closed, &offer(7, 12));
        assert_eq!(refused, Err(ChainError::IncarnationClosed { description: description(7, 12) }));
    }
}

#[test]
fn only_up_to_or_a_seal_completes_a_chain() {
    let description = Description::new(at(10), Frontier::EMPTY).expect("not empty");
    let last = Offer { description, ..offer(10, 12) };
    let refused = decide(RULES, &head(10), &resolved(10), &last);
    assert_eq!(refused, Err(ChainError::MayNotComplete { description }));
    for rules in [ChainRules { seals: true, ..RULES }, ChainRules { up_to: at(30), ..RULES }] {
        let take = taken(decide(rules, &head(10), &resolved(10), &last));
        assert_eq!((take.upper, take.status), (Frontier::EMPTY, Status::Complete));
    }
}

#[test]
fn a_finite_upper_at_or_after_up_to_is_misuse() {
    let rules = ChainRules { up_to: at(12), ..RULES };
    let beyond = |upper| ChainError::BeyondUpTo { description: description(10, upper), up_to: at(12) };
    assert_eq!(decide(rules, &head(10), &resolved(10), &offer(10, 12)), Err(beyond(12)));
    assert_eq!(decide(rules, &head(10), &resolved(10), &offer(10, 13)), Err(beyond(13)));
    assert_eq!(taken(decide(rules, &head(10), &resolved(10), &offer(10, 11))).upper, at(11));
}

#[test]
fn an_error_poisons_the_chain_at_its_time_and_what_lies_before_is_taken() {
    let poisoned = Offer { poisoned: Some(error(14)), ..offer(10, 20) };
    let take = taken(decide(RULES, &head(12), &resolved(10), &poisoned));
    assert_eq!((take.outcome, take.piece), (Outcome::Trimmed { from: at(12) }, description(12, 14)));
    assert_eq!((take.upper, take.status, take.resolved), (at(14), Status::Poisoned(error(14)), at(20)));
    let take = taken(decide(RULES, &head(10), &resolved(10), &poisoned));
    assert_eq!((take.outcome, take.piece), (Outcome::Accepted, description(10, 14)));
}

#[test]
fn an_error_at_the_upper_poisons_and_takes_nothing() {
    for lower in [8, 10] {
        let poisoned = Offer { poisoned: Some(error(10)), ..offer(lower, 20) };
        let decision = decide(RULES, &head(10), &resolved(lower), &poisoned).expect("is decided");
        assert_eq!(decision, Decision::Poison { error: error(10), resolved: at(20) });
        let (mut head, mut rendering) = (head(10), resolved(lower));
        decision.apply(poisoned.description, &mut head, &mut rendering);
        assert_eq!(head, Head { upper: at(10), status: Status::Poisoned(error(10)) });
        assert_eq!(rendering.last, Some((poisoned.description, Outcome::Dropped)));
    }
}

#[test]
fn an_error_below_the_upper_is_the_replicas_failure() {
    for (lower, upper) in [(8, 20), (8, 10)] {
        let poisoned = Offer { poisoned: Some(error(9)), ..offer(lower, upper) };
        let failed = decide(RULES, &head(10), &resolved(8), &poisoned).expect_err("counts as failed");
        assert_eq!(failed, ChainError::ErrorBelowUpper { at: 9, upper: at(10) });
        assert_eq!(failed.remedy(), Remedy::Reopen);
    }
}

#[test]
fn an_error_outside_its_batch_or_beyond_up_to_is_misuse() {
    let rules = ChainRules { up_to: at(30), ..RULES };
    let description = Description::new(at(10), Frontier::EMPTY).expect("not empty");
    let poisoned = |at| Offer { description, poisoned: Some(error(at)), ..offer(10, 12) };
    let decide = |offer| decide(rules, &head(10), &resolved(10), &offer);
    assert_eq!(decide(poisoned(9)), Err(ChainError::ErrorOutside { at: 9, description }));
    assert_eq!(decide(poisoned(30)), Err(ChainError::ErrorBeyondUpTo { at: 30, up_to: at(30) }));
    assert_eq!(taken(decide(poisoned(29))).upper, at(29));
}

#[test]
fn complete_and_poisoned_chains_drop_and_a_dropped_one_refuses() {
    let complete = Head { upper: Frontier::EMPTY, status: Status::Complete };
    let poisoned = Head { upper: at(10), status: Status::Poisoned(error(10)) };
    for offer in [offer(7, 9), offer(7, 12), offer(7, 40), Offer { poisoned: Some(error(8)), ..offer(7, 12) }]
    {
        for head in [&complete, &poisoned] {
            let decision = decide(RULES, head, &resolved(7), &offer);
            assert_eq!(decision, Ok(Decision::Drop { resolved: offer.description.upper() }));
        }
        let dropped = Head { upper: at(10), status: Status::Dropped };
        assert_eq!(decide(RULES, &dropped, &resolved(7), &offer), Err(ChainError::SinkDropped));
    }
    let follower = decide(RULES, &poisoned, &resolved(12), &offer(12, 14));
    assert_eq!(follower, Ok(Decision::Drop { resolved: at(14) }), "the queue behind a poisoned batch drains");
}

#[test]
fn a_rendering_at_the_upper_may_not_continue_the_chain() {
    let late = decide(RULES, &head(10), &Rendering::new(10), &offer(10, 11));
    assert_eq!(late, Err(ChainError::RenderedTooLate { as_of: 10, upper: at(10) }));
    let early = decide(RULES, &head(10), &Rendering::new(4), &offer(4, 5));
    assert_eq!(early, Err(ChainError::RenderedTooEarly { as_of: 4, original: 5 }));
    let granted = decide(RULES, &head(10), &Rendering::new(9), &offer(9, 10));
    assert_eq!(granted, Ok(Decision::Drop { resolved: at(10) }));
}

#[test]
fn who_loses_the_race_decides_again_and_drops() {
    let mut head = head(10);
    let (mut winner, mut loser) = (resolved(10), resolved(10));
    let decision = decide(RULES, &head, &winner, &offer(10, 12)).expect("is decided");
    decision.apply(description(10, 12), &mut head, &mut winner);
    let again = decide(RULES, &head, &loser, &offer(10, 12)).expect("is decided");
    assert_eq!(again.outcome(), Some(Outcome::Dropped));
    again.apply(description(10, 12), &mut head, &mut loser);
    assert_eq!((head.upper, winner.resolved, loser.resolved), (at(12), at(12), at(12)));
    assert_eq!(winner.last, Some((description(10, 12), Outcome::Accepted)));
}

#[test]
fn a_part_is_kept_when_its_times_meet_the_piece() {
    let facts = |min_time, max_time| RunFacts { update_count: 1, min_time, max_time, ..RunFacts::default() };
    let piece = description(10, 20);
    for (min, max, kept) in [(3, 9, false), (3, 10, true), (19, 25, true), (20, 25, false), (3, 30, true)] {
        assert_eq!(keeps(&facts(min, max), &piece), kept, "[{min}, {max}]");
    }
    assert!(!keeps(&RunFacts { max_time: 15, ..RunFacts::default() }, &piece), "no updates, nothing to keep");
    let open = Description::new(at(10), Frontier::EMPTY).expect("not empty");
    assert!(keeps(&facts(u64::MAX - 1, u64::MAX - 1), &open));
}

#[test]
fn every_error_says_what_to_do_in_one_line() {
    let error = decide(RULES, &head(10), &resolved(11), &offer(11, 12)).expect_err("is refused");
    let text = error.to_string();
    assert_eq!(
        text,
        "[11, 12) begins above the chain's upper 10: the catalog is behind, stop and restore it"
    );
}

#[test]
fn a_drop_without_blobs_writes_nothing_except_for_the_first_batch() {
    let drop = Decision::Drop { resolved: at(10) };
    let fresh = Rendering::new(9);
    assert!(drop.must_commit(&fresh, false), "the inputs hold its as-of until then");
    let moved = Rendering { resolved: at(10), ..fresh };
    assert!(!drop.must_commit(&moved, false) && drop.must_commit(&moved, true));
    assert!(!Decision::Recorded(None).must_commit(&fresh, true));
    assert!(Decision::Poison { error: error(9), resolved: at(10) }.must_commit(&moved, false));
}

/// All frontiers of a small world, the empty one last.
fn frontiers() -> impl Iterator<Item = Frontier> + Clone {
    (4..=9).map(at).chain([Frontier::EMPTY])
}

fn small_offers() -> Vec<Offer> {
    let bounds = frontiers().flat_map(|lower| frontiers().map(move |upper| (lower, upper)));
    let descriptions = bounds.filter_map(|(lower, upper)| Description::new(lower, upper));
    let with_floor = descriptions.flat_map(|description| frontiers().map(move |floor| (description, floor)));
    let errors = || [None, Some(5), Some(7), Some(8)].into_iter();
    with_floor
        .flat_map(|(description, floor)| errors().map(move |at| (description, floor, at.map(error))))
        .map(|(description, floor, poisoned)| Offer { description, floor, poisoned, has_updates: true })
        .collect()
}

/// What I1 and I4 to I9 say of one decision, told without reference to how it is reached.
#[track_caller]
fn promises(rules: ChainRules, head: &Head, rendering: &Rendering, offer: &Offer) {
    let case = || format!("{rules:?} {head:?} {rendering:?} {offer:?}");
    let (lower, upper) = (offer.description.lower(), offer.description.upper());
    let open = rendering.open && head.status == Status::Open;
    match decide(rules, head, rendering, offer) {
        Ok(Decision::Take(take)) => {
            assert!(open && rendering.resolved <= lower && lower <= head.upper, "{}", case());
            assert!(offer.floor <= head.upper && take.piece.lower() == head.upper, "{}", case());
            assert!(take.piece.upper() <= upper && take.upper == take.piece.upper(), "{}", case());
            let whole = Outcome::Accepted == take.outcome;
            assert_eq!(whole, lower == head.upper, "{}", case());
            let error = offer.poisoned.as_ref().map(|error| at(error.at));
            assert_eq!(take.upper, error.unwrap_or(upper), "{}", case());
            assert!(!take.upper.is_empty() || rules.may_complete(), "{}", case());
            let rehydrated = rendering.as_of == rules.as_of || at(rendering.as_of) < head.upper;
            assert!(rehydrated && rendering.as_of >= rules.as_of, "{}", case());
            assert_eq!(take.resolved, upper, "{}", case());
        }
        Ok(Decision::Poison { error, resolved }) => {
            assert!(open && at(error.at) == head.upper && resolved == upper, "{}", case());
        }
        Ok(Decision::Drop { resolved }) => {
            let covered = upper <= head.upper || head.status != Status::Open;
            assert!(covered && rendering.open && resolved == upper, "{}", case());
        }
        Ok(Decision::Recorded(_)) => assert!(upper <= rendering.resolved, "{}", case()),
        Err(ChainError::CatalogBehind { .. }) => assert!(open && lower > head.upper, "{}", case()),
        Err(error) => {
            let valid = lower == rendering.resolved && lower <= head.upper && offer.floor <= head.upper;
            let granted = rendering.as_of == 5 || (6..head.upper.as_u64()).contains(&rendering.as_of);
            let ends_well = rules.may_complete() && (upper.is_empty() || upper < rules.up_to);
            let clean = offer.poisoned.is_none();
            assert!(!(open && valid && granted && ends_well && clean), "{error} for {}", case());
        }
    }
}

#[test]
fn agree_every_small_case_keeps_the_promises() {
    let all_rules = [
        RULES,
        ChainRules { seals: true, ..RULES },
        ChainRules { up_to: at(8), ..RULES },
        ChainRules { up_to: at(5), ..RULES },
    ];
    let offers = small_offers();
    for (rules, upper) in all_rules.into_iter().flat_map(|rules| (5..=9).map(move |upper| (rules, upper))) {
        for status in [Status::Open, Status::Poisoned(error(upper)), Status::Dropped] {
            let head = Head { upper: at(upper), status };
            for (as_of, moved) in (4..=9).flat_map(|as_of| (0..=2).map(move |moved| (as_of, moved))) {
                for open in [true, false] {
                    let rendering = Rendering { resolved: at(as_of + moved), open, ..Rendering::new(as_of) };
                    offers.iter().for_each(|offer| promises(rules, &head, &rendering, offer));
                }
            }
        }
    }
}
