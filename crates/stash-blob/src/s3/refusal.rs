//! What an answer without success means: whether to ask again, and what to tell whoever asked.
//!
//! Of an answer's body only the code, the message and the region are kept: stores echo what was signed, a customer's
//! encryption key among it, so the body itself is let go of.

use std::{sync::Arc, time::Duration};

use crate::{
    BlobError, RequestOp,
    verdict::{Means, Verdict},
};

/// A request to the store that had no success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} was {how}{}", counted(.tries))]
pub struct S3Refusal {
    /// What was asked.
    pub op: RequestOp,
    /// The status of HTTP, where there was an answer.
    pub status: Option<u16>,
    /// The store's code, such as `NoSuchBucket`; empty where it sent none.
    pub code: String,
    /// How many times it was tried in all.
    pub tries: u32,
    how: String,
}

impl S3Refusal {
    /// The refusal that an operation failed by, if it was one.
    pub fn of(error: &BlobError) -> Option<&S3Refusal> {
        match error {
            BlobError::NotFound { .. } => None,
            BlobError::Denied { source, .. }
            | BlobError::Determinate { source, .. }
            | BlobError::Indeterminate { source, .. } => source.as_deref()?.downcast_ref(),
        }
    }
}

fn counted(tries: &u32) -> String {
    if *tries > 1 { format!(" (the last of {tries} tries)") } else { String::new() }
}

/// Whether, and how, a request is made once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// It is not: it would end the same way.
    No,
    /// After a pause; as long as the store asks for, where it does.
    Pausing(Option<Duration>),
    /// Once, at once, signed by the clock's present time.
    SignedAnew,
    /// Once, at once, with other credentials, if there are.
    WithNewKeys,
    /// Once, at once, without asking that an upload be published only under a free key.
    Unconditional,
}

/// A request that had no success, judged.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) refusal: S3Refusal,
    pub(crate) again: Again,
    pub(crate) means: Means,
    pub(crate) what: String,
}

/// What a store says in an answer without success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) region: Option<String>,
    pub(crate) retry_after: Option<Duration>,
}

/// The longest message that is passed on, in characters.
const MESSAGE_MAX: usize = 300;

/// The text of the first element `tag` in `xml`, which a store wrote.
pub(crate) fn element<'a>(xml: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{tag}>"))?;
    rest.split_once(&format!("</{tag}>")).map(|(text, _)| text)
}

impl Answer {
    /// Of a status and a body, which may be empty.
    pub(crate) fn new(status: u16, body: &str) -> Answer {
        let text = |tag| element(body, tag).unwrap_or_default();
        let code: String = text("Code").chars().filter(char::is_ascii_alphanumeric).take(100).collect();
        let message = match code.as_str() {
            // These say what was signed, or with what.
            "SignatureDoesNotMatch"
            | "InvalidAccessKeyId"
            | "AuthorizationHeaderMalformed"
            | "InvalidToken"
            | "ExpiredToken" => String::new(),
            _ => text("Message").chars().take(MESSAGE_MAX).collect(),
        };
        let region = element(body, "Region").map(str::to_owned);
        Answer { status, code, message, region, retry_after: None }
    }

    fn how(&self) -> String {
        let spaced = |text: &str| if text.is_empty() { String::new() } else { format!(" {text}") };
        format!("answered {}{}{}", self.status, spaced(&self.code), spaced(&self.message))
    }
}

impl Refused {
    /// Judges an answer to `op`, about `bucket`.
    pub(crate) fn by(op: RequestOp, bucket: &str, answer: &Answer) -> Refused {
        let mut refused = Refused {
            refusal: S3Refusal {
                op,
                status: Some(answer.status),
                code: answer.code.clone(),
                tries: 1,
                how: answer.how(),
            },
            again: Again::No,
            means: Means::Refused,
            what: String::new(),
        };
        refused.judge(op, bucket, answer);
        refused
    }

