//! Writing a sorted run into one part: a plain Parquet object that other engines open unaided.
//!
//! The object is covered without gaps by *segments*: one per row group, and the tail (the footer). Their
//! digests stand in the footer's metadata, the tail's in the descriptor that travels, so a reader believes
//! nothing before it was checked.
//!
//! Row groups are cut by bytes *and* rows, and a batch that is too wide is sliced: what is buffered stays
//! near one row group whatever the shape of the data. Encoded bytes gather in chunks of a fixed size and are
//! hashed as they come. The same input gives the same bytes.
//!
//! Compression is LZ4_RAW. Only `_time` and `_diff` have dictionaries, since only they repeat by nature.
//! Statistics are per row group and column; those of `_time` are unsigned.

use std::io::Write;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Serialize};
use stash_types::{Description, Digest, PartDescriptor, RunFacts, SchemaFingerprint, SinkId};

use crate::error::PartError;
use crate::footer::{CREATED_BY, FooterFacts, RowGroupFacts, TAIL_BYTES_MAX};
use crate::order::OrderedRows;
use crate::schema::{DIFF_COLUMN, RowSchema, TIME_COLUMN};
use crate::updates::Sorted;

/// What a part says of itself beside its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartMeta {
    /// The sink it belongs to.
    pub sink: SinkId,
    /// The description it was written for.
    pub description: Description,
    /// The group of runs that must be merged with one another.
    pub group: u32,
    /// Its run, numbered within (process, description).
    pub run: u32,
    /// Its place within the run.
    pub ordinal: u32,
}

/// How parts are cut; the defaults are what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeOptions {
    /// A row group is closed before its columns come to more bytes in memory. 8 MiB: what a reader holds per
    /// run while it merges.
    pub row_group_bytes_max: usize,
    /// A row group is closed at this many rows. 131,072: larger ones compress no better.
    pub row_group_rows_max: usize,
    /// Encoded bytes are handed out in chunks of this size. 8 MiB: one upload part, and reusable memory.
    pub chunk_bytes: usize,
    /// A single row larger than this is refused. 64 MiB; a budget that is smaller should say so here.
    pub row_bytes_max: usize,
}

impl Default for EncodeOptions {
    fn default() -> EncodeOptions {
        EncodeOptions {
            row_group_bytes_max: 8 << 20,
            row_group_rows_max: 131_072,
            chunk_bytes: 8 << 20,
            row_bytes_max: 64 << 20,
        }
    }
}

/// Writes one part.
///
/// - What is written follows what was written before in (row, time) order.
/// - Every time lies in the description.
pub struct PartEncoder {
    schema: RowSchema,
    meta: PartMeta,
    options: EncodeOptions,
    writer: ArrowWriter<ChunkSink>,
    /// The last row written, to check that the next follows it.
    last: Option<OrderedRows>,
    open: RunFacts,
    row_groups: Vec<RowGroupFacts>,
    facts: RunFacts,
}

/// A finished part, still in memory.
#[derive(Clone, Debug)]
pub struct EncodedPart {
    /// The object's bytes, in pieces of the chosen size.
    pub chunks: Vec<Bytes>,
    /// Bytes of the whole object.
    pub len: u64,
    /// Bytes of its tail.
    pub tail_len: u64,
    /// Digest of the tail.
    pub tail_digest: Digest,
    /// Digest of the whole object.
    pub digest: Digest,
    /// What it holds.
    pub facts: RunFacts,
    /// Bytes in memory of its largest row group.
    pub piece_bytes: u64,
    /// The row schema it was written with.
    pub schema: SchemaFingerprint,
    /// What it says of itself.
    pub meta: PartMeta,
}

impl EncodedPart {
    /// The descriptor that travels, for the `n`-th part of `process`.
    pub fn descriptor(&self, process: u32, n: u64) -> PartDescriptor {
        let PartMeta { group, run, ordinal, .. } = self.meta;
        PartDescriptor {
            process,
            n,
            group,
            run,
            ordinal,
            len: self.len,
            tail_len: self.tail_len,
            tail_digest: self.tail_digest,
            digest: self.digest,
            facts: self.facts,
            piece_bytes: self.piece_bytes,
            schema: self.schema,
        }
    }
}

