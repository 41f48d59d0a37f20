//! Lifecycle rules, and which of them concern a stash: pure functions.
//!
//! A rule *covers* a stash if it holds for every key below its prefix, and *touches* it if it may hold for some. Objects of
//! a stash have no tags, so a rule that asks for one does neither.

use aws_sdk_s3::{
    error::BuildError,
    types::{
        AbortIncompleteMultipartUpload, ExpirationStatus, LifecycleRule, LifecycleRuleFilter,
        TransitionStorageClass,
    },
};

/// After so many days an upload that nobody completed is aborted. A part is uploaded in minutes.
pub(super) const ABORT_AFTER_DAYS: i32 = 7;

/// For which keys a rule holds.
#[derive(Debug, PartialEq, Eq)]
struct Scope<'a> {
    prefix: &'a str,
    tagged: bool,
    sized: bool,
}

fn scope(rule: &LifecycleRule) -> Scope<'_> {
    let mut scope = Scope { prefix: "", tagged: false, sized: false };
    #[expect(deprecated, reason = "buckets have rules of the old form, and keep them")]
    if let Some(prefix) = rule.prefix() {
        scope.prefix = prefix;
    }
    let Some(filter) = rule.filter() else { return scope };
    if let Some(prefix) = filter.prefix() {
        scope.prefix = prefix;
    }
    scope.tagged = filter.tag().is_some();
    scope.sized = filter.object_size_greater_than().is_some() || filter.object_size_less_than().is_some();
    if let Some(and) = filter.and() {
        scope.prefix = and.prefix().unwrap_or(scope.prefix);
        scope.tagged |= !and.tags().is_empty();
        scope.sized |= and.object_size_greater_than().is_some() || and.object_size_less_than().is_some();
    }
    scope
}

fn is_on(rule: &LifecycleRule) -> bool {
    rule.status() == &ExpirationStatus::Enabled
}

fn covers(rule: &LifecycleRule, root: &str) -> bool {
    let scope = scope(rule);
    is_on(rule) && !scope.tagged && !scope.sized && root.starts_with(scope.prefix)
}

fn touches(rule: &LifecycleRule, root: &str) -> bool {
    let scope = scope(rule);
    is_on(rule) && !scope.tagged && (root.starts_with(scope.prefix) || scope.prefix.starts_with(root))
}

fn name(rule: &LifecycleRule) -> &str {
    rule.id().unwrap_or("without a name")
}

/// After how many days uploads below `root` are aborted, if by any rule.
pub(super) fn aborts_after(rules: &[LifecycleRule], root: &str) -> Option<i32> {
    let covering = rules.iter().filter(|rule| covers(rule, root));
    covering.filter_map(|rule| rule.abort_incomplete_multipart_upload()?.days_after_initiation()).min()
}

/// After how many days noncurrent versions below `root` are removed, if by any rule.
pub(super) fn forgets_after(rules: &[LifecycleRule], root: &str) -> Option<i32> {
    let covering = rules.iter().filter(|rule| covers(rule, root));
    covering.filter_map(|rule| rule.noncurrent_version_expiration()?.noncurrent_days()).min()
}

/// What rules would take from a stash below `root`: objects that expire, or move where they cannot be read at once.
pub(super) fn takes(rules: &[LifecycleRule], root: &str) -> Vec<String> {
    let mut taken = Vec::new();
    for rule in rules.iter().filter(|rule| touches(rule, root)) {
        if let Some(expiration) = rule.expiration() {
            if let Some(days) = expiration.days() {
                taken.push(format!("rule {:?} deletes objects after {days} days", name(rule)));
            } else if let Some(date) = expiration.date() {
                taken.push(format!("rule {:?} deletes objects on {date}", name(rule)));
            }
        }
        for class in rule.transitions().iter().filter_map(|transition| transition.storage_class()) {
            if matches!(class, TransitionStorageClass::Glacier | TransitionStorageClass::DeepArchive) {
                taken.push(format!("rule {:?} moves objects to {}", name(rule), class.as_str()));
            }
        }
    }
    taken
}

/// The name of the rule that is set for the stash below `root`.
pub(super) fn own_id(root: &str) -> String {
    // Names of rules have 255 characters at most.
    let shown: String = root.chars().take(200).collect();
    format!("stash-abort-uploads:{shown}")
}

/// The rules with one that aborts uploads below `root`: every other rule as it was, one of that name replaced.
pub(super) fn merged(rules: &[LifecycleRule], root: &str) -> Result<Vec<LifecycleRule>, BuildError> {
    let id = own_id(root);
    #[expect(
        deprecated,
        reason = "a store takes rules of the old form or of the new one, never both together"
    )]
    let old_form = rules.iter().any(|rule| rule.prefix().is_some() && rule.filter().is_none());
    let abort = AbortIncompleteMultipartUpload::builder().days_after_initiation(ABORT_AFTER_DAYS).build();
    let rule = LifecycleRule::builder().id(&id).status(ExpirationStatus::Enabled);
    let rule = rule.abort_incomplete_multipart_upload(abort);
    #[expect(
        deprecated,
        reason = "a store takes rules of the old form or of the new one, never both together"
    )]
    let rule = if old_form {
        rule.prefix(root)
    } else {
        rule.filter(LifecycleRuleFilter::builder().prefix(root).build())
    };
    let mut merged: Vec<_> = rules.iter().filter(|rule| rule.id() != Some(&id)).cloned().collect();
    merged.push(rule.build()?);
    Ok(merged)
}

