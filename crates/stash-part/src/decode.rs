//! Reading parts back, believing nothing before it was checked.
//!
//! The tail is checked against the descriptor's digest and lengths, then parsed; each row group against the
//! digest in the footer, then decoded. After that, what was decoded is compared with what was declared: rows,
//! times, order. Sizes are bounded by the declared ones *before* memory is taken: footers and page headers are
//! walked first, only the encodings that the writer uses are let in, and a panic of the decoder is an error.
//!
//! A reader needs two things from wherever the part lives: [`tail_range`] and, for each row group it wants,
//! [`RowGroupSpan::range`].

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bytes::{Buf, Bytes};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Type;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::statistics::Statistics;
use stash_types::{Digest, Frontier, PartDescriptor, RunFacts};

use crate::encode::PartMeta;
use crate::error::{PartError, guarded};
use crate::footer::{FooterFacts, RowGroupFacts, TAIL_BYTES_MAX};
use crate::memory::row_bytes_min;
use crate::order::OrderedRows;
use crate::schema::RowSchema;
use crate::thrift;
use crate::updates::{Sorted, Updates};

/// Magic and footer length: what every Parquet object ends with.
pub(crate) const TRAILER: usize = 8;
/// How deep columns nest in a footer: three levels a list, and rows nest 16 deep at most.
const SCHEMA_DEPTH_MAX: usize = 64;
/// How much larger than in memory columns may be while encoded: small integers take four bytes, levels one.
const ENCODED_FACTOR: u64 = 16;
/// What each column may take beyond that: headers, dictionaries, levels of a few rows.
const ENCODED_SLACK: u64 = 64 << 10;

/// One row group of a part: which bytes it takes and what they declare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroupSpan {
    /// Its bytes in the object.
    pub range: Range<u64>,
    /// How many updates.
    pub rows: u64,
    /// Bytes of its columns in memory, once decoded.
    pub uncompressed_bytes: u64,
    /// The smallest time.
    pub min_time: u64,
    /// The largest time.
    pub max_time: u64,
    /// Digest of the bytes.
    pub digest: Digest,
}

/// A part whose tail was read and found in order; cheap to clone.
///
/// - Spans lie in the object, one after the other without gaps, and end where the tail begins.
/// - Their counts and bounds add up to the descriptor's.
#[derive(Clone)]
pub struct PartLayout {
    schema: RowSchema,
    meta: PartMeta,
    facts: RunFacts,
    reader: ArrowReaderMetadata,
    spans: Arc<[RowGroupSpan]>,
}

/// Where a part's tail lies in its object.
pub fn tail_range(part: &PartDescriptor) -> Range<u64> {
    part.len.saturating_sub(part.tail_len)..part.len
}

/// Compares a whole object, given in pieces, with its descriptor: for audits and reading back.
pub fn verify_whole(part: &PartDescriptor, pieces: &[Bytes]) -> Result<(), PartError> {
    let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    if len != part.len {
        return Err(PartError::corrupt(format!(
            "the part has {len} bytes, its descriptor says {}",
            part.len
        )));
    }
    let mut whole = WholeDigest::default();
    pieces.iter().for_each(|piece| whole.update(piece));
    if whole.and(&[]) != part.digest {
        return Err(PartError::corrupt("the part differs from its digest"));
    }
    Ok(())
}

/// The digest of a whole object that is read segment by segment, in order.
#[derive(Clone, Debug, Default)]
pub struct WholeDigest(blake3::Hasher);

impl WholeDigest {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of what was added, and of `tail` after it.
    #[must_use]
    pub fn and(mut self, tail: &[u8]) -> Digest {
        self.update(tail);
        Digest(*self.0.finalize().as_bytes())
    }
}