impl PartEncoder {
    /// An encoder for one part.
    pub fn new(schema: &RowSchema, meta: PartMeta, options: EncodeOptions) -> Result<PartEncoder, PartError> {
        let EncodeOptions { row_group_bytes_max, row_group_rows_max, chunk_bytes, row_bytes_max } = options;
        if [row_group_bytes_max, row_group_rows_max, chunk_bytes, row_bytes_max].contains(&0) {
            return Err(PartError::Misuse("every limit of a part encoder must be at least 1".into()));
        }
        let sink = ChunkSink::new(options.chunk_bytes);
        let writer_options = ArrowWriterOptions::new().with_properties(properties());
        let writer =
            ArrowWriter::try_new_with_options(sink, Arc::clone(schema.full_schema()), writer_options)
                .map_err(PartError::parquet("open a part for writing"))?;
        Ok(PartEncoder {
            schema: schema.clone(),
            meta,
            options,
            writer,
            last: None,
            open: RunFacts::default(),
            row_groups: Vec::new(),
            facts: RunFacts::default(),
        })
    }

    /// Adds updates, which follow all earlier ones. After an error the part can only be given up: dropping
    /// the encoder writes nothing anywhere.
    pub fn write(&mut self, updates: &Sorted) -> Result<(), PartError> {
        if updates.schema() != &self.schema {
            return Err(PartError::WrongSchema {
                wanted: self.schema.fingerprint(),
                found: updates.schema().fingerprint(),
            });
        }
        if updates.is_empty() {
            return Ok(());
        }
        self.check_times(updates)?;
        self.check_order(updates)?;
        let mut from = 0;
        while from < updates.num_rows() {
            let piece = self.next_piece(updates, from)?;
            if piece == 0 {
                self.close_row_group()?;
                continue;
            }
            let slice = updates.slice(from, piece);
            self.writer.write(slice.batch()).map_err(PartError::parquet("encode updates"))?;
            self.open = self.open.and(slice.facts());
            from += piece;
        }
        if self.open.update_count >= self.options.row_group_rows_max as u64 {
            self.close_row_group()?;
        }
        Ok(())
    }

    /// Bytes of the object so far: written ones, and an estimate of the open row group's.
    pub fn encoded_bytes(&self) -> usize {
        self.writer.inner().len + self.writer.in_progress_size()
    }

    /// Bytes of memory held: encoded chunks and the open row group.
    pub fn buffered_bytes(&self) -> usize {
        self.writer.inner().held_bytes() + self.writer.memory_size()
    }

    /// What was written so far.
    pub fn facts(&self) -> RunFacts {
        self.facts.and(self.open)
    }

    /// Closes the part. One without updates is a valid part, though nobody needs it.
    pub fn finish(mut self) -> Result<EncodedPart, PartError> {
        self.close_row_group()?;
        let schema = self.schema.fingerprint();
        let piece_bytes = self.row_groups.iter().map(|group| group.bytes).max().unwrap_or(0);
        let footer = FooterFacts { meta: self.meta, facts: self.facts, schema, row_groups: self.row_groups };
        for (key, value) in footer.to_metadata() {
            self.writer.append_key_value_metadata(KeyValue::new(key, value));
        }
        let sink = self.writer.into_inner().map_err(PartError::parquet("write a part's footer"))?;
        let Finished { chunks, len, tail_len, tail_digest, digest } = sink.finish();
        if tail_len > TAIL_BYTES_MAX {
            let what = "a part's footer; write smaller parts or fewer columns: it";
            return Err(PartError::TooLarge { what, bytes: tail_len, max: TAIL_BYTES_MAX });
        }
        Ok(EncodedPart {
            chunks,
            len,
            tail_len,
            tail_digest,
            digest,
            facts: self.facts,
            piece_bytes,
            schema,
            meta: self.meta,
        })
    }

    fn check_times(&self, updates: &Sorted) -> Result<(), PartError> {
        let description = self.meta.description;
        match updates.times().iter().find(|time| !description.contains(**time)) {
            Some(time) => Err(PartError::Misuse(format!(
                "an update has time {time}, outside its part's description {description}"
            ))),
            None => Ok(()),
        }
    }

    fn check_order(&mut self, updates: &Sorted) -> Result<(), PartError> {
        let first = OrderedRows::new(&updates.updates().slice(0, 1))?;
        if self.last.as_ref().is_some_and(|last| last.compare(0, &first, 0).is_ge()) {
            return Err(PartError::OutOfOrder { run: self.meta.run as usize });
        }
        let last = updates.updates().row(updates.num_rows() - 1)?;
        self.last = Some(OrderedRows::new(&last)?);
        Ok(())
    }

