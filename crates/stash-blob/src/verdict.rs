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

/// What a failure means for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "s3"), expect(dead_code, reason = "memory never fails"))]
pub(crate) enum Means {
    /// It had no effect: these credentials may not do it.
    Denied,
    /// It had no effect, and will have none without somebody's help.
    Refused,
    /// It had no effect, and the same call may succeed later.
    Later,
    /// It may have had its effect.
    Unsure,
}

/// What a failure means for whoever asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Verdict {
    /// What happened, and what to do about it.
    pub(crate) what: String,
    /// What it means.
    pub(crate) means: Means,
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
        let Verdict { what, means, cause: source } = self.clone();
        match means {
            Means::Denied => BlobError::Denied { op, key, what, source },
            Means::Refused => BlobError::Determinate { op, key, what, retry: false, source },
            Means::Later | Means::Unsure => BlobError::Determinate { op, key, what, retry: true, source },
        }
    }

    /// As the error of an operation that may have had its effect.
    pub(crate) fn writing(&self, op: &'static str, key: String) -> BlobError {
        match self.means {
            Means::Unsure => {
                let Verdict { what, means: _, cause: source } = self.clone();
                BlobError::Indeterminate { op, key, what, source }
            }
            Means::Denied | Means::Refused | Means::Later => self.reading(op, key),
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

    fn verdict(means: Means) -> Verdict {
        Verdict { what: "overloaded".to_owned(), means, cause: None }
    }

    #[test]
    fn a_verdict_is_found_below_the_errors_around_it() {
        #[derive(Debug, thiserror::Error)]
        #[error("around")]
        struct Around(#[source] Verdict);
        let error =
            object_store::Error::Generic { store: "test", source: Box::new(Around(verdict(Means::Later))) };
        assert_eq!(Verdict::of(&error).expect("the verdict").what, "overloaded");
        let other = object_store::Error::Generic { store: "test", source: "no verdict".into() };
        assert!(Verdict::of(&other).is_none());
    }

    #[test]
    fn only_a_write_of_unsure_effect_is_indeterminate() {
        let write = |means| verdict(means).writing("put", "k".to_owned());
        assert!(matches!(write(Means::Unsure), BlobError::Indeterminate { .. }));
        assert!(matches!(write(Means::Later), BlobError::Determinate { retry: true, .. }));
        assert!(matches!(write(Means::Refused), BlobError::Determinate { retry: false, .. }));
        assert!(matches!(write(Means::Denied), BlobError::Denied { .. }));
        let read = verdict(Means::Unsure).reading("get", "k".to_owned());
        assert!(matches!(read, BlobError::Determinate { retry: true, .. }));
    }
}
