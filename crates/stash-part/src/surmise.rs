//! What a part's own footer says where its descriptor is lost: for salvage, and for nothing else.
//!
//! A descriptor vouches for a part's tail, and the tail for its row groups. Without one nobody vouches for the tail: what is
//! surmised from it is checked for its form and against itself, and its row groups against the digests it holds. So
//! accidental damage is found, wherever it is but for the text of the footer's own values; a forgery is not.
//!
//! It goes in three steps, since whoever asks has the bytes: the last [`TRAILER_BYTES`] tell where the footer begins
//! ([`footer_start`]), the footer what the part says of itself ([`Surmise::of_footer`]), and the tail then makes the
//! descriptor and the layout by which the part is read like any other ([`Surmise::into_part`]).

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::Schema;
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use stash_types::{Digest, PartDescriptor, RunFacts};

use crate::decode::{PartLayout, TRAILER, metadata, read_declared};
use crate::encode::PartMeta;
use crate::error::{PartError, guarded};
use crate::footer::{FooterFacts, TAIL_BYTES_MAX};
use crate::schema::{DIFF_COLUMN, RowSchema, TIME_COLUMN};

/// How many bytes at the end of an object tell where its footer begins.
pub const TRAILER_BYTES: u64 = TRAILER as u64;

/// Where the footer of an object of `len` bytes begins, told by its last [`TRAILER_BYTES`] bytes.
pub fn footer_start(len: u64, trailer: &[u8]) -> Result<u64, PartError> {
    let Ok([a, b, c, d, b'P', b'A', b'R', b'1']) = <[u8; TRAILER]>::try_from(trailer) else {
        return Err(PartError::corrupt("the object does not end as a Parquet object does"));
    };
    let footer = u64::from(u32::from_le_bytes([a, b, c, d])) + TRAILER_BYTES;
    if footer > TAIL_BYTES_MAX {
        let what = "a part's footer, as its own end says,";
        return Err(PartError::TooLarge { what, bytes: footer, max: TAIL_BYTES_MAX });
    }
    len.checked_sub(footer).ok_or_else(|| PartError::corrupt("the footer is longer than the object"))
}

/// What a part says of itself; nobody vouches for it.
#[derive(Clone, Debug)]
pub struct Surmise {
    schema: RowSchema,
    declared: FooterFacts,
    len: u64,
}

impl Surmise {
    /// Reads the footer of an object of `len` bytes: its bytes from [`footer_start`] to the end.
    pub fn of_footer(len: u64, footer: &[u8]) -> Result<Surmise, PartError> {
        guarded("footer", || {
            let metadata = metadata(footer)?;
            let declared = read_declared(&metadata)?;
            let schema = row_schema(metadata)?;
            if schema.fingerprint() != declared.schema {
                return Err(PartError::corrupt("the footer's columns are not those of its own schema"));
            }
            let surmise = Surmise { schema, declared, len };
            let tail = surmise.tail();
            if tail.start > len || tail.end - tail.start < footer.len() as u64 {
                return Err(PartError::corrupt("the footer's row groups do not end before it"));
            }
            Ok(surmise)
        })
    }

    /// The row schema it was written with.
    pub fn schema(&self) -> &RowSchema {
        &self.schema
    }

    /// Which sink, description, group and run it was written for.
    pub fn meta(&self) -> &PartMeta {
        &self.declared.meta
    }

    /// What it says it holds.
    pub fn facts(&self) -> RunFacts {
        self.declared.facts
    }

    /// Bytes in memory of its largest row group, as it says: what decoding takes at once.
    pub fn piece_bytes(&self) -> u64 {
        self.declared.row_groups.iter().map(|row_group| row_group.bytes).max().unwrap_or(0)
    }

    /// Where its tail lies: behind the last row group.
    pub fn tail(&self) -> Range<u64> {
        self.declared.row_groups.last().map_or(0, |last| last.end)..self.len
    }

    /// The descriptor that its writer would have given, for the `n`-th part of `process`, and the layout by it, which
    /// checks that the footer agrees with itself. The digest of the whole object is the one thing that stays unknown:
    /// it is zeros.
    pub fn into_part(
        self,
        process: u32,
        n: u64,
        tail: Bytes,
    ) -> Result<(PartDescriptor, PartLayout), PartError> {
        let range = self.tail();
        let PartMeta { group, run, ordinal, .. } = self.declared.meta;
        let part = PartDescriptor {
            process,
            n,
            group,
            run,
            ordinal,
            len: self.len,
            tail_len: range.end.saturating_sub(range.start),
            tail_digest: Digest::of(&tail),
            digest: Digest([0; 32]),
            facts: self.declared.facts,
            piece_bytes: self.piece_bytes(),
            schema: self.declared.schema,
        };
        let layout = PartLayout::parse(&self.schema, &part, tail)?;
        Ok((part, layout))
    }
}

/// The columns of a footer without `_time` and `_diff`, as a sink would declare them.
fn row_schema(metadata: parquet::file::metadata::ParquetMetaData) -> Result<RowSchema, PartError> {
    let damaged = |why: String| PartError::corrupt(format!("footer: {why}"));
    let reader = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
        .map_err(|error| damaged(error.to_string()))?;
    let mut fields = reader.schema().fields().to_vec();
    let roles: Vec<_> = fields.split_off(fields.len().saturating_sub(2));
    let names: Vec<&str> = roles.iter().map(|field| field.name().as_str()).collect();
    if names != [TIME_COLUMN, DIFF_COLUMN] {
        return Err(damaged(format!("its last columns are {names:?}")));
    }
    RowSchema::new(Arc::new(Schema::new(fields))).map_err(|error| damaged(error.to_string()))
}
