//! How many bytes columns stand for: of the slice that is shown, not of the buffers it is cut from.
//!
//! Budgets, row groups and declared sizes are all measured with this one ruler.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::{ByteViewType, DataType, Schema};

/// Bytes of all columns of `batch`.
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(array_bytes).fold(0, usize::saturating_add)
}

/// The least that a row of this schema takes, whatever it holds.
pub(crate) fn row_bytes_min(schema: &Schema) -> u64 {
    schema.fields().iter().map(|field| slot_bytes_min(field.data_type())).fold(0, u64::saturating_add)
}

fn slot_bytes_min(data_type: &DataType) -> u64 {
    let count = |count: &i32| u64::try_from(*count).unwrap_or(0);
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::List(_) => 4,
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => 8,
        DataType::Utf8View | DataType::BinaryView => 16,
        DataType::FixedSizeBinary(width) => count(width),
        DataType::FixedSizeList(field, size) => count(size).saturating_mul(slot_bytes_min(field.data_type())),
        DataType::Struct(fields) => {
            fields.iter().map(|field| slot_bytes_min(field.data_type())).fold(0, u64::saturating_add)
        }
        other => other.primitive_width().map_or(0, |width| width as u64),
    }
}

/// Bytes of one array.
pub(crate) fn array_bytes(array: &ArrayRef) -> usize {
    let validity = if array.nulls().is_some() { array.len().div_ceil(8) } else { 0 };
    validity.saturating_add(value_bytes(array))
}

fn value_bytes(array: &ArrayRef) -> usize {
    let len = array.len();
    if let Some(width) = array.data_type().primitive_width() {
        return len.saturating_mul(width);
    }
    match array.data_type() {
        DataType::Null => 0,
        DataType::Boolean => len.div_ceil(8),
        DataType::Utf8 => offset_bytes(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => offset_bytes(array.as_string::<i64>().value_offsets()),
        DataType::Binary => offset_bytes(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => offset_bytes(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => view_bytes(array.as_string_view()),
        DataType::BinaryView => view_bytes(array.as_binary_view()),
        DataType::FixedSizeBinary(width) => len.saturating_mul(usize::try_from(*width).unwrap_or(0)),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            list_bytes(list.value_offsets(), list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            list_bytes(list.value_offsets(), list.values())
        }
        DataType::FixedSizeList(_, _) => array_bytes(array.as_fixed_size_list().values()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(array_bytes).sum(),
        _ => array.get_array_memory_size(),
    }
}

/// Offsets plus the bytes they span.
fn offset_bytes<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
    std::mem::size_of_val(offsets).saturating_add(span(offsets).1)
}

fn span<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, usize) {
    match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => (first.as_usize(), last.as_usize() - first.as_usize()),
        _ => (0, 0),
    }
}

fn list_bytes<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> usize {
    let (first, len) = span(offsets);
    std::mem::size_of_val(offsets).saturating_add(array_bytes(&values.slice(first, len)))
}

/// A view keeps up to 12 bytes in itself; longer values lie elsewhere.
fn view_bytes<T: ByteViewType>(array: &arrow::array::GenericByteViewArray<T>) -> usize {
    let inline = 12;
    array.views().iter().fold(0usize, |bytes, view| {
        let len = *view as u32 as usize;
        bytes.saturating_add(16).saturating_add(if len > inline { len } else { 0 })
    })
}
