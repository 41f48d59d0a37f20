//! A request to S3 that had no success, by what it means.
//!
//! The SDK's own errors say it in a chain of texts, some of them with the whole answer in it. Here are the status, the
//! code and the message that the store sent, and nothing of the request.

use std::{error::Error, sync::Arc};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};

use crate::BlobError;

/// Why a request had no success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failed {
    /// The store answered, and it was no.
    #[error("{status}{}{}", spaced(.code), spaced(.message))]
    Refused {
        /// The status of HTTP.
        status: u16,
        /// The store's code, such as `NoSuchBucket`; empty where it sent none.
        code: String,
        /// What the store says for people; may be empty.
        message: String,
    },
    /// Nothing was sent: there is nothing to sign with, or the call is wrong.
    #[error("{0}")]
    NotSent(String),
    /// There was no answer, or not all of it: it may have been done all the same.
    #[error("{0}")]
    Lost(String),
    /// The store answered something else than was asked for, as stores do that do not know the request.
    #[error("the answer cannot be read as one to this question: {0}")]
    Strange(String),
}

fn spaced(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" {text}") }
}

impl Failed {
    /// The status of the store's refusal.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Failed::Refused { status, .. } => Some(*status),
            Failed::NotSent(_) | Failed::Lost(_) | Failed::Strange(_) => None,
        }
    }

    /// The store's code, empty where there is none.
    pub(crate) fn code(&self) -> &str {
        match self {
            Failed::Refused { code, .. } => code,
            Failed::NotSent(_) | Failed::Lost(_) | Failed::Strange(_) => "",
        }
    }

    /// Whether these credentials may not do this, or are no credentials of this store.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.status(), Some(401 | 403)) && !self.is_out_of_date()
    }

    /// Whether what the request was signed with was out of date: the next one is signed anew.
    fn is_out_of_date(&self) -> bool {
        matches!(
            self.code(),
            "ExpiredToken" | "TokenRefreshRequired" | "RequestTimeTooSkewed" | "RequestExpired"
        )
    }

    /// Whether there is no such bucket.
    pub(crate) fn is_no_bucket(&self) -> bool {
        self.code() == "NoSuchBucket"
    }

    /// The status and the code in one short text: `412 PreconditionFailed`.
    pub(crate) fn short(&self) -> String {
        match self {
            Failed::Refused { status, code, .. } => format!("{status}{}", spaced(code)),
            Failed::NotSent(what) | Failed::Lost(what) => what.clone(),
            Failed::Strange(_) => "an answer in another form".to_owned(),
        }
    }

    /// What to do about a refusal that will not pass by itself.
    fn advice(&self) -> Option<String> {
        match self {
            Failed::NotSent(_) => Some("nothing was sent: give credentials that the store knows".to_owned()),
            _ if self.is_out_of_date() => None,
            _ if self.is_denied() => Some("permission denied: give these credentials access".to_owned()),
            _ if self.is_no_bucket() => {
                Some("there is no such bucket: create it, or name another".to_owned())
            }
            Failed::Refused { status: 501 | 405, .. } => Some("the store cannot do this".to_owned()),
            Failed::Refused { status: 400..=499, .. } if self.status() != Some(429) => {
                Some("the store refuses this".to_owned())
            }
            Failed::Refused { .. } | Failed::Lost(_) | Failed::Strange(_) => None,
        }
    }

    fn denied(self, op: &'static str, key: String) -> BlobError {
        let what = self.advice().unwrap_or_default();
        BlobError::Denied { op, key, what, source: Some(Arc::new(self)) }
    }

    /// As the error of an operation that changes nothing.
    pub(crate) fn reading(self, op: &'static str, key: impl Into<String>) -> BlobError {
        if self.is_denied() {
            return self.denied(op, key.into());
        }
        let advice = self.advice();
        let (what, retry) = (advice.clone(), advice.is_none());
        let what = what.unwrap_or_else(|| "the store failed: try again".to_owned());
        BlobError::Determinate { op, key: key.into(), what, retry, source: Some(Arc::new(self)) }
    }

    /// As the error of an operation that may have had its effect.
    pub(crate) fn writing(self, op: &'static str, key: impl Into<String>) -> BlobError {
        let key = key.into();
        if self.is_denied() {
            return self.denied(op, key);
        }
        match self.advice() {
            Some(what) => {
                BlobError::Determinate { op, key, what, retry: false, source: Some(Arc::new(self)) }
            }
            None => {
                let what = "the store failed, perhaps after it had done it".to_owned();
                BlobError::Indeterminate { op, key, what, source: Some(Arc::new(self)) }
            }
        }
    }
}

