//! The errors of a dataflow that a scan meets, consolidated and bounded.
//!
//! - *Exact*: an error is kept with the whole of its diff, or not at all. Where too many are kept the last one
//!   goes, by time and message; from there on nothing is kept any more, for its sum would lack a part.
//! - So the first error is the first of all there are, unless everything that was kept cancelled out: then
//!   nobody knows, and [`Errors::check`] says so.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;

use super::ScanError;

/// How many distinct errors are kept.
pub(super) const ERRORS_MAX: usize = 1_000;
/// How many bytes of messages are kept, beyond the first.
pub(super) const ERROR_BYTES_MAX: usize = 1 << 20;

/// The errors met so far: none of them zero.
#[derive(Default)]
pub(super) struct Errors {
    kept: BTreeMap<(u64, String), i64>,
    bytes: usize,
    /// The smallest one that was not kept.
    cut: Option<(u64, String)>,
}

impl Errors {
    /// Adds to an error's diff, which is not zero.
    pub(super) fn add(&mut self, time: u64, message: String, diff: i64) -> Result<(), ScanError> {
        let error = (time, message);
        if self.cut.as_ref().is_some_and(|cut| *cut <= error) {
            return Ok(());
        }
        let bytes = error.1.len();
        match self.kept.entry(error) {
            Entry::Vacant(entry) => {
                entry.insert(diff);
                self.bytes += bytes;
            }
            Entry::Occupied(mut entry) => {
                match entry.get().checked_add(diff).ok_or(ScanError::DiffOverflow { time })? {
                    0 => {
                        entry.remove();
                        self.bytes -= bytes;
                    }
                    sum => *entry.get_mut() = sum,
                }
            }
        }
        while self.kept.len() > ERRORS_MAX || (self.bytes > ERROR_BYTES_MAX && self.kept.len() > 1) {
            let Some((error, _)) = self.kept.pop_last() else { break };
            self.bytes -= error.1.len();
            self.cut = Some(error);
        }
        Ok(())
    }

    /// Takes what was kept.
    pub(super) fn take(&mut self) -> BTreeMap<(u64, String), i64> {
        self.bytes = 0;
        mem::take(&mut self.kept)
    }

    /// Fails where there were errors, none is left, and there may be more.
    pub(super) fn check(&self) -> Result<(), ScanError> {
        match &self.cut {
            Some((from, _)) if self.kept.is_empty() => Err(ScanError::ErrorsUncounted { from: *from }),
            _ => Ok(()),
        }
    }
}