impl PartLayout {
    /// Checks and reads a part's tail: the bytes of [`tail_range`].
    pub fn parse(schema: &RowSchema, part: &PartDescriptor, tail: Bytes) -> Result<PartLayout, PartError> {
        if part.schema != schema.fingerprint() {
            return Err(PartError::WrongSchema { wanted: schema.fingerprint(), found: part.schema });
        }
        if part.tail_len > TAIL_BYTES_MAX {
            let what = "a part's footer, as its descriptor says,";
            return Err(PartError::TooLarge { what, bytes: part.tail_len, max: TAIL_BYTES_MAX });
        }
        if part.tail_len > part.len || tail.len() as u64 != part.tail_len {
            return Err(PartError::corrupt(format!(
                "the tail has {} bytes, the descriptor says {} of {}",
                tail.len(),
                part.tail_len,
                part.len
            )));
        }
        if Digest::of(&tail) != part.tail_digest {
            return Err(PartError::corrupt("the tail differs from its digest"));
        }
        guarded("footer", || Self::parse_checked(schema, part, &tail))
    }

    fn parse_checked(
        schema: &RowSchema,
        part: &PartDescriptor,
        tail: &[u8],
    ) -> Result<PartLayout, PartError> {
        let metadata = metadata(tail)?;
        let declared = read_declared(&metadata)?;
        if declared.schema != part.schema {
            return Err(PartError::WrongSchema { wanted: part.schema, found: declared.schema });
        }
        check_facts(&declared, part)?;
        let spans = spans(&declared, part, &metadata, row_bytes_min(schema.full_schema()))?;
        let reader = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
            .map_err(|error| PartError::corrupt(format!("footer: {error}")))?;
        if reader.schema().fields() != schema.full_schema().fields() {
            return Err(PartError::SchemaMismatch(
                "the part's columns are not those of its schema; it was not written by this format".into(),
            ));
        }
        let (meta, facts) = (declared.meta, declared.facts);
        Ok(PartLayout { schema: schema.clone(), meta, facts, reader, spans: spans.into() })
    }

    /// What the part says of itself.
    pub fn meta(&self) -> &PartMeta {
        &self.meta
    }

    /// What it holds.
    pub fn facts(&self) -> RunFacts {
        self.facts
    }

    /// The rows' schema.
    pub fn schema(&self) -> &RowSchema {
        &self.schema
    }

    /// Its row groups, in row order.
    pub fn row_groups(&self) -> &[RowGroupSpan] {
        &self.spans
    }

    /// The row groups that may hold times in `[lower, upper)`, in order; the others need not be fetched.
    pub fn prune(&self, lower: Frontier, upper: Frontier) -> Vec<usize> {
        let may_hold =
            |span: &RowGroupSpan| span.max_time >= lower.as_u64() && span.min_time < upper.as_u64();
        (0..self.spans.len()).filter(|i| may_hold(&self.spans[*i])).collect()
    }

    /// Checks and decodes row group `i` from the bytes of its range, and keeps the updates with
    /// `lower ≤ time < upper`.
    pub fn decode_row_group(
        &self,
        i: usize,
        bytes: Bytes,
        lower: Frontier,
        upper: Frontier,
    ) -> Result<Sorted, PartError> {
        let Some(span) = self.spans.get(i) else {
            let have = self.spans.len();
            return Err(PartError::Misuse(format!("row group {i} of a part that has {have}")));
        };
        let wanted = span.range.end - span.range.start;
        if bytes.len() as u64 != wanted {
            return Err(PartError::corrupt(format!("row group {i} has {} bytes of {wanted}", bytes.len())));
        }
        if Digest::of(&bytes) != span.digest {
            return Err(PartError::corrupt(format!("row group {i} differs from its digest")));
        }
        let updates = guarded("row group", || {
            let row_group = self.reader.metadata().row_group(i);
            for (at, column) in row_group.columns().iter().enumerate() {
                // Only `_time` and `_diff`, the last two, are written with dictionaries.
                check_pages(column, span, &bytes, at + 2 >= row_group.num_columns())?;
            }
            self.decode_checked(i, span, bytes.clone())
        })?;
        check_decoded(i, span, &updates)?;
        Sorted::vouch(updates).between(lower, upper)
    }