impl<E> From<SdkError<E, HttpResponse>> for Failed
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    fn from(error: SdkError<E, HttpResponse>) -> Failed {
        match &error {
            // What cannot be read comes as an error of the service, with the status of a success. One with a code is the
            // store's own, which it thought of after it had begun to answer.
            SdkError::ServiceError(strange)
                if strange.raw().status().is_success() && strange.err().code().is_none() =>
            {
                Failed::Strange(texts(strange.err()))
            }
            SdkError::ServiceError(refused) => Failed::Refused {
                status: refused.raw().status().as_u16(),
                code: refused.err().code().unwrap_or_default().to_owned(),
                message: refused.err().message().unwrap_or_default().to_owned(),
            },
            SdkError::ConstructionFailure(_) => Failed::NotSent(texts(&error)),
            _ if about_credentials(&error) => Failed::NotSent(texts(&error)),
            _ => Failed::Lost(texts(&error)),
        }
    }
}

/// The error and its causes.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

fn texts(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in chain(error) {
        let text = cause.to_string();
        if !texts.iter().any(|before| before.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

fn about_credentials(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.is::<CredentialsError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> Failed {
        Failed::Refused { status, code: code.to_owned(), message: String::new() }
    }

    #[test]
    fn what_will_not_pass_by_itself_is_no_reason_to_try_again() {
        for (failed, wanted) in [
            (refused(404, "NoSuchBucket"), "no such bucket"),
            (refused(501, "NotImplemented"), "cannot do this"),
            (refused(400, "InvalidRequest"), "refuses this"),
            (Failed::NotSent("no credentials".to_owned()), "nothing was sent"),
        ] {
            for error in [failed.clone().reading("list", "k"), failed.writing("abort", "k")] {
                let BlobError::Determinate { what, retry, .. } = error else { panic!("{error}") };
                assert!(what.contains(wanted) && !retry, "{what}");
            }
        }
    }

    #[test]
    fn what_the_caller_may_not_is_denied() {
        for status in [401, 403] {
            let failed = refused(status, "AccessDenied");
            for error in [failed.clone().reading("list", "k"), failed.writing("abort", "k")] {
                assert!(matches!(&error, BlobError::Denied { key, .. } if key == "k"), "{error}");
            }
        }
    }

    #[test]
    fn a_store_that_failed_may_have_done_it() {
        let skewed = refused(403, "RequestTimeTooSkewed").reading("list", "");
        assert!(matches!(skewed, BlobError::Determinate { retry: true, .. }), "{skewed}");
        for failed in
            [refused(503, "SlowDown"), refused(429, "TooManyRequests"), Failed::Lost("reset".to_owned())]
        {
            assert!(matches!(failed.clone().reading("list", ""), BlobError::Determinate { retry: true, .. }));
            assert!(matches!(failed.writing("abort", ""), BlobError::Indeterminate { .. }));
        }
    }

    #[test]
    fn a_refusal_is_one_line() {
        let refused =
            Failed::Refused { status: 404, code: "NoSuchKey".into(), message: "it is not there".into() };
        assert_eq!(refused.to_string(), "404 NoSuchKey it is not there");
        assert_eq!(refused.short(), "404 NoSuchKey");
        let bare = Failed::Refused { status: 412, code: String::new(), message: String::new() };
        assert_eq!((bare.to_string().as_str(), bare.short().as_str()), ("412", "412"));
    }
}