/// The rules of others that are in `before` and not, as they were, in `after`.
pub(super) fn lost(before: &[LifecycleRule], after: &[LifecycleRule], root: &str) -> Vec<String> {
    let id = own_id(root);
    let others = before.iter().filter(|rule| rule.id() != Some(&id));
    others.filter(|rule| !after.contains(rule)).map(|rule| name(rule).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::types::{
        LifecycleExpiration, LifecycleRuleAndOperator, NoncurrentVersionExpiration, Tag, Transition,
        builders::LifecycleRuleBuilder,
    };

    use super::*;

    const ROOT: &str = "a/b/";

    fn rule(prefix: &str, more: impl FnOnce(LifecycleRuleBuilder) -> LifecycleRuleBuilder) -> LifecycleRule {
        let filter = LifecycleRuleFilter::builder().prefix(prefix).build();
        let rule = LifecycleRule::builder().id("x").status(ExpirationStatus::Enabled).filter(filter);
        more(rule).build().expect("a rule")
    }

    fn aborting(rule: LifecycleRuleBuilder) -> LifecycleRuleBuilder {
        let abort = AbortIncompleteMultipartUpload::builder().days_after_initiation(3).build();
        rule.abort_incomplete_multipart_upload(abort)
    }

    fn expiring(rule: LifecycleRuleBuilder) -> LifecycleRuleBuilder {
        rule.expiration(LifecycleExpiration::builder().days(3).build())
    }

    #[test]
    fn a_rule_that_aborts_must_hold_for_the_whole_prefix() {
        for (prefix, wanted) in
            [("", Some(3)), ("a/", Some(3)), ("a/b/", Some(3)), ("a/b/c", None), ("b/", None)]
        {
            assert_eq!(aborts_after(&[rule(prefix, aborting)], ROOT), wanted, "{prefix}");
        }
        let off = |rule| aborting(rule).status(ExpirationStatus::Disabled);
        assert_eq!(aborts_after(&[rule("", off)], ROOT), None);
    }

    #[test]
    fn a_rule_that_expires_harms_where_it_holds_for_a_part_of_the_prefix() {
        for (prefix, harms) in [("", true), ("a/", true), ("a/b/c/", true), ("a/c/", false), ("ab", false)] {
            assert_eq!(!takes(&[rule(prefix, expiring)], ROOT).is_empty(), harms, "{prefix}");
        }
        let text = takes(&[rule("", expiring)], ROOT).remove(0);
        assert_eq!(text, "rule \"x\" deletes objects after 3 days");
    }

    #[test]
    fn a_rule_for_a_tag_does_not_concern_a_stash_and_one_for_a_size_may() {
        let tag = Tag::builder().key("k").value("v").build().expect("a tag");
        let and = LifecycleRuleAndOperator::builder().prefix("a/").tags(tag).build();
        let tagged = LifecycleRuleFilter::builder().and(and).build();
        assert!(takes(&[rule("", |rule| expiring(rule).filter(tagged))], ROOT).is_empty());
        let sized = || LifecycleRuleFilter::builder().object_size_greater_than(5).build();
        assert_eq!(takes(&[rule("", |rule| expiring(rule).filter(sized()))], ROOT).len(), 1);
        assert_eq!(aborts_after(&[rule("", |rule| aborting(rule).filter(sized()))], ROOT), None);
    }

    #[test]
    fn what_moves_to_an_archive_is_taken_and_what_moves_to_a_cheaper_disk_is_not() {
        let to = |class| {
            move |rule: LifecycleRuleBuilder| {
                rule.transitions(Transition::builder().days(30).storage_class(class).build())
            }
        };
        assert_eq!(takes(&[rule("", to(TransitionStorageClass::DeepArchive))], ROOT).len(), 1);
        assert!(takes(&[rule("", to(TransitionStorageClass::StandardIa))], ROOT).is_empty());
    }

    #[test]
    fn old_versions_are_forgotten_by_a_rule_of_their_own() {
        let noncurrent = NoncurrentVersionExpiration::builder().noncurrent_days(1).build();
        let rules = [rule("a/", |rule| rule.noncurrent_version_expiration(noncurrent))];
        assert_eq!((forgets_after(&rules, ROOT), takes(&rules, ROOT).len()), (Some(1), 0));
        assert_eq!(forgets_after(&[], ROOT), None);
    }

    #[test]
    fn merging_adds_one_rule_and_leaves_the_others_as_they_are() {
        let others = vec![rule("tmp/", expiring), rule("c/", aborting)];
        let once = merged(&others, ROOT).expect("rules");
        assert_eq!((once.len(), once.get(..2)), (3, Some(&others[..])));
        assert_eq!(aborts_after(&once, ROOT), Some(ABORT_AFTER_DAYS));
        assert_eq!(merged(&once, ROOT).expect("rules"), once, "merged twice is merged once");
        assert_eq!(lost(&others, &once, ROOT), Vec::<String>::new());
        assert_eq!(lost(&others, &once[1..], ROOT), ["x"]);
    }

    #[test]
    fn beside_rules_of_the_old_form_the_new_one_has_it_too() {
        #[expect(deprecated, reason = "the old form")]
        let old = LifecycleRule::builder().id("old").status(ExpirationStatus::Enabled).prefix("tmp/");
        let old = expiring(old).build().expect("a rule");
        let merged = merged(std::slice::from_ref(&old), ROOT).expect("rules");
        assert!(merged.iter().all(|rule| rule.filter().is_none()), "{merged:?}");
        assert_eq!(aborts_after(&merged, ROOT), Some(ABORT_AFTER_DAYS));
        assert!(takes(&[old], ROOT).is_empty());
    }
}