    fn judge(&mut self, op: RequestOp, bucket: &str, answer: &Answer) {
        let needs = needs(op);
        self.what = match (answer.status, answer.code.as_str()) {
            (_, "NoSuchBucket") => {
                format!("there is no bucket {bucket:?} at this endpoint: create it, or mend the URL")
            }
            (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken") => {
                self.again = Again::WithNewKeys;
                self.means = Means::Later;
                "the credentials have expired, and the chain has no newer ones yet: renew the session"
                    .to_owned()
            }
            (_, "RequestTimeTooSkewed" | "RequestExpired") => {
                self.again = Again::SignedAnew;
                self.means = Means::Later;
                "this machine's clock and the store's differ: set the clock".to_owned()
            }
            (_, "InvalidAccessKeyId") => {
                self.means = Means::Denied;
                self.again = Again::WithNewKeys;
                "the store does not know this access key: give the keys of this store's user".to_owned()
            }
            (_, "SignatureDoesNotMatch") => {
                self.means = Means::Denied;
                "the secret key does not fit the access key: check both, and that no proxy changes requests"
                    .to_owned()
            }
            (301 | 307 | 400, _) if answer.region.is_some() => {
                let region = answer.region.as_deref().unwrap_or_default();
                format!("the bucket {bucket:?} is in region {region}: set region={region} in the URL")
            }
            (301 | 302 | 307 | 308, _) => {
                "the store sends elsewhere: set the bucket's own region and endpoint".to_owned()
            }
            (400, "") if op == RequestOp::Head => {
                self.again = Again::WithNewKeys;
                self.means = Means::Later;
                "the store refuses this without a reason: the credentials have expired, or it wants a customer's key"
                    .to_owned()
            }
            (401 | 403, _) => {
                self.means = Means::Denied;
                // SUBTLE: a HEAD has no body and so no code. It may have been the clock.
                self.again = if op == RequestOp::Head { Again::SignedAnew } else { Again::No };
                let absent = match op {
                    RequestOp::Get | RequestOp::Head => {
                        " (or there is no such object: who may not list is not told which)"
                    }
                    _ => "",
                };
                format!("give these credentials {needs}{absent}")
            }
            (404, "NoSuchUpload") => {
                // Whoever completed it before gets the same answer.
                self.means = if op == RequestOp::CompleteUpload { Means::Unsure } else { Means::Later };
                "the upload is gone: it was completed or abandoned".to_owned()
            }
            (409, _) => {
                self.again = if op == RequestOp::Put { Again::Pausing(None) } else { Again::No };
                self.means = Means::Later;
                "another request for this key is under way".to_owned()
            }
            (400 | 501, "NotImplemented") | (501, _) if op == RequestOp::CompleteUpload => {
                self.again = Again::Unconditional;
                "the store cannot do this".to_owned()
            }
            (405 | 501, _) | (_, "NotImplemented") => {
                "the store cannot do this: a Stash needs PUTs, ranged GETs, deletes and listings".to_owned()
            }
            (413, _) | (_, "EntityTooLarge") => {
                "the object is too large for one PUT here: lower put_bytes_max".to_owned()
            }
            (400, "RequestTimeout") | (408 | 429 | 500.., _) => {
                self.again = Again::Pausing(answer.retry_after);
                self.means = Means::Unsure;
                "the store failed, or is overloaded".to_owned()
            }
            _ => "the store refuses this request".to_owned(),
        };
    }

    /// Judges a request that has no answer. `sent`: whether any of it may have reached the store.
    pub(crate) fn unanswered(op: RequestOp, how: String, sent: bool) -> Refused {
        // SUBTLE: an upload that was begun without our learning its id is nobody's to abandon, so it is not begun a
        // second time. All else may be asked again: a PUT is create-only, and meets its own first try.
        let again = if sent && op == RequestOp::CreateUpload { Again::No } else { Again::Pausing(None) };
        Refused {
            refusal: S3Refusal { op, status: None, code: String::new(), tries: 1, how },
            again,
            means: if sent { Means::Unsure } else { Means::Later },
            what: "the store does not answer: check the endpoint and the network".to_owned(),
        }
    }

    /// As it is told, after `tries` of which any may have had the effect unless `sure`.
    pub(crate) fn verdict(mut self, tries: u32, sure: bool) -> Verdict {
        self.refusal.tries = tries;
        let means = if sure { self.means } else { Means::Unsure };
        Verdict { what: self.what, means, cause: Some(Arc::new(self.refusal)) }
    }
}