    fn decode_checked(&self, i: usize, span: &RowGroupSpan, bytes: Bytes) -> Result<Updates, PartError> {
        let damaged = |error: String| PartError::corrupt(format!("row group {i}: {error}"));
        let segment = Segment { start: span.range.start, bytes };
        let rows = usize::try_from(span.rows).map_err(|error| damaged(error.to_string()))?;
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(segment, self.reader.clone())
            .with_row_groups(vec![i])
            .with_batch_size(rows)
            .build()
            .map_err(|error| damaged(error.to_string()))?;
        let full = self.schema.full_schema();
        let batches =
            reader.collect::<Result<Vec<RecordBatch>, _>>().map_err(|error| damaged(error.to_string()))?;
        let batch = match <[RecordBatch; 1]>::try_from(batches) {
            Ok([batch]) => batch,
            Err(batches) => concat_batches(full, &batches).map_err(|error| damaged(error.to_string()))?,
        };
        Updates::checked(&self.schema, batch).map_err(|error| damaged(error.to_string()))
    }
}

impl std::fmt::Debug for PartLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartLayout")
            .field("meta", &self.meta)
            .field("spans", &self.spans)
            .finish_non_exhaustive()
    }
}

/// Parquet's own metadata at the end of a tail, walked before it is parsed.
pub(crate) fn metadata(tail: &[u8]) -> Result<ParquetMetaData, PartError> {
    let footer = footer_bytes(tail)?;
    let end = thrift::walk(footer, &mut |_, _| {})?;
    if end != footer.len() {
        return Err(PartError::corrupt("bytes are left over after the footer"));
    }
    thrift::check_schema_depth(footer, SCHEMA_DEPTH_MAX)?;
    ParquetMetaDataReader::decode_metadata(footer)
        .map_err(|error| PartError::corrupt(format!("footer: {error}")))
}

/// The footer within the tail.
fn footer_bytes(tail: &[u8]) -> Result<&[u8], PartError> {
    let damaged = || PartError::corrupt("the tail does not end as a Parquet object does");
    let (rest, trailer) = tail.split_last_chunk::<TRAILER>().ok_or_else(damaged)?;
    let [a, b, c, d, b'P', b'A', b'R', b'1'] = *trailer else { return Err(damaged()) };
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    let start = rest.len().checked_sub(len).ok_or_else(damaged)?;
    rest.get(start..).ok_or_else(damaged)
}

pub(crate) fn read_declared(metadata: &ParquetMetaData) -> Result<FooterFacts, PartError> {
    let pairs = metadata.file_metadata().key_value_metadata().map(Vec::as_slice).unwrap_or_default();
    FooterFacts::from_metadata(|key| {
        pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref())
    })
}

/// The footer must say what the descriptor says.
fn check_facts(declared: &FooterFacts, part: &PartDescriptor) -> Result<(), PartError> {
    let PartMeta { group, run, ordinal, description, .. } = declared.meta;
    if (group, run, ordinal) != (part.group, part.run, part.ordinal) || declared.facts != part.facts {
        return Err(PartError::corrupt("the footer and the descriptor tell of different parts"));
    }
    let RunFacts { update_count, min_time, max_time, .. } = declared.facts;
    let inside = description.contains(min_time) && description.contains(max_time);
    if update_count > 0 && (min_time > max_time || !inside) {
        return Err(PartError::corrupt("the footer's times lie outside its description"));
    }
    Ok(())
}

