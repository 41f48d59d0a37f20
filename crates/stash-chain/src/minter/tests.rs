use super::*;

const UNBOUNDED: ChainRules = ChainRules { as_of: 5, up_to: Frontier::EMPTY, seals: false };

fn at(time: u64) -> Frontier {
    Frontier::at(time)
}

fn description(lower: u64, upper: u64) -> Description {
    Description::new(at(lower), at(upper)).expect("not empty")
}

fn minter(rules: ChainRules) -> Minter {
    Minter::new(rules, rules.as_of, DESCRIPTIONS_IN_FLIGHT_MAX)
}

/// Asks until nothing is minted; returns the bounds and the answer that ended it.
fn mint_all(minter: &mut Minter, frontier: Frontier) -> (Vec<Description>, Mint) {
    let mut minted = Vec::new();
    loop {
        match minter.mint(frontier, Frontier::MIN).expect("frontier does not move back") {
            Mint::Minted(one) => minted.push(one.description),
            other => return (minted, other),
        }
    }
}

#[test]
fn the_snapshot_stands_alone_and_is_followed_by_the_frontier() {
    let mut minter = minter(UNBOUNDED);
    assert_eq!(mint_all(&mut minter, at(5)), (vec![], Mint::NotYet));
    assert_eq!(mint_all(&mut minter, at(9)), (vec![description(5, 6), description(6, 9)], Mint::NotYet));
    assert_eq!(mint_all(&mut minter, at(9)), (vec![], Mint::NotYet));
    assert_eq!(mint_all(&mut minter, at(10)), (vec![description(9, 10)], Mint::NotYet));
}

#[test]
fn what_was_minted_is_had_from_the_answer_and_nothing_from_any_other() {
    let first = Minted { description: description(5, 6), floor: Frontier::MIN };
    assert_eq!(Mint::Minted(first).minted(), Some(first));
    for other in [Mint::NotYet, Mint::InFlight, Mint::Ended, Mint::Complete] {
        assert_eq!(other.minted(), None);
    }
}

#[test]
fn a_frontier_just_past_the_snapshot_mints_only_the_snapshot() {
    assert_eq!(mint_all(&mut minter(UNBOUNDED), at(6)), (vec![description(5, 6)], Mint::NotYet));
}

#[test]
fn a_frontier_that_moves_back_is_an_error_and_changes_nothing() {
    let mut minter = minter(UNBOUNDED);
    mint_all(&mut minter, at(9));
    let error = minter.mint(at(8), Frontier::MIN).expect_err("moved back");
    assert_eq!(error, ChainError::FrontierMovedBack { before: at(9), now: at(8) });
    assert_eq!(mint_all(&mut minter, at(11)).0, [description(9, 11)]);
}

#[test]
fn at_most_so_many_are_open_and_the_next_takes_the_whole_frontier() {
    let mut minter = Minter::new(UNBOUNDED, 5, 2);
    assert_eq!(mint_all(&mut minter, at(7)), (vec![description(5, 6), description(6, 7)], Mint::NotYet));
    assert_eq!(mint_all(&mut minter, at(8)), (vec![], Mint::InFlight));
    assert_eq!(mint_all(&mut minter, at(20)), (vec![], Mint::InFlight));
    minter.resolved(description(5, 6)).expect("is open");
    assert_eq!(mint_all(&mut minter, at(20)), (vec![description(7, 20)], Mint::NotYet));
    assert_eq!(minter.open().collect::<Vec<_>>(), [description(6, 7), description(7, 20)]);
}

#[test]
fn a_description_is_resolved_once() {
    let mut minter = minter(UNBOUNDED);
    mint_all(&mut minter, at(6));
    assert_eq!(minter.resolved(description(5, 6)), Ok(()));
    let unknown = ChainError::NotOpen { description: description(5, 6) };
    assert_eq!(minter.resolved(description(5, 6)), Err(unknown));
}

#[test]
fn an_in_flight_limit_of_zero_still_mints() {
    let (minted, end) = mint_all(&mut Minter::new(UNBOUNDED, 5, 0), at(9));
    assert_eq!((minted, end), (vec![description(5, 6)], Mint::InFlight));
}

