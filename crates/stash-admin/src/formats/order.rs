//! Whether the times of a file only rise.

use arrow::{array::AsArray, datatypes::UInt64Type};

use super::{TIME, changes::ChangeBatch, fault::Place};

/// The first update whose time is below an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: time {time} comes after time {after}; sort the file by time, or pass --sort")]
pub struct OutOfOrder {
    /// Where it is.
    pub place: Place,
    /// Its time.
    pub time: u64,
    /// The largest time before it.
    pub after: u64,
}

/// Watches the batches of one file go by, in their order.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimesCheck {
    largest: u64,
}

impl TimesCheck {
    /// Looks at the next batch. Equal times are in order.
    pub fn see(&mut self, changes: &ChangeBatch) -> Result<(), OutOfOrder> {
        let times =
            changes.batch.column_by_name(TIME).and_then(|times| times.as_primitive_opt::<UInt64Type>());
        for (row, &time) in times.iter().flat_map(|times| times.values()).enumerate() {
            if time < self.largest {
                return Err(OutOfOrder { place: changes.place_of(row), time, after: self.largest });
            }
            self.largest = time;
        }
        Ok(())
    }
}