/// Lays the row groups out over the object, and checks that Parquet's metadata agrees. Each row takes at least
/// `row_bytes` of memory.
fn spans(
    declared: &FooterFacts,
    part: &PartDescriptor,
    metadata: &ParquetMetaData,
    row_bytes: u64,
) -> Result<Vec<RowGroupSpan>, PartError> {
    let damaged = |why: &str| PartError::corrupt(format!("footer: {why}"));
    if metadata.num_row_groups() != declared.row_groups.len() {
        return Err(damaged("it lists other row groups than Parquet's metadata"));
    }
    let mut spans = Vec::with_capacity(declared.row_groups.len());
    let mut start = 0;
    let mut total = RunFacts { diff_sum: declared.facts.diff_sum, ..RunFacts::default() };
    for (facts, row_group) in declared.row_groups.iter().zip(metadata.row_groups()) {
        let RowGroupFacts { end, rows, min_time, max_time, bytes, digest } = *facts;
        if end <= start || end > tail_range(part).start {
            return Err(damaged("a row group lies outside the object"));
        }
        if rows == 0 || i64::try_from(rows) != Ok(row_group.num_rows()) || min_time > max_time {
            return Err(damaged("a row group's counts are impossible"));
        }
        let span =
            RowGroupSpan { range: start..end, rows, uncompressed_bytes: bytes, min_time, max_time, digest };
        check_columns(row_group.columns(), &span)?;
        if rows.saturating_mul(row_bytes) > bytes {
            return Err(damaged("a row group declares more updates than it has room for"));
        }
        let one = RunFacts { update_count: rows, diff_sum: 0, min_time, max_time, uncompressed_bytes: bytes };
        total = RunFacts { diff_sum: total.diff_sum, ..total.and(one) };
        start = end;
        spans.push(span);
    }
    let sums = RunFacts { diff_sum: declared.facts.diff_sum, ..total };
    if start != tail_range(part).start || sums != declared.facts {
        return Err(damaged("its row groups do not add up to the part"));
    }
    // What a reader reserved memory by.
    if spans.iter().map(|span| span.uncompressed_bytes).max().unwrap_or(0) > part.piece_bytes {
        return Err(damaged("a row group is larger than its descriptor says"));
    }
    Ok(spans)
}

/// Offsets inside the span, sizes within what is declared, the time's statistics equal to ours.
fn check_columns(columns: &[ColumnChunkMetaData], span: &RowGroupSpan) -> Result<(), PartError> {
    let damaged = |why: &str| Err(PartError::corrupt(format!("footer: {why}")));
    let mut encoded = 0u64;
    for column in columns {
        if column_range(column, span).is_none() {
            return damaged("a column lies outside its row group");
        }
        let (Ok(size), Ok(values)) =
            (u64::try_from(column.uncompressed_size()), u64::try_from(column.num_values()))
        else {
            return damaged("a column has a negative size");
        };
        if values > values_max(column, span) {
            return damaged("a column holds more values than its row group has room for");
        }
        encoded = encoded.saturating_add(size);
    }
    let slack = ENCODED_SLACK.saturating_mul(columns.len() as u64);
    let max = span.uncompressed_bytes.saturating_mul(ENCODED_FACTOR).saturating_add(slack);
    if encoded > max {
        return Err(PartError::TooLarge { what: "a row group beyond what it declares", bytes: encoded, max });
    }
    let time = columns.len().checked_sub(2).and_then(|time| columns.get(time));
    match time.and_then(ColumnChunkMetaData::statistics) {
        Some(Statistics::Int64(times)) => {
            let found = (times.min_opt().map(|min| *min as u64), times.max_opt().map(|max| *max as u64));
            if found != (Some(span.min_time), Some(span.max_time)) {
                return damaged("the time column's statistics contradict it");
            }
            Ok(())
        }
        _ => damaged("the time column has no statistics"),
    }
}

/// How many values a column may hold, nulls and empty lists included. A value takes its width in memory even
/// where it is null and takes nothing in the file; an empty list takes an offset, or is a row's.
fn values_max(column: &ColumnChunkMetaData, span: &RowGroupSpan) -> u64 {
    let bytes = span.uncompressed_bytes;
    let descriptor = column.column_descr();
    let slots = match descriptor.physical_type() {
        Type::BOOLEAN => bytes.saturating_mul(8),
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => bytes / 4,
        Type::INT64 | Type::DOUBLE => bytes / 8,
        Type::INT96 => bytes / 12,
        Type::FIXED_LEN_BYTE_ARRAY => bytes / u64::try_from(descriptor.type_length()).unwrap_or(1).max(1),
    };
    slots.saturating_add(bytes / 4).saturating_add(span.rows)
}

/// Where a column's pages lie within its row group's bytes.
fn column_range(column: &ColumnChunkMetaData, span: &RowGroupSpan) -> Option<Range<usize>> {
    // Not `byte_range`, which panics where numbers are negative.
    let first = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let start = u64::try_from(first.min(column.data_page_offset())).ok()?;
    let end = start.checked_add(u64::try_from(column.compressed_size()).ok()?)?;
    if start < span.range.start || end > span.range.end {
        return None;
    }
    let shift = |offset: u64| usize::try_from(offset - span.range.start).ok();
    Some(shift(start)?..shift(end)?)
}

