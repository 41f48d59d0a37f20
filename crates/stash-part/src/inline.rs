//! Small runs that travel inside a message: one Arrow IPC record batch, without its schema.
//!
//! The payload is a version byte, three zero bytes, the length of the IPC header as a little-endian `u32`, the
//! header padded to 16 bytes, and the columns' buffers. The receiver knows the schema; the fingerprint says
//! that it is the same one.

use std::{collections::HashMap, sync::Arc};

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::ipc;
use bytes::Bytes;
use stash_types::{Digest, InlineRun};

use crate::error::{PartError, guarded};
use crate::order::OrderedRows;
use crate::schema::RowSchema;
use crate::updates::{Sorted, Updates};

/// The version of the payload; the row order's version is part of its meaning.
const PAYLOAD_VERSION: u8 = 1;
/// Bytes before the IPC header.
const PREAMBLE: usize = 8;
/// The columns' buffers begin at a multiple of this.
const ALIGNMENT: usize = 16;

/// Encodes a run of `group` to travel inside a message.
pub fn encode_inline(updates: &Sorted, group: u32) -> Result<InlineRun, PartError> {
    // Views would carry the whole of the buffers they point into.
    let payload = encode_payload(&updates.updates().compacted()?)?;
    Ok(InlineRun {
        group,
        digest: Digest::of(&payload),
        payload,
        facts: updates.facts(),
        schema: updates.schema().fingerprint(),
    })
}

fn encode_payload(batch: &Updates) -> Result<Bytes, PartError> {
    let options = ipc::writer::IpcWriteOptions::default();
    let mut tracker = ipc::writer::DictionaryTracker::new(false);
    let (_, encoded) = ipc::writer::IpcDataGenerator::default()
        .encode(batch.batch(), &mut tracker, &options, &mut Default::default())
        .map_err(PartError::arrow("encode an inline run"))?;
    let header = encoded.ipc_message;
    let header_len = u32::try_from(header.len()).map_err(|_| PartError::TooLarge {
        what: "an inline run's header",
        bytes: header.len() as u64,
        max: u64::from(u32::MAX),
    })?;
    let body_start = (PREAMBLE + header.len()).next_multiple_of(ALIGNMENT);
    let mut payload = Vec::with_capacity(body_start + encoded.arrow_data.len());
    payload.extend_from_slice(&[PAYLOAD_VERSION, 0, 0, 0]);
    payload.extend_from_slice(&header_len.to_le_bytes());
    payload.extend_from_slice(&header);
    payload.resize(body_start, 0);
    payload.extend_from_slice(&encoded.arrow_data);
    Ok(payload.into())
}

/// Decodes an inline run: digest and fingerprint first, then the columns, then the declared facts and the order.
pub fn decode_inline(schema: &RowSchema, run: &InlineRun) -> Result<Sorted, PartError> {
    if run.schema != schema.fingerprint() {
        return Err(PartError::WrongSchema { wanted: schema.fingerprint(), found: run.schema });
    }
    if Digest::of(&run.payload) != run.digest {
        return Err(PartError::corrupt("an inline run differs from its digest"));
    }
    let updates = guarded("inline run", || decode_payload(schema, &run.payload))?;
    let facts = updates.facts();
    let declared = run.facts;
    // Sizes in memory follow from the same columns, but are no promise across versions.
    if (facts.update_count, facts.diff_sum, facts.min_time, facts.max_time)
        != (declared.update_count, declared.diff_sum, declared.min_time, declared.max_time)
    {
        return Err(PartError::corrupt("an inline run holds other updates than it declares"));
    }
    // SUBTLE: views can show the same bytes many times over: eight megabytes of them stand for terabytes, which
    // whoever copies them would take. A writer's own views never share, and a reader reserves what is declared.
    let held = updates.memory_bytes() as u64;
    let max = declared.uncompressed_bytes.max(run.payload.len() as u64);
    if held > max {
        return Err(PartError::TooLarge { what: "an inline run beyond what it declares", bytes: held, max });
    }
    if updates.diffs().contains(&0) || !OrderedRows::new(&updates)?.is_strictly_sorted() {
        return Err(PartError::corrupt("an inline run is not sorted and consolidated"));
    }
    Ok(Sorted::vouch(updates))
}

fn decode_payload(schema: &RowSchema, payload: &[u8]) -> Result<Updates, PartError> {
    let damaged = |why: &str| PartError::corrupt(format!("an inline run {why}"));
    let (preamble, _) = payload.split_first_chunk::<PREAMBLE>().ok_or_else(|| damaged("is cut short"))?;
    let [version, 0, 0, 0, a, b, c, d] = *preamble else { return Err(damaged("has no preamble")) };
    if version != PAYLOAD_VERSION {
        let known = u32::from(PAYLOAD_VERSION);
        return Err(PartError::Version { what: "inline run", found: version.to_string(), known });
    }
    let header_len = u32::from_le_bytes([a, b, c, d]) as usize;
    let header_end = PREAMBLE.saturating_add(header_len);
    let header = payload.get(PREAMBLE..header_end).ok_or_else(|| damaged("is cut short"))?;
    let body =
        payload.get(header_end.next_multiple_of(ALIGNMENT)..).ok_or_else(|| damaged("is cut short"))?;
    let message = ipc::root_as_message(header).map_err(|error| damaged(&error.to_string()))?;
    let batch = message.header_as_record_batch().ok_or_else(|| damaged("holds no record batch"))?;
    if batch.compression().is_some() {
        return Err(damaged("is compressed, which it never is"));
    }
    // One aligned copy; the columns then share it.
    let mut aligned = MutableBuffer::with_capacity(body.len());
    aligned.extend_from_slice(body);
    let buffer = Buffer::from(aligned);
    let full = Arc::clone(schema.full_schema());
    let batch =
        ipc::reader::read_record_batch(&buffer, batch, full, &HashMap::new(), None, &message.version())
            .map_err(|error| damaged(&error.to_string()))?;
    Updates::checked(schema, batch).map_err(|error| damaged(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{StringViewArray, UInt64Array};
    use arrow::datatypes::DataType;
    use stash_types::RunFacts;

    use super::*;
    use crate::consolidate;
    use crate::testing::schema;

    #[test]
    fn an_inline_run_whose_views_share_their_bytes_is_read_only_if_it_declares_them_all() {
        let schema = schema(&[(DataType::Utf8View, false)]);
        let one = StringViewArray::from_iter_values(["x".repeat(10_000)]);
        let same = arrow::compute::take(&one, &UInt64Array::from(vec![0; 1000]), None).unwrap();
        let times = UInt64Array::from_iter_values(0..1000);
        let updates = Updates::from_columns(&schema, vec![same], times, vec![1; 1000].into()).unwrap();
        let run = consolidate(updates).unwrap();
        let payload = encode_payload(run.updates()).unwrap();
        assert!(payload.len() < 100_000, "{} bytes stand for ten million", payload.len());
        let facts = run.facts();
        let digest = Digest::of(&payload);
        let inline = InlineRun { group: 0, payload, digest, facts, schema: schema.fingerprint() };
        assert_eq!(decode_inline(&schema, &inline).unwrap().num_rows(), 1000);
        let facts = RunFacts { uncompressed_bytes: 100_000, ..facts };
        let error = decode_inline(&schema, &InlineRun { facts, ..inline }).unwrap_err();
        assert!(matches!(error, PartError::TooLarge { .. }), "{error}");
    }
}