    /// How many rows from `from` on still fit the open row group; zero closes it.
    fn next_piece(&self, updates: &Sorted, from: usize) -> Result<usize, PartError> {
        let open_rows = usize::try_from(self.open.update_count).unwrap_or(usize::MAX);
        let open_bytes = usize::try_from(self.open.uncompressed_bytes).unwrap_or(usize::MAX);
        let rows = self.options.row_group_rows_max.saturating_sub(open_rows).min(updates.num_rows() - from);
        let bytes = self.options.row_group_bytes_max.saturating_sub(open_bytes);
        let size = |rows: usize| updates.updates().slice(from, rows).memory_bytes();
        if rows == 0 || size(rows) <= bytes {
            return Ok(rows);
        }
        // The largest count that fits, by halving: skewed columns make any estimate wrong.
        let (mut fits, mut over) = (0, rows);
        while over - fits > 1 {
            let middle = fits + (over - fits) / 2;
            if size(middle) <= bytes { fits = middle } else { over = middle }
        }
        if fits > 0 || open_rows > 0 {
            return Ok(fits);
        }
        // One row alone is larger than a row group: it gets its own, within reason.
        let (row, max) = (size(1), self.options.row_bytes_max);
        if row > max {
            return Err(PartError::TooLarge { what: "a single row", bytes: row as u64, max: max as u64 });
        }
        Ok(1)
    }

    fn close_row_group(&mut self) -> Result<(), PartError> {
        if self.open.update_count == 0 {
            return Ok(());
        }
        self.writer.flush().map_err(PartError::parquet("encode a row group"))?;
        self.writer.sync().map_err(|error| PartError::corrupt(error.to_string()))?;
        let digest = self.writer.inner_mut().cut();
        let end = self.writer.inner().len as u64;
        let facts = std::mem::take(&mut self.open);
        self.facts = self.facts.and(facts);
        self.row_groups.push(RowGroupFacts {
            end,
            rows: facts.update_count,
            min_time: facts.min_time,
            max_time: facts.max_time,
            bytes: facts.uncompressed_bytes,
            digest,
        });
        Ok(())
    }
}

impl std::fmt::Debug for PartEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartEncoder")
            .field("meta", &self.meta)
            .field("facts", &self.facts())
            .finish_non_exhaustive()
    }
}

fn properties() -> WriterProperties {
    let dictionary = |name: &str| ColumnPath::from(name);
    WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::LZ4_RAW)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(false)
        .set_column_dictionary_enabled(dictionary(TIME_COLUMN), true)
        .set_column_dictionary_enabled(dictionary(DIFF_COLUMN), true)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_statistics_truncate_length(Some(64))
        .set_offset_index_disabled(true)
        // Row groups are cut here, not there.
        .set_max_row_group_row_count(None)
        .set_max_row_group_bytes(None)
        .build()
}

/// Gathers encoded bytes in chunks of one size, hashing the whole and the open segment.
struct ChunkSink {
    chunk_bytes: usize,
    full: Vec<Bytes>,
    open: BytesMut,
    len: usize,
    segment_start: usize,
    whole: blake3::Hasher,
    segment: blake3::Hasher,
}

struct Finished {
    chunks: Vec<Bytes>,
    len: u64,
    tail_len: u64,
    tail_digest: Digest,
    digest: Digest,
}

impl ChunkSink {
    fn new(chunk_bytes: usize) -> ChunkSink {
        ChunkSink {
            chunk_bytes,
            full: Vec::new(),
            open: BytesMut::new(),
            len: 0,
            segment_start: 0,
            whole: blake3::Hasher::new(),
            segment: blake3::Hasher::new(),
        }
    }

    /// Ends the open segment here and gives its digest.
    fn cut(&mut self) -> Digest {
        self.segment_start = self.len;
        Digest(*std::mem::take(&mut self.segment).finalize().as_bytes())
    }

    fn held_bytes(&self) -> usize {
        self.full.iter().map(Bytes::len).sum::<usize>() + self.open.capacity()
    }

    fn finish(mut self) -> Finished {
        if !self.open.is_empty() {
            self.full.push(self.open.freeze());
        }
        Finished {
            chunks: self.full,
            len: self.len as u64,
            tail_len: (self.len - self.segment_start) as u64,
            tail_digest: Digest(*self.segment.finalize().as_bytes()),
            digest: Digest(*self.whole.finalize().as_bytes()),
        }
    }
}

impl Write for ChunkSink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.whole.update(bytes);
        self.segment.update(bytes);
        self.len += bytes.len();
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.chunk_bytes - self.open.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.open.extend_from_slice(now);
            rest = later;
            if self.open.len() == self.chunk_bytes {
                self.full.push(std::mem::take(&mut self.open).freeze());
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
