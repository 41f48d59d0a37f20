//! How the steps of a probe say what they found.

use super::finding::{Check, Finding};
use crate::s3::failed::Failed;

/// Findings as they come, and who is told of each.
pub(super) struct Found<'a> {
    findings: Vec<Finding>,
    tell: &'a mut (dyn FnMut(&Finding) + Send),
}

impl<'a> Found<'a> {
    pub(super) fn new(tell: &'a mut (dyn FnMut(&Finding) + Send)) -> Found<'a> {
        Found { findings: Vec::new(), tell }
    }

    /// Adds a finding. A question is answered once: a later answer is dropped.
    pub(super) fn add(&mut self, finding: Finding) {
        if self.get(finding.what).is_none() {
            (self.tell)(&finding);
            self.findings.push(finding);
        }
    }

    pub(super) fn yes(&mut self, what: Check, detail: impl Into<String>) {
        self.add(Finding::yes(what, detail));
    }

    pub(super) fn no(&mut self, what: Check, detail: impl Into<String>) {
        self.add(Finding::no(what, detail));
    }

    pub(super) fn of(&mut self, what: Check, is: bool, detail: impl Into<String>) {
        self.add(Finding::of(what, is, detail));
    }

    pub(super) fn unknown(&mut self, what: Check, why: impl Into<String>) {
        self.add(Finding::unknown(what, why));
    }

    /// What a request without success says about `what`.
    pub(super) fn failed(&mut self, what: Check, failed: &Failed) {
        self.add(from_failure(what, failed));
    }

    pub(super) fn get(&self, what: Check) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.what == what)
    }

    /// All of them in the order of [`Check::ALL`]; `why` answers what is not answered.
    pub(super) fn all(mut self, why: &str) -> Vec<Finding> {
        for &what in Check::ALL {
            self.unknown(what, why);
        }
        self.findings.sort_by_key(|finding| finding.what);
        self.findings
    }
}

/// A refusal is a *no*; what the credentials may not, what failed in the store and what got no answer says nothing.
pub(super) fn from_failure(what: Check, failed: &Failed) -> Finding {
    match failed {
        _ if failed.is_denied() => {
            Finding::unknown(what, format!("these credentials may not: {}", failed.short()))
        }
        Failed::Refused { status: 429 | 500 | 502..=599, .. }
        | Failed::Lost(_)
        | Failed::Strange(_)
        | Failed::NotSent(_) => Finding::unknown(what, failed.short()),
        Failed::Refused { .. } => Finding::no(what, failed.short()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Answer, *};

    #[test]
    fn a_refusal_is_a_no_and_a_failure_says_nothing() {
        let of = |status, code: &str| {
            let failed = Failed::Refused { status, code: code.to_owned(), message: String::new() };
            from_failure(Check::BulkDelete, &failed).result
        };
        for (status, code) in
            [(400, "InvalidRequest"), (404, ""), (405, "MethodNotAllowed"), (501, "NotImplemented")]
        {
            assert_eq!(of(status, code), Answer::No);
        }
        for (status, code) in [(403, "AccessDenied"), (429, ""), (500, "InternalError"), (503, "SlowDown")] {
            let Answer::Unknown(why) = of(status, code) else { panic!("{status}") };
            assert!(why.contains(&status.to_string()), "{why}");
        }
    }

    #[test]
    fn every_question_gets_one_answer_and_those_not_asked_say_why() {
        let mut told = Vec::new();
        let mut tell = |finding: &Finding| told.push(finding.what);
        let mut found = Found::new(&mut tell);
        found.yes(Check::BulkDelete, "");
        found.no(Check::BulkDelete, "again");
        let all = found.all("not tried");
        assert_eq!(all.iter().map(|finding| finding.what).collect::<Vec<_>>(), Check::ALL);
        assert_eq!(all.iter().filter(|finding| finding.result == Answer::Yes).count(), 1);
        assert_eq!(told.len(), Check::ALL.len());
    }
}
