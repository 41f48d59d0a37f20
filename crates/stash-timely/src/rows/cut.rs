//! Takes back a row that serde gave up in the middle of: columns are cut to the rows that were whole.
//!
//! What appends a row to columns only ever adds behind what is there, so the first rows of each column are what they
//! were, however ragged the columns are behind them. Cut are the values, the offsets of texts, binary and lists, and what
//! these lead to; bits that say which values are null may be left behind the last row, where nobody looks.

use serde_arrow::marrow::array::{Array, BytesArray, ListArray};

/// Cuts a column to its first `rows`. `None` where that is not possible: it has fewer, or is of a kind that is not traced
/// from any type.
pub(super) fn cut(column: &mut Array, rows: usize) -> Option<()> {
    match column {
        Array::Null(array) => shorten(&mut array.len, rows),
        Array::Boolean(array) => shorten(&mut array.len, rows),
        Array::Int8(array) => truncate(&mut array.values, rows),
        Array::Int16(array) => truncate(&mut array.values, rows),
        Array::Int32(array) => truncate(&mut array.values, rows),
        Array::Int64(array) => truncate(&mut array.values, rows),
        Array::UInt8(array) => truncate(&mut array.values, rows),
        Array::UInt16(array) => truncate(&mut array.values, rows),
        Array::UInt32(array) => truncate(&mut array.values, rows),
        Array::UInt64(array) => truncate(&mut array.values, rows),
        Array::Float32(array) => truncate(&mut array.values, rows),
        Array::Float64(array) => truncate(&mut array.values, rows),
        Array::Utf8(BytesArray { offsets, data, .. }) | Array::Binary(BytesArray { offsets, data, .. }) => {
            let end = last_offset(offsets, rows)?;
            truncate(data, end)
        }
        Array::List(ListArray { offsets, elements, .. }) => {
            let end = last_offset(offsets, rows)?;
            cut(elements, end)
        }
        Array::Struct(array) => {
            shorten(&mut array.len, rows)?;
            array.fields.iter_mut().try_for_each(|(_, field)| cut(field, rows))
        }
        _ => None,
    }
}

fn shorten(len: &mut usize, rows: usize) -> Option<()> {
    let enough = rows <= *len;
    *len = rows;
    enough.then_some(())
}

fn truncate<T>(values: &mut Vec<T>, rows: usize) -> Option<()> {
    let enough = rows <= values.len();
    values.truncate(rows);
    enough.then_some(())
}

/// Cuts offsets to those of so many rows, and says where the last of these ends.
fn last_offset(offsets: &mut Vec<i32>, rows: usize) -> Option<usize> {
    truncate(offsets, rows.checked_add(1)?)?;
    offsets.last().and_then(|end| usize::try_from(*end).ok())
}