/// What a page header claims; field numbers are those of Parquet's `PageHeader`.
#[derive(Default)]
struct PageClaims {
    kind: i64,
    uncompressed: i64,
    compressed: i64,
    values: i64,
    data_encoding: i64,
    dictionary_encoding: i64,
}

/// Walks a column's page headers before any page is unpacked: only plain pages, a dictionary only where it
/// repeats fixed-size values, and no size beyond what the footer declares.
fn check_pages(
    column: &ColumnChunkMetaData,
    span: &RowGroupSpan,
    bytes: &Bytes,
    dictionary: bool,
) -> Result<(), PartError> {
    let damaged = |why: &str| PartError::corrupt(format!("column {}: {why}", column.column_path()));
    let mut pages = column_range(column, span)
        .and_then(|range| bytes.get(range))
        .ok_or_else(|| damaged("lies outside its row group"))?;
    let (mut unpacked, mut values) = (0u64, 0u64);
    while !pages.is_empty() {
        let mut claims = PageClaims::default();
        let header = thrift::walk(pages, &mut |path, value| match path {
            [1] => claims.kind = value,
            [2] => claims.uncompressed = value,
            [3] => claims.compressed = value,
            [5, 1] => claims.values = value,
            [5, 2] => claims.data_encoding = value,
            [7, 2] => claims.dictionary_encoding = value,
            _ => {}
        })?;
        // Data pages (0) are plain (0) or, with a dictionary, indexes (2, 8); dictionary pages (2) are plain.
        let known = match claims.kind {
            0 => claims.data_encoding == 0 || (dictionary && matches!(claims.data_encoding, 2 | 8)),
            2 => dictionary && matches!(claims.dictionary_encoding, 0 | 2),
            _ => false,
        };
        if !known {
            return Err(damaged("has a page of a kind this format does not write"));
        }
        let size = |value: i64| u64::try_from(value).map_err(|_| damaged("has a page of negative size"));
        unpacked = unpacked.saturating_add(size(claims.uncompressed)?).saturating_add(header as u64);
        values = values.saturating_add(size(claims.values)?);
        let end = usize::try_from(size(claims.compressed)?).ok().and_then(|size| size.checked_add(header));
        pages =
            end.and_then(|end| pages.get(end..)).ok_or_else(|| damaged("has a page that ends beyond it"))?;
    }
    if i64::try_from(unpacked).is_ok_and(|unpacked| unpacked > column.uncompressed_size()) {
        return Err(damaged("unpacks to more than the footer declares"));
    }
    if i64::try_from(values) != Ok(column.num_values()) {
        return Err(damaged("holds another number of values than the footer declares"));
    }
    Ok(())
}

/// What came out must be what was declared.
fn check_decoded(i: usize, span: &RowGroupSpan, updates: &Updates) -> Result<(), PartError> {
    let damaged = |why: &str| Err(PartError::corrupt(format!("row group {i} {why}")));
    if updates.num_rows() as u64 != span.rows {
        return damaged("holds another number of updates than it declares");
    }
    let times = updates.times();
    if times.iter().min() != Some(&span.min_time) || times.iter().max() != Some(&span.max_time) {
        return damaged("holds other times than it declares");
    }
    if updates.diffs().contains(&0) {
        return damaged("holds a diff of zero");
    }
    if !OrderedRows::new(updates)?.is_strictly_sorted() {
        return damaged("is not sorted and consolidated");
    }
    Ok(())
}

/// The bytes of one row group, at the offsets they have in the object.
struct Segment {
    start: u64,
    bytes: Bytes,
}

impl Segment {
    fn at(&self, start: u64) -> ParquetResult<Bytes> {
        let from = start.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        let from = from.filter(|from| *from <= self.bytes.len());
        from.map(|from| self.bytes.slice(from..))
            .ok_or_else(|| ParquetError::EOF("outside the row group".into()))
    }
}

impl Length for Segment {
    fn len(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }
}

impl ChunkReader for Segment {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(self.at(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let from = self.at(start)?;
        if length > from.len() {
            return Err(ParquetError::EOF("outside the row group".into()));
        }
        Ok(from.slice(..length))
    }
}
