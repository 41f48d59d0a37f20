use super::*;
use crate::Remedy;

const RULES: ChainRules = ChainRules { as_of: 5, up_to: Frontier::EMPTY, seals: false };

fn head(upper: u64) -> Head {
    Head { upper: Frontier::at(upper), status: Status::Open }
}

fn ended(status: Status) -> Head {
    let upper = if status == Status::Complete { Frontier::EMPTY } else { Frontier::at(9) };
    Head { upper, status }
}

fn error() -> DataflowError {
    DataflowError { at: 9, message: "overflow".to_owned() }
}

#[test]
fn the_original_as_of_is_granted_while_nothing_is_accepted_then_one_below_the_upper() {
    let render = |as_of, floor| Grant::Render { as_of, floor: Frontier::at(floor) };
    assert_eq!(grant(RULES, &head(5)), render(5, 5));
    assert_eq!(grant(RULES, &head(6)), render(5, 6));
    assert_eq!(grant(RULES, &head(30)), render(29, 30));
    let zero = ChainRules { as_of: 0, ..RULES };
    assert_eq!(grant(zero, &head(0)), render(0, 0));
}

#[test]
fn a_chain_that_ended_grants_nothing_and_says_why() {
    assert_eq!(grant(RULES, &ended(Status::Complete)), Grant::Complete);
    assert_eq!(grant(RULES, &Head { upper: Frontier::EMPTY, status: Status::Open }), Grant::Complete);
    assert_eq!(grant(RULES, &ended(Status::Poisoned(error()))), Grant::Poisoned(error()));
    assert_eq!(grant(RULES, &ended(Status::Dropped)), Grant::Dropped);
}

#[test]
fn a_replica_renders_strictly_below_the_upper_and_not_before_the_original_as_of() {
    for as_of in [5, 6, 29] {
        assert_eq!(check_rendering(RULES, &head(30), as_of), Ok(()));
    }
    let early = ChainError::RenderedTooEarly { as_of: 4, original: 5 };
    assert_eq!(check_rendering(RULES, &head(30), 4), Err(early));
    for as_of in [30, 31] {
        let late = ChainError::RenderedTooLate { as_of, upper: Frontier::at(30) };
        assert_eq!(late.remedy(), Remedy::Reopen);
        assert_eq!(check_rendering(RULES, &head(30), as_of), Err(late));
    }
}

#[test]
fn while_nothing_is_accepted_only_the_original_as_of_may_be_rendered() {
    assert_eq!(check_rendering(RULES, &head(5), 5), Ok(()));
    let late = ChainError::RenderedTooLate { as_of: 6, upper: Frontier::at(5) };
    assert_eq!(check_rendering(RULES, &head(5), 6), Err(late));
    assert!(check_rendering(RULES, &head(5), 4).is_err());
}

#[test]
fn a_dropped_sink_is_not_rendered() {
    assert_eq!(check_rendering(RULES, &ended(Status::Dropped), 5), Err(ChainError::SinkDropped));
}

#[test]
fn the_read_hold_is_the_meet_of_the_next_grant_and_of_unresolved_renderings() {
    assert_eq!(read_hold(RULES, &head(5), []), Frontier::at(5));
    assert_eq!(read_hold(RULES, &head(30), []), Frontier::at(29));
    assert_eq!(read_hold(RULES, &head(30), [22, 17]), Frontier::at(17));
    assert_eq!(read_hold(RULES, &head(30), [29]), Frontier::at(29));
}

#[test]
fn a_chain_that_ended_holds_its_inputs_only_for_renderings_under_way() {
    for status in [Status::Complete, Status::Dropped, Status::Poisoned(error())] {
        assert_eq!(read_hold(RULES, &ended(status.clone()), []), Frontier::EMPTY);
        assert_eq!(read_hold(RULES, &ended(status), [7]), Frontier::at(7));
    }
}
