//! What a request says of itself: refused where it contradicts itself, before anything is locked. Pure; every catalog
//! asks this first.

use stash_types::{Digest, Frontier, PartName};

use crate::rows::{CommitRequest, HeadStatus, NewBatch, NewSink, OutcomeKind, Resolution};
use crate::{CatalogError, Misuse};

type Result<T> = std::result::Result<T, CatalogError>;

fn inconsistent<T>(what: String) -> Result<T> {
    Err(Misuse::Inconsistent { what }.into())
}

impl NewSink {
    /// Refuses a declaration that contradicts itself.
    pub fn check(&self) -> Result<()> {
        if self.as_of == u64::MAX {
            return inconsistent("the as-of of a sink must be a time, not the empty frontier".to_owned());
        }
        if self.up_to <= Frontier::at(self.as_of) {
            return inconsistent(format!(
                "sink {} would end at {}, before its as-of {}",
                self.name, self.up_to, self.as_of
            ));
        }
        for (what, ms) in [("retention", self.retention_ms), ("absent hold", self.absent_hold_ms)] {
            if ms == Some(0) {
                return inconsistent(format!(
                    "the {what} of sink {} is zero: leave it out to say for ever",
                    self.name
                ));
            }
        }
        if [self.retention_ms, self.absent_hold_ms].into_iter().flatten().any(|ms| i64::try_from(ms).is_err())
        {
            return inconsistent(
                "a duration above 2^63 milliseconds: leave it out to say for ever".to_owned(),
            );
        }
        Ok(())
    }

    /// The first property in which two declarations differ; the id is drawn anew by each, and is none.
    pub fn difference(&self, asked: &NewSink) -> Option<&'static str> {
        let NewSink {
            id: _,
            name: _,
            schema,
            fingerprint,
            as_of,
            up_to,
            seals,
            retention_ms,
            absent_hold_ms,
        } = asked;
        [
            ("schema fingerprint", self.fingerprint == *fingerprint),
            ("schema", self.schema == *schema),
            ("as-of", self.as_of == *as_of),
            ("up-to", self.up_to == *up_to),
            ("sealing", self.seals == *seals),
            ("retention", self.retention_ms == *retention_ms),
            ("absent hold", self.absent_hold_ms == *absent_hold_ms),
        ]
        .into_iter()
        .find_map(|(field, equal)| (!equal).then_some(field))
    }
}

impl Resolution {
    /// Where it moves the chain's upper to; `None` where it does not.
    pub fn moved_upper(&self) -> Option<Frontier> {
        match self {
            Resolution::Accept { batch, .. } => Some(batch.upper),
            Resolution::Extend { upper, .. } => Some(*upper),
            Resolution::Drop { .. } => None,
        }
    }

    /// The parts it does not keep.
    pub fn unlinked(&self) -> &[PartName] {
        match self {
            Resolution::Accept { unlink, .. }
            | Resolution::Extend { unlink, .. }
            | Resolution::Drop { unlink } => unlink,
        }
    }
}

impl CommitRequest {
    /// Refuses a request that contradicts itself.
    pub fn check(&self) -> Result<()> {
        let CommitRequest { incarnation, expected_upper, description, outcome, resolution, status, .. } =
            self;
        if matches!(status, HeadStatus::Dropped) {
            return inconsistent("a commit cannot drop the sink: use drop_sink".to_owned());
        }
        if matches!(status, HeadStatus::Poisoned(error) if error.at == u64::MAX) {
            return inconsistent("the time of an error must be a time, not the empty frontier".to_owned());
        }
        // A poison at U takes nothing of the batch: it is dropped, and yet the chain's status changes.
        let takes = match resolution {
            Resolution::Accept { .. } => true,
            Resolution::Extend { upper, .. } => upper > expected_upper,
            Resolution::Drop { .. } => false,
        };
        if takes == matches!(outcome, OutcomeKind::Dropped) {
            return inconsistent(format!("outcome {outcome:?} does not fit what is written"));
        }
        if let Some(upper) = resolution.moved_upper() {
            let poisons =
                matches!(status, HeadStatus::Poisoned(_)) && matches!(resolution, Resolution::Extend { .. });
            if upper < *expected_upper || (upper == *expected_upper && !poisons) {
                return inconsistent(format!("the chain cannot move from {expected_upper} to {upper}"));
            }
            if upper > description.upper() || *expected_upper < description.lower() {
                return inconsistent(format!(
                    "[{expected_upper}, {upper}) is not part of the offered {description}"
                ));
            }
        }
        let kept = match resolution {
            Resolution::Accept { batch, .. } => Some(batch),
            Resolution::Extend { .. } | Resolution::Drop { .. } => None,
        };
        let names = kept.into_iter().flat_map(|batch| batch.parts.iter().map(|part| &part.name));
        if let Some(name) = names.chain(resolution.unlinked()).find(|name| name.incarnation != *incarnation) {
            return inconsistent(format!("a part of {} is offered by {incarnation}", name.incarnation));
        }
        kept.map_or(Ok(()), |batch| check_batch(batch, *expected_upper))
    }
}

fn check_batch(batch: &NewBatch, expected_upper: Frontier) -> Result<()> {
    if batch.lower != expected_upper {
        return inconsistent(format!(
            "the batch begins at {}, the chain ends at {expected_upper}",
            batch.lower
        ));
    }
    for part in &batch.parts {
        let (name, descriptor) = (&part.name, &part.descriptor);
        if (name.process, name.n) != (descriptor.process, descriptor.n) {
            return inconsistent(format!(
                "part {}-{} is described as {}-{}",
                name.process, name.n, descriptor.process, descriptor.n
            ));
        }
    }
    match batch.inline.iter().position(|run| Digest::of(&run.payload) != run.digest) {
        Some(place) => {
            inconsistent(format!("inline run {place} does not have the digest it is said to have"))
        }
        None => Ok(()),
    }
}