#[test]
fn an_input_that_ends_without_a_seal_ends_the_incarnation_at_its_last_finite_upper() {
    let mut minter = minter(UNBOUNDED);
    mint_all(&mut minter, at(9));
    assert_eq!(mint_all(&mut minter, Frontier::EMPTY), (vec![], Mint::Ended));
    assert_eq!(minter.next(), at(9));
}

#[test]
fn an_input_that_ends_before_the_snapshot_of_a_sink_that_seals_gives_snapshot_and_rest() {
    let rules = ChainRules { seals: true, ..UNBOUNDED };
    let mut minter = minter(rules);
    let rest = Description::new(at(6), Frontier::EMPTY).expect("not empty");
    assert_eq!(mint_all(&mut minter, Frontier::EMPTY), (vec![description(5, 6), rest], Mint::Complete));
}

#[test]
fn up_to_reached_completes_and_nothing_follows() {
    let mut minter = minter(ChainRules { up_to: at(20), ..UNBOUNDED });
    mint_all(&mut minter, at(19));
    let last = Description::new(at(19), Frontier::EMPTY).expect("not empty");
    assert_eq!(mint_all(&mut minter, at(20)), (vec![last], Mint::Complete));
    assert_eq!(mint_all(&mut minter, at(30)), (vec![], Mint::Complete));
}

#[test]
fn a_peek_is_one_description_open_to_the_end() {
    for up_to in [5, 6] {
        let mut minter = minter(ChainRules { up_to: at(up_to), ..UNBOUNDED });
        let only = Description::new(at(5), Frontier::EMPTY).expect("not empty");
        assert_eq!(mint_all(&mut minter, at(6)), (vec![only], Mint::Complete));
    }
    let mut longer = minter(ChainRules { up_to: at(7), ..UNBOUNDED });
    assert_eq!(mint_all(&mut longer, at(6)), (vec![description(5, 6)], Mint::NotYet));
}

#[test]
fn the_floor_is_the_highest_seen() {
    let mut minter = minter(UNBOUNDED);
    let floor = |mint| match mint {
        Ok(Mint::Minted(minted)) => minted.floor,
        other => panic!("nothing minted: {other:?}"),
    };
    assert_eq!(floor(minter.mint(at(6), at(30))), at(30));
    assert_eq!(floor(minter.mint(at(7), at(20))), at(30));
}

#[test]
fn the_last_times_of_all_are_not_taken_for_the_end() {
    let rules = ChainRules { as_of: u64::MAX - 1, ..UNBOUNDED };
    assert_eq!(mint_all(&mut minter(rules), at(u64::MAX - 1)), (vec![], Mint::NotYet));
    assert_eq!(mint_all(&mut minter(rules), Frontier::EMPTY), (vec![], Mint::Ended));
}

#[test]
fn a_worker_writes_from_the_floor_up_to_the_bound() {
    let rules = ChainRules { up_to: at(20), ..UNBOUNDED };
    let minted = |lower, upper, floor| Minted {
        description: Description::new(at(lower), upper).expect("not empty"),
        floor: at(floor),
    };
    assert_eq!(writes(minted(8, at(12), 0), rules), Some(description(8, 12)));
    assert_eq!(writes(minted(8, at(12), 10), rules), Some(description(10, 12)));
    assert_eq!(writes(minted(8, at(12), 12), rules), None);
    assert_eq!(writes(minted(8, Frontier::EMPTY, 0), rules), Some(description(8, 20)));
    let snapshot_of_a_rerender = minted(9, at(10), 10);
    assert_eq!(writes(snapshot_of_a_rerender, rules), None);
}

#[test]
fn a_worker_is_ready_when_its_own_frontier_reached_the_upper() {
    let rules = ChainRules { up_to: at(20), ..UNBOUNDED };
    let minted = |upper| Minted {
        description: Description::new(at(8), upper).expect("not empty"),
        floor: Frontier::MIN,
    };
    assert!(!ready(at(11), minted(at(12)), rules) && ready(at(12), minted(at(12)), rules));
    assert!(!ready(at(19), minted(Frontier::EMPTY), rules));
    assert!(ready(at(20), minted(Frontier::EMPTY), rules), "up_to is the end");
    assert!(!ready(at(u64::MAX - 1), minted(Frontier::EMPTY), UNBOUNDED));
}
