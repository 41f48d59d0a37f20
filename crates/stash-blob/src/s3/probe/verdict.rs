//! What findings mean for a stash: a pure function with one rule for each question.
//!
//! A *needed* promise makes the store unfit where it is not kept, or could not be found out. Another has a *fallback*: how
//! Stash does without, and what that costs. The rest is *told* and changes nothing, because Stash does not rely on it.

use serde::{Deserialize, Serialize};

use super::finding::{Answer, Check, Finding};

/// Whether a stash can live in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything that Stash relies on is there.
    Fit,
    /// It can, with these fallbacks.
    FitWith(Vec<Consequence>),
    /// It cannot, because of these.
    Unfit(Vec<Consequence>),
}

impl Verdict {
    /// Whether a stash can live there.
    pub fn is_fit(&self) -> bool {
        !matches!(self, Verdict::Unfit(_))
    }

    /// The fallbacks, or the reasons.
    pub fn consequences(&self) -> &[Consequence] {
        match self {
            Verdict::Fit => &[],
            Verdict::FitWith(all) | Verdict::Unfit(all) => all,
        }
    }
}

/// What follows from one answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consequence {
    /// The question that was answered so.
    pub check: Check,
    /// What follows, and what to do.
    pub text: String,
}

/// What becomes of a question that is not answered with yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Without it no stash: why.
    Needed(&'static str),
    /// How to do without.
    Fallback(&'static str),
    /// Nothing.
    Told,
}

const CREATE: &str = "add create_only=false to the URL: a HEAD goes before each PUT, and a race can pass between them. \
                      Keys of parts are never drawn twice, so what is left to mind is to open only one new stash on a prefix";
const RACE: &str = "creates that race may both succeed, or none. Keys of parts are never drawn twice, so what is left to \
                    mind is to open only one new stash on a prefix";
const BULK: &str = "add bulk_delete=false to the URL: one request for each key that is deleted";
const SETTLES: &str =
    "what was deleted can be seen for a while: verify and audit may name it until the store has settled";
const UPLOADS: &str = "a sweep cannot find uploads that were cut off: let a lifecycle rule abort them (stash-admin bucket init)";

fn rule(check: Check) -> Rule {
    use Rule::{Fallback, Needed, Told};
    match check {
        Check::Reach => Needed("these credentials must put, read, list and delete below the prefix"),
        Check::ReadAfterWrite => {
            Needed("a part that was reported could not be read by whoever is told of it")
        }
        Check::RangeExact => Needed("parts are read by ranges"),
        Check::ListPages => Needed("what a listing leaves out can neither be verified nor swept"),
        Check::DeleteAbsent => Needed("a deletion that is tried again would fail for ever"),
        Check::SseAsked => Needed("what the URL asks for would not be kept"),
        Check::CreateNew | Check::CreateTaken => Fallback(CREATE),
        Check::CreateRace => Fallback(RACE),
        Check::BulkDelete | Check::BulkPerKey | Check::BulkAbsent => Fallback(BULK),
        Check::ReadAfterDelete | Check::ListAfterDelete => Fallback(SETTLES),
        Check::ListAfterWrite => Fallback(
            "a sweep may overlook what was put just before it, and a later one finds it; verify may miss it as well",
        ),
        Check::Multipart => Fallback(
            "objects above put_bytes_max cannot be stored: keep parts below it, as they are by default",
        ),
        Check::MultipartListed | Check::MultipartAborted => Fallback(UPLOADS),
        Check::ChecksumTaken => Fallback("add checksum=off to the URL"),
        Check::ChecksumVerified => Fallback(
            "what is damaged on its way is noticed when it is read, by its digest, not when it is written; use TLS",
        ),
        Check::SecretRefused => {
            Fallback("it lets everybody in: keep it where nobody else can reach it, and use it for tests")
        }
        Check::ClockInStep => {
            Fallback("set the clock of this machine: stores refuse requests that are signed 15 minutes off")
        }
        Check::Unversioned => Fallback(
            "deleted parts stay as noncurrent versions, and are paid for: stash-admin bucket check names the rule that \
             removes them",
        ),
        Check::RangeSuffix
        | Check::RangeBeyond
        | Check::ListOrder
        | Check::ListStartAfter
        | Check::BulkWithoutMd5
        | Check::MultipartUnequal
        | Check::MultipartCount
        | Check::MultipartCreate
        | Check::Md5Verified
        | Check::SseS3
        | Check::SseKms
        | Check::SseC => Told,
    }
}

/// What `findings` mean. A text that follows from several of them is said once; where the bucket cannot be used at all,
/// nothing else is said.
pub fn verdict(findings: &[Finding]) -> Verdict {
    let unreached = findings.iter().position(|one| one.what == Check::Reach && one.result != Answer::Yes);
    let findings = match unreached {
        Some(at) => findings.get(at..=at).unwrap_or_default(),
        None => findings,
    };
    let (mut because, mut fallbacks) = (Vec::new(), Vec::<Consequence>::new());
    for finding in findings {
        let check = finding.what;
        match (rule(check), &finding.result) {
            (_, Answer::Yes) | (Rule::Told, _) => {}
            (Rule::Needed(why), Answer::No) => {
                let seen =
                    if finding.detail.is_empty() { String::new() } else { format!(" ({})", finding.detail) };
                because.push(Consequence { check, text: format!("not so: {}{seen}: {why}", check.words()) });
            }
            (Rule::Needed(why), Answer::Unknown(what)) => {
                because.push(Consequence {
                    check,
                    text: format!("not known whether {}: {what}: {why}", check.words()),
                });
            }
            (Rule::Fallback(text), _) if fallbacks.iter().any(|said| said.text.ends_with(text)) => {}
            (Rule::Fallback(text), Answer::No) => {
                fallbacks.push(Consequence { check, text: text.to_owned() });
            }
            (Rule::Fallback(text), Answer::Unknown(why)) => {
                let text = format!("not known whether {} ({why}); where not: {text}", check.words());
                fallbacks.push(Consequence { check, text });
            }
        }
    }
    match (because.is_empty(), fallbacks.is_empty()) {
        (false, _) => Verdict::Unfit(because),
        (true, false) => Verdict::FitWith(fallbacks),
        (true, true) => Verdict::Fit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every question answered with yes, but for `check`.
    fn but_for(check: Check, result: Answer) -> Vec<Finding> {
        let all = Check::ALL.iter().map(|&what| match what {
            what if what == check => Finding { what, result: result.clone(), detail: "seen".to_owned() },
            what => Finding::yes(what, ""),
        });
        all.collect()
    }

    fn of(check: Check, result: Answer) -> Verdict {
        verdict(&but_for(check, result))
    }

    fn unknown() -> Answer {
        Answer::Unknown("cut off".to_owned())
    }

    #[test]
    fn a_store_that_keeps_every_promise_is_fit() {
        assert_eq!(of(Check::Reach, Answer::Yes), Verdict::Fit);
    }

    #[test]
    fn what_is_needed_and_missing_or_not_known_makes_a_store_unfit() {
        for check in [
            Check::Reach,
            Check::ReadAfterWrite,
            Check::RangeExact,
            Check::ListPages,
            Check::DeleteAbsent,
            Check::SseAsked,
        ] {
            for result in [Answer::No, unknown()] {
                let Verdict::Unfit(because) = of(check, result) else { panic!("{check:?}") };
                assert_eq!(because.iter().map(|one| one.check).collect::<Vec<_>>(), [check]);
                assert!(because[0].text.contains(check.words()), "{}", because[0].text);
            }
        }
    }

    #[test]
    fn where_the_bucket_cannot_be_used_nothing_else_is_said() {
        let mut findings: Vec<Finding> =
            Check::ALL.iter().map(|&what| Finding::unknown(what, "not asked")).collect();
        findings[0] = Finding::no(Check::Reach, "403");
        let Verdict::Unfit(because) = verdict(&findings) else { panic!("unfit") };
        assert_eq!(because.iter().map(|one| one.check).collect::<Vec<_>>(), [Check::Reach]);
    }

    #[test]
    fn what_has_a_fallback_is_named_with_it() {
        for (check, wanted) in [
            (Check::CreateNew, "create_only=false"),
            (Check::CreateTaken, "create_only=false"),
            (Check::CreateRace, "only one new stash"),
            (Check::BulkDelete, "bulk_delete=false"),
            (Check::BulkPerKey, "bulk_delete=false"),
            (Check::BulkAbsent, "bulk_delete=false"),
            (Check::ReadAfterDelete, "for a while"),
            (Check::ListAfterDelete, "for a while"),
            (Check::ListAfterWrite, "a later one finds it"),
            (Check::Multipart, "put_bytes_max"),
            (Check::MultipartListed, "lifecycle"),
            (Check::MultipartAborted, "lifecycle"),
            (Check::ChecksumTaken, "checksum=off"),
            (Check::ChecksumVerified, "by its digest"),
            (Check::SecretRefused, "lets everybody in"),
            (Check::ClockInStep, "set the clock"),
            (Check::Unversioned, "noncurrent"),
        ] {
            let no = of(check, Answer::No);
            let Verdict::FitWith(fallbacks) = &no else { panic!("{check:?}: {no:?}") };
            assert_eq!(fallbacks.len(), 1);
            assert!(fallbacks[0].check == check && fallbacks[0].text.contains(wanted), "{fallbacks:?}");
            let Verdict::FitWith(fallbacks) = of(check, unknown()) else { panic!("{check:?}") };
            let text = &fallbacks[0].text;
            assert!(text.starts_with("not known") && text.contains("cut off") && text.contains(wanted));
        }
    }

    #[test]
    fn what_stash_does_not_rely_on_changes_nothing() {
        for check in [
            Check::RangeSuffix,
            Check::RangeBeyond,
            Check::ListOrder,
            Check::ListStartAfter,
            Check::BulkWithoutMd5,
            Check::MultipartUnequal,
            Check::MultipartCount,
            Check::MultipartCreate,
            Check::Md5Verified,
            Check::SseS3,
            Check::SseKms,
            Check::SseC,
        ] {
            assert_eq!((of(check, Answer::No), of(check, unknown())), (Verdict::Fit, Verdict::Fit));
        }
    }

    #[test]
    fn every_question_has_a_rule_that_a_test_names() {
        let needed = Check::ALL.iter().filter(|&&check| matches!(rule(check), Rule::Needed(_))).count();
        let told = Check::ALL.iter().filter(|&&check| rule(check) == Rule::Told).count();
        assert_eq!((needed, told, Check::ALL.len()), (6, 12, 35));
    }

    #[test]
    fn what_is_needed_outweighs_every_fallback_and_a_text_is_said_once() {
        let mut findings = but_for(Check::CreateNew, Answer::No);
        findings.push(Finding::unknown(Check::CreateTaken, "not tried"));
        let Verdict::FitWith(fallbacks) = verdict(&findings) else { panic!("fit") };
        assert_eq!(fallbacks.len(), 1, "{fallbacks:?}");
        findings.push(Finding::no(Check::RangeExact, "3 bytes"));
        let Verdict::Unfit(because) = verdict(&findings) else { panic!("unfit") };
        assert_eq!(because.len(), 1);
        assert!(because[0].text.contains("3 bytes"));
    }
}
