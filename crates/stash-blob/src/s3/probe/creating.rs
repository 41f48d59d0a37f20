//! Create-only PUTs: alone, of a taken key, and many at once.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::join_all;

use super::{
    finding::{Check, Finding},
    site::Site,
    step::Found,
};
use crate::s3::failed::Failed;

/// Creates of one key at once.
const RACERS: usize = 32;
/// Keys that are raced for.
const ROUNDS: usize = 8;
/// The size of a racer's object.
const BODY: usize = 8 << 10;

/// A free key, a taken one, and the race.
pub(super) async fn creating(site: &Site, found: &mut Found<'_>) {
    let name = "create";
    if let Err(failed) = site.create(name, &b"first"[..]).await {
        return found.failed(Check::CreateNew, &failed);
    }
    found.yes(Check::CreateNew, "");
    let second = site.create(name, &b"second"[..]).await;
    let kept = site.get(name).await;
    match (second, kept) {
        (Err(failed), Ok(kept)) if matches!(failed.status(), Some(409 | 412)) => {
            let whole = kept.as_deref() == Some(b"first");
            let detail =
                if whole { failed.short() } else { format!("{}, and the object changed", failed.short()) };
            found.of(Check::CreateTaken, whole, detail);
        }
        (Ok(()), _) => {
            found.no(Check::CreateTaken, "the object was replaced");
            // Who replaces alone will not be better in a race.
            return found.no(Check::CreateRace, "each of them succeeds");
        }
        (Err(failed), _) => found.failed(Check::CreateTaken, &failed),
    }
    race(site, found).await;
}

/// How one round went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    winners: usize,
    /// Neither a success nor 409 or 412: it may have won.
    unclear: usize,
    /// Whether the object is the winner's.
    whole: bool,
}

async fn race(site: &Site, found: &mut Found<'_>) {
    let mut rounds = Vec::new();
    let mut losers = BTreeMap::new();
    for round in 0..ROUNDS {
        if site.is_over() {
            break;
        }
        match run(site, &format!("race/{round}"), &mut losers).await {
            Ok(round) => rounds.push(round),
            Err(failed) => return found.failed(Check::CreateRace, &failed),
        }
    }
    if !rounds.is_empty() {
        found.add(judge(&rounds, &losers));
    }
}

async fn run(site: &Site, name: &str, losers: &mut BTreeMap<String, usize>) -> Result<Round, Failed> {
    let body = |racer: usize| Bytes::from(vec![u8::try_from(racer).unwrap_or(u8::MAX); BODY]);
    let answers = join_all((0..RACERS).map(|racer| site.create(name, body(racer)))).await;
    let mut round = Round { whole: true, ..Round::default() };
    let mut winner = None;
    for (racer, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(()) => {
                round.winners += 1;
                winner = Some(racer);
            }
            Err(failed) => {
                round.unclear += usize::from(!matches!(failed.status(), Some(409 | 412)));
                *losers.entry(failed.short()).or_default() += 1;
            }
        }
    }
    if let (1, Some(winner)) = (round.winners, winner) {
        round.whole = site.get(name).await? == Some(body(winner));
    }
    Ok(round)
}

/// What the rounds say. A round without a winner counts against the store only where every loser was told so.
fn judge(rounds: &[Round], losers: &BTreeMap<String, usize>) -> Finding {
    let check = Check::CreateRace;
    let count = |is: fn(&Round) -> bool| rounds.iter().filter(|round| is(round)).count();
    let many = count(|round| round.winners > 1);
    let none = count(|round| round.winners == 0 && round.unclear == 0);
    let other = count(|round| !round.whole);
    let open = count(|round| round.winners == 0 && round.unclear > 0);
    let all = rounds.len();
    let said: Vec<_> = losers.iter().map(|(text, times)| format!("{text} ×{times}")).collect();
    let said = said.join(", ");
    if many > 0 {
        let most = rounds.iter().map(|round| round.winners).max().unwrap_or(0);
        return Finding::no(check, format!("{many} of {all} rounds had more than one winner, up to {most}"));
    }
    if other > 0 {
        return Finding::no(check, format!("in {other} of {all} rounds the object is not the winner's"));
    }
    if none > 0 {
        return Finding::no(check, format!("{none} of {all} rounds had no winner; {said}"));
    }
    if open > 0 {
        return Finding::unknown(check, format!("{open} of {all} rounds got no clear answer; {said}"));
    }
    Finding::yes(check, format!("{all} rounds, one winner each; {said}"))
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Answer, *};

    fn judged(rounds: &[(usize, usize, bool)]) -> Finding {
        let rounds = rounds.iter().map(|&(winners, unclear, whole)| Round { winners, unclear, whole });
        judge(&rounds.collect::<Vec<_>>(), &BTreeMap::from([("412".to_owned(), 31)]))
    }

    #[test]
    fn one_winner_in_each_round_is_right() {
        let found = judged(&[(1, 0, true), (1, 3, true)]);
        assert_eq!(
            (found.result, found.detail.as_str()),
            (Answer::Yes, "2 rounds, one winner each; 412 ×31")
        );
    }

    #[test]
    fn two_winners_in_one_round_are_too_many() {
        let found = judged(&[(1, 0, true), (2, 0, true)]);
        assert_eq!(found.result, Answer::No);
        assert!(
            found.detail.contains("1 of 2 rounds") && found.detail.contains("up to 2"),
            "{}",
            found.detail
        );
    }

    #[test]
    fn a_round_that_all_lose_is_wrong_unless_an_answer_was_lost() {
        assert_eq!(judged(&[(0, 0, true)]).result, Answer::No);
        assert!(matches!(judged(&[(0, 1, true), (1, 0, true)]).result, Answer::Unknown(_)));
    }

    #[test]
    fn a_winner_whose_object_is_anothers_is_none() {
        assert_eq!(judged(&[(1, 0, false)]).result, Answer::No);
    }
}