/// What has to be allowed for an operation.
fn needs(op: RequestOp) -> &'static str {
    match op {
        RequestOp::Put | RequestOp::CreateUpload | RequestOp::UploadPart | RequestOp::CompleteUpload => {
            "s3:PutObject on the stash's prefix"
        }
        RequestOp::AbortUpload => "s3:AbortMultipartUpload on the stash's prefix",
        RequestOp::Get | RequestOp::Head => "s3:GetObject on the stash's prefix",
        RequestOp::Delete | RequestOp::BulkDelete => "s3:DeleteObject on the stash's prefix",
        RequestOp::List => "s3:ListBucket on the bucket, for the stash's prefix",
        RequestOp::ListUploads => "s3:ListBucketMultipartUploads on the bucket",
        RequestOp::Other => "access",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(op: RequestOp, status: u16, code: &str) -> Refused {
        Refused::by(op, "b", &Answer { status, code: code.to_owned(), ..Answer::default() })
    }

    #[test]
    fn an_answer_keeps_its_code_and_message_and_nothing_that_was_signed() {
        let body = "<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>hunter2</Message>\
                    <CanonicalRequest>x-amz-server-side-encryption-customer-key:hunter2</CanonicalRequest></Error>";
        let refused = Refused::by(RequestOp::Put, "b", &Answer::new(403, body));
        let verdict = refused.verdict(1, true);
        let told = format!("{verdict} {verdict:?} {}", verdict.cause.as_ref().expect("a cause"));
        assert!(told.contains("SignatureDoesNotMatch") && !told.contains("hunter2"), "{told}");
        let answer =
            Answer::new(403, "<Error><Code>AccessDenied</Code><Message>user u may not</Message></Error>");
        assert_eq!(answer.how(), "answered 403 AccessDenied user u may not");
        assert_eq!(Answer::new(502, "<html>bad gateway").how(), "answered 502");
    }

    #[test]
    fn what_will_not_pass_by_itself_is_not_asked_again() {
        for (op, status, code, wanted) in [
            (RequestOp::Put, 403, "AccessDenied", "s3:PutObject"),
            (RequestOp::List, 403, "AccessDenied", "s3:ListBucket"),
            (RequestOp::Get, 403, "", "no such object"),
            (RequestOp::Put, 404, "NoSuchBucket", "there is no bucket \"b\""),
            (RequestOp::Get, 403, "SignatureDoesNotMatch", "secret key"),
            (RequestOp::BulkDelete, 501, "NotImplemented", "cannot do this"),
            (RequestOp::Put, 413, "EntityTooLarge", "put_bytes_max"),
            (RequestOp::Put, 400, "InvalidRequest", "refuses"),
        ] {
            let refused = refused(op, status, code);
            assert_eq!(refused.again, Again::No, "{code}");
            let verdict = refused.verdict(1, true);
            assert!(verdict.what.contains(wanted), "{code}: {verdict}");
            assert!(matches!(verdict.means, Means::Denied | Means::Refused), "{code}: {verdict:?}");
        }
    }

    #[test]
    fn what_the_store_failed_at_is_asked_again_and_may_have_had_its_effect() {
        for (status, code) in [(500, "InternalError"), (503, "SlowDown"), (429, ""), (400, "RequestTimeout")]
        {
            let refused = refused(RequestOp::Put, status, code);
            assert_eq!(refused.again, Again::Pausing(None), "{status}");
            assert_eq!(refused.means, Means::Unsure, "{status}");
        }
        let lost = Refused::unanswered(RequestOp::Put, "cut".to_owned(), true);
        assert_eq!((lost.means, lost.again), (Means::Unsure, Again::Pausing(None)));
        let unsent = Refused::unanswered(RequestOp::Put, "refused".to_owned(), false);
        assert_eq!(unsent.means, Means::Later);
    }

    #[test]
    fn an_upload_whose_beginning_is_unknown_is_not_begun_twice() {
        assert_eq!(Refused::unanswered(RequestOp::CreateUpload, String::new(), true).again, Again::No);
        let unsent = Refused::unanswered(RequestOp::CreateUpload, String::new(), false);
        assert_eq!(unsent.again, Again::Pausing(None));
    }

    #[test]
    fn an_upload_that_is_gone_when_it_is_completed_may_have_been() {
        assert_eq!(refused(RequestOp::CompleteUpload, 404, "NoSuchUpload").means, Means::Unsure);
        assert_eq!(refused(RequestOp::UploadPart, 404, "NoSuchUpload").means, Means::Later);
    }

    #[test]
    fn a_head_that_is_refused_without_a_reason_is_asked_once_more() {
        let denied = refused(RequestOp::Head, 403, "");
        assert_eq!((denied.again, denied.means), (Again::SignedAnew, Means::Denied));
        let expired = refused(RequestOp::Head, 400, "");
        assert_eq!((expired.again, expired.means), (Again::WithNewKeys, Means::Later));
    }

    #[test]
    fn another_region_is_named() {
        let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
        let refused = Refused::by(RequestOp::Get, "b", &Answer::new(400, body));
        assert!(refused.verdict(1, true).what.contains("set region=eu-west-1"));
    }
}
