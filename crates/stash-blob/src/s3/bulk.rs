//! What a bulk delete's answer says of each key.
//!
//! A store answers 200 and names the keys that failed. `object_store` takes every key that is not named as failed for
//! deleted; here a key counts as deleted only where the answer says so.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::refusal::{Again, Answer, Refused, element};
use crate::{
    RequestOp,
    verdict::{Means, PartlyDone},
};

/// What `answer` says of the keys of the request `asked`, and the failure that decides whether all of them are asked
/// again; `None` where every key is deleted.
pub(crate) fn judged(asked: &Bytes, answer: &str, bucket: &str) -> Option<(PartlyDone, Refused)> {
    let asked = String::from_utf8_lossy(asked);
    let asked: BTreeSet<&str> = elements(&asked, "Key").collect();
    let ours = |key: &&str| asked.contains(key);
    let mut done = PartlyDone { deleted: BTreeSet::new(), failed: BTreeMap::new() };
    let deleted = elements(answer, "Deleted").filter_map(|one| element(one, "Key")).filter(ours);
    done.deleted.extend(deleted.map(str::to_owned));
    let mut worst: Option<Refused> = None;
    let mut of_all = None;
    for error in elements(answer, "Error") {
        let refused = Refused::by(RequestOp::BulkDelete, bucket, &Answer::new(status_of(error), error));
        match element(error, "Key") {
            None => of_all = Some(refused),
            Some(key) if !asked.contains(key) => {}
            Some(key) if refused.refusal.code == "NoSuchKey" => drop(done.deleted.insert(key.to_owned())),
            Some(key) => {
                done.failed.insert(key.to_owned(), refused.clone().verdict(1, true));
                worst = worst.filter(|worst| matches!(worst.again, Again::Pausing(_))).or(Some(refused));
            }
        }
    }
    let unmentioned = of_all.unwrap_or_else(|| {
        let how = "answered, but not for this key".to_owned();
        let again = if answer.contains("<Deleted>") { Again::No } else { Again::Pausing(None) };
        Refused { again, ..Refused::unanswered(RequestOp::BulkDelete, how, true) }
    });
    for key in asked {
        if !done.deleted.contains(key) && !done.failed.contains_key(key) {
            done.failed
                .insert(key.to_owned(), unmentioned.clone().verdict(1, unmentioned.means != Means::Unsure));
            worst = worst.or_else(|| Some(unmentioned.clone()));
        }
    }
    Some((done, worst?))
}

/// The status that a request for this one key would have had.
fn status_of(error: &str) -> u16 {
    match element(error, "Code").unwrap_or_default() {
        "AccessDenied" => 403,
        "InternalError" => 500,
        "SlowDown" | "ServiceUnavailable" => 503,
        "NotImplemented" => 501,
        _ => 400,
    }
}

/// The texts of all elements `tag`, in order.
fn elements<'a>(xml: &'a str, tag: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(open.as_str())?;
        let (text, after) = after.split_once(close.as_str())?;
        rest = after;
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &[u8] = b"<Delete><Object><Key>p/a</Key></Object><Object><Key>p/b</Key></Object>\
                           <Object><Key>p/c</Key></Object></Delete>";

    fn answered(answer: &str) -> Option<(PartlyDone, Refused)> {
        judged(&Bytes::from_static(ASKED), answer, "bucket")
    }

    #[test]
    fn an_answer_that_names_every_key_as_deleted_is_whole() {
        let answer = "<DeleteResult xmlns=\"x\"><Deleted><Key>p/c</Key></Deleted><Deleted><Key>p/a</Key>\
                      <DeleteMarker>true</DeleteMarker></Deleted><Deleted><Key>p/b</Key></Deleted></DeleteResult>";
        assert!(answered(answer).is_none());
    }

    #[test]
    fn each_key_has_its_own_outcome() {
        let answer = "<DeleteResult><Deleted><Key>p/a</Key></Deleted>\
            <Error><Key>p/b</Key><Code>AccessDenied</Code><Message>no</Message></Error>\
            <Error><Key>p/c</Key><Code>InternalError</Code><Message>later</Message></Error>\
            <Error><Key>q/x</Key><Code>AccessDenied</Code></Error></DeleteResult>";
        let (partly, worst) = answered(answer).expect("two failed");
        assert_eq!(partly.deleted, BTreeSet::from(["p/a".to_owned()]));
        let of = |key: &str| partly.failed.get(key).map(|verdict| verdict.means);
        assert_eq!((of("p/b"), of("p/c"), of("q/x")), (Some(Means::Denied), Some(Means::Unsure), None));
        assert!(matches!(worst.again, Again::Pausing(_)), "the one that may pass is asked again");
    }

    #[test]
    fn a_key_that_the_answer_does_not_mention_is_not_deleted() {
        for answer in ["<DeleteResult/>", "<Error><Code>InternalError</Code></Error>", ""] {
            let (partly, worst) = answered(answer).expect("nothing was confirmed");
            assert!(matches!(worst.again, Again::Pausing(_)), "{answer:?}");
            assert_eq!((partly.deleted.len(), partly.failed.len()), (0, 3), "{answer:?}");
        }
        let two = "<Deleted><Key>p/a</Key></Deleted><Deleted><Key>p/b</Key></Deleted>";
        let (partly, worst) = answered(two).expect("c");
        assert_eq!(worst.again, Again::No);
        assert_eq!(partly.failed.keys().collect::<Vec<_>>(), ["p/c"]);
    }
}
