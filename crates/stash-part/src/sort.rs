//! Consolidation: sort by (row, time), sum the diffs of equal (row, time), drop zeros.
//!
//! Pairs of (prefix, position) are sorted; ties are resolved by comparing columns. Sort shares that fit the
//! cache and merge them: one large sort is about three times slower than its pieces.

use std::cmp::Ordering;

use arrow::array::{ArrayRef, Int64Array, UInt32Array};
use arrow::compute::take;

use crate::error::PartError;
use crate::order::OrderedRows;
use crate::updates::{Sorted, Updates};

/// Sorts and consolidates `updates`. Sums are exact: only a final sum beyond `i64` is refused.
pub fn consolidate(updates: Updates) -> Result<Sorted, PartError> {
    let rows = OrderedRows::new(&updates)?;
    consolidate_as(&rows, updates)
}

/// Consolidates by the general comparison whatever the schema, to check the fast one against.
#[cfg(test)]
pub(crate) fn consolidate_general(updates: Updates) -> Result<Sorted, PartError> {
    let rows = OrderedRows::general(&updates)?;
    consolidate_as(&rows, updates)
}

fn consolidate_as(rows: &OrderedRows, updates: Updates) -> Result<Sorted, PartError> {
    // What is sorted already is passed on as it is: merged and re-read data often is.
    if rows.is_strictly_sorted() && !updates.diffs().contains(&0) {
        return Ok(Sorted::vouch(updates));
    }
    let order = sorted_positions(rows, updates.num_rows())?;
    let (kept, diffs) = sum_equal(rows, &order, &updates)?;
    gather(&updates, kept, diffs)
}

/// The positions of all rows in (row, time) order.
fn sorted_positions(rows: &OrderedRows, len: usize) -> Result<Vec<(u64, u32)>, PartError> {
    let len = u32::try_from(len).map_err(|_| PartError::TooLarge {
        what: "a batch to sort (as rows)",
        bytes: len as u64,
        max: u64::from(u32::MAX),
    })?;
    let mut order: Vec<(u64, u32)> = rows.prefixes().iter().copied().zip(0..len).collect();
    order.sort_unstable();
    let tied = |x: &(u64, u32), y: &(u64, u32)| x.0 == y.0;
    for ties in order.chunk_by_mut(tied).filter(|ties| ties.len() > 1) {
        ties.sort_unstable_by(|x, y| {
            rows.compare_tied(x.1 as usize, rows, y.1 as usize).then_with(|| x.1.cmp(&y.1))
        });
    }
    Ok(order)
}

/// One position and one diff for each distinct (row, time) whose diffs do not cancel.
fn sum_equal(
    rows: &OrderedRows,
    order: &[(u64, u32)],
    updates: &Updates,
) -> Result<(Vec<u32>, Vec<i64>), PartError> {
    let diffs = updates.diffs();
    let mut kept = Vec::with_capacity(order.len());
    let mut sums = Vec::with_capacity(order.len());
    let equal = |x: &(u64, u32), y: &(u64, u32)| {
        x.0 == y.0 && rows.compare_tied(x.1 as usize, rows, y.1 as usize) == Ordering::Equal
    };
    for group in order.chunk_by(equal) {
        let first = group[0].1;
        let sum = group.iter().map(|(_, row)| i128::from(diffs[*row as usize])).sum();
        let diff = narrow(sum, updates.times()[first as usize])?;
        if diff != 0 {
            kept.push(first);
            sums.push(diff);
        }
    }
    Ok((kept, sums))
}

/// A sum of diffs as one diff.
pub(crate) fn narrow(sum: i128, time: u64) -> Result<i64, PartError> {
    i64::try_from(sum).map_err(|_| PartError::DiffOverflow { time, sum })
}

fn gather(updates: &Updates, kept: Vec<u32>, diffs: Vec<i64>) -> Result<Sorted, PartError> {
    let kept = UInt32Array::from(kept);
    let rows = updates.schema().columns();
    let take_column = |column: &ArrayRef| {
        take(column, &kept, None).map_err(PartError::arrow("bring rows into order; sort smaller batches"))
    };
    let columns =
        updates.batch().columns().iter().take(rows).map(take_column).collect::<Result<Vec<_>, _>>()?;
    let times = kept.values().iter().map(|row| updates.times()[*row as usize]).collect::<Vec<u64>>();
    let updates = Updates::from_columns(updates.schema(), columns, times.into(), Int64Array::from(diffs))?;
    Ok(Sorted::vouch(updates))
}
