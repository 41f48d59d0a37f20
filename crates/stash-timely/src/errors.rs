//! The errors of a dataflow, by time and message: consolidated and bounded.
//!
//! An error is an update like any other: those that are equal meet, and what sums to nothing was taken back. The ones that
//! wait for their description, those of a scan, and those of all workers together are kept alike. Those of the error
//! collection were consolidated before, by time and message, so that what comes and goes at one time is not counted here.
//!
//! - *Exact*: an error is kept with the whole of its diff, or not at all. Where too many are kept the last one
//!   goes, by time and message; from there on nothing is kept any more, for its sum would lack a part.
//! - So the first error is the first of all there are, unless everything that was kept cancelled out: then
//!   nobody knows, and [`Verdict::Unknown`] says so.
//! - *Over with its cause*: the last time of what was not kept is known too. Once all up to there was taken, nothing is
//!   lacking any more. Where the first lies before the description that asks, a rendering that begins there may know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stash::{Description, Frontier};

/// How many distinct errors are kept.
pub(crate) const ERRORS_MAX: usize = 1_000;
/// How many bytes of messages are kept, beyond the first.
pub(crate) const ERROR_BYTES_MAX: usize = 1 << 20;

/// Errors, none of them zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Errors {
    /// In i128: as many i64 as memory can hold do not leave it.
    kept: BTreeMap<(u64, String), i128>,
    bytes: usize,
    /// From where to where some were not kept.
    cut: Option<Cut>,
}

/// Which errors were not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cut {
    /// The smallest of them. From there on none is kept.
    from: (u64, String),
    /// The largest time of them.
    last: u64,
    /// Whether the smallest lay before the description that these are the errors of.
    before: bool,
}

/// What errors come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is none.
    None,
    /// The first is this, at this time.
    First(u64, String),
    /// There were so many that some were not kept, and all that were kept cancelled out.
    Unknown {
        /// The time of the first that was not kept and is asked for.
        from: u64,
        /// Whether others were not kept either that came before what is asked for: who is not asked for those may know.
        before: bool,
    },
}

impl Errors {
    /// Adds to an error's diff.
    pub(crate) fn add(&mut self, time: u64, message: String, diff: i128) {
        let error = (time, message);
        if diff == 0 {
            return;
        }
        if let Some(cut) = self.cut.as_mut().filter(|cut| cut.from <= error) {
            cut.last = cut.last.max(time);
            return;
        }
        let bytes = error.1.len();
        match self.kept.get_mut(&error) {
            None => {
                self.kept.insert(error, diff);
                self.bytes += bytes;
            }
            Some(sum) => {
                *sum += diff;
                if *sum == 0 {
                    self.kept.remove(&error);
                    self.bytes -= bytes;
                }
            }
        }
        while self.kept.len() > ERRORS_MAX || (self.bytes > ERROR_BYTES_MAX && self.kept.len() > 1) {
            let Some((error, _)) = self.kept.pop_last() else { break };
            self.bytes -= error.1.len();
            match &mut self.cut {
                // What is kept lies below what was cut before.
                Some(cut) => cut.from = error,
                None => self.cut = Some(Cut { last: error.0, from: error, before: false }),
            }
        }
    }

    /// Adds all of these.
    pub(crate) fn merge(&mut self, more: Errors) {
        let Errors { kept, bytes: _, cut } = more;
        if let Some(cut) = cut {
            self.cut_at(cut);
        }
        for ((time, message), diff) in kept {
            self.add(time, message, diff);
        }
    }

    /// Keeps nothing from there on.
    fn cut_at(&mut self, cut: Cut) {
        let gone = self.kept.split_off(&cut.from);
        self.bytes -= gone.keys().map(|(_, message)| message.len()).sum::<usize>();
        let last = gone.last_key_value().map_or(cut.last, |((time, _), _)| cut.last.max(*time));
        self.cut = Some(match self.cut.take() {
            None => Cut { last, ..cut },
            Some(own) => Cut {
                last: own.last.max(last),
                before: own.before || cut.before,
                from: own.from.min(cut.from),
            },
        });
    }

    /// Takes the errors below `upper`, and of these gives back those that are in `wanted`.
    pub(crate) fn take(&mut self, wanted: Option<Description>, upper: Frontier) -> Errors {
        if self.is_none() {
            return Errors::default();
        }
        // The empty frontier is above all times, and so is its number.
        let bound = |frontier: Frontier| (frontier.as_u64(), String::new());
        let later = self.kept.split_off(&bound(upper));
        let mut taken = Errors { kept: std::mem::replace(&mut self.kept, later), bytes: 0, cut: None };
        self.measure();
        let cut = self.cut.clone();
        self.cut = self.cut.take().filter(|cut| Frontier::at(cut.last) >= upper);
        let Some(wanted) = wanted else { return Errors::default() };
        taken.kept.retain(|(time, _), _| wanted.contains(*time));
        let (from, to) = (wanted.lower().as_u64(), wanted.upper().as_u64());
        taken.cut = cut.filter(|cut| cut.from.0 < to && from <= cut.last);
        if let Some(cut) = &mut taken.cut
            && cut.from.0 < from
        {
            // SUBTLE: from an error on that was not kept none is known, also where that one is not wanted itself.
            (cut.from, cut.before) = (bound(wanted.lower()), true);
        }
        taken.measure();
        taken
    }

    fn measure(&mut self) {
        self.bytes = self.kept.keys().map(|(_, message)| message.len()).sum();
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        *self = Errors::default();
    }

    /// Whether there is nothing to say.
    pub(crate) fn is_none(&self) -> bool {
        self.kept.is_empty() && self.cut.is_none()
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of their messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What they come to.
    pub(crate) fn verdict(mut self) -> Verdict {
        match (self.kept.pop_first(), self.cut) {
            (Some(((time, message), _)), _) => Verdict::First(time, message),
            (None, Some(Cut { from: (from, _), before, .. })) => Verdict::Unknown { from, before },
            (None, None) => Verdict::None,
        }
    }

    /// What is kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> &BTreeMap<(u64, String), i128> {
        &self.kept
    }
}

#[cfg(test)]
mod tests;
