//! What the layer below an `object_store` knows of a failure.
//!
//! `object_store` has one error for most of what a server may say. A layer below it that knows more puts a [`Verdict`]
//! among the sources of the error, where it is found by its type.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    sync::Arc,
};

use crate::BlobError;

/// What a failure means for whoever asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Verdict {
    /// What happened, and what to do about it.
    pub(crate) what: String,
    /// Whether the request surely had no effect.
    pub(crate) sure: bool,
    /// Whether the same call may succeed later without anybody's help.
    pub(crate) retry: bool,
    /// What it was told by.
    #[source]
    pub(crate) cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl Verdict {
    /// The verdict among the sources of `error`, if there is one.
    pub(crate) fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Verdict> {
        std::iter::successors(Some(error), |error| (*error).source()).find_map(|cause| cause.downcast_ref())
    }

    /// As the error of an operation that changes nothing.
    pub(crate) fn reading(&self, op: &'static str, key: String) -> BlobError {
        let Verdict { what, sure: _, retry, cause } = self.clone();
        BlobError::Determinate { op, key, what, retry, source: cause }
    }

    /// As the error of an operation that may have had its effect.
    pub(crate) fn writing(&self, op: &'static str, key: String) -> BlobError {
        let Verdict { what, sure, retry, cause } = self.clone();
        match sure {
            true => BlobError::Determinate { op, key, what, retry, source: cause },
            false => BlobError::Indeterminate { op, key, what, source: cause },
        }
    }
}

/// A delete of many objects of which some failed, or went unmentioned.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} of {} keys are not known to be deleted", .failed.len(), .failed.len() + .deleted.len())]
pub(crate) struct PartlyDone {
    /// Locations that are deleted.
    pub(crate) deleted: BTreeSet<String>,
    /// What became of the others.
    pub(crate) failed: BTreeMap<String, Verdict>,
}

impl PartlyDone {
    /// The one among the sources of `error`, if there is one.
    pub(crate) fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a PartlyDone> {
        std::iter::successors(Some(error), |error| (*error).source()).find_map(|cause| cause.downcast_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(sure: bool, retry: bool) -> Verdict {
        Verdict { what: "overloaded".to_owned(), sure, retry, cause: None }
    }

    #[test]
    fn a_verdict_is_found_below_the_errors_around_it() {
        #[derive(Debug, thiserror::Error)]
        #[error("around")]
        struct Around(#[source] Verdict);
        let error =
            object_store::Error::Generic { store: "test", source: Box::new(Around(verdict(true, false))) };
        assert_eq!(Verdict::of(&error).expect("the verdict").what, "overloaded");
        let other = object_store::Error::Generic { store: "test", source: "no verdict".into() };
        assert!(Verdict::of(&other).is_none());
    }

    #[test]
    fn only_a_write_of_unsure_effect_is_indeterminate() {
        let key = || "k".to_owned();
        assert!(matches!(verdict(false, true).writing("put", key()), BlobError::Indeterminate { .. }));
        assert!(matches!(
            verdict(true, true).writing("put", key()),
            BlobError::Determinate { retry: true, .. }
        ));
        assert!(matches!(
            verdict(false, true).reading("get", key()),
            BlobError::Determinate { retry: true, .. }
        ));
    }
}
