//! A change file as a stream of batches, whatever its format.

use std::{fmt, path::Path, str::FromStr, sync::Arc};

use arrow::{
    array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, UInt64Array},
    compute::filter_record_batch,
    datatypes::{DataType, Field, Schema, SchemaRef},
    error::ArrowError,
};

use super::{
    DIFF, TIME,
    fault::{Fault, InputError, Place},
    parquet::ParquetChanges,
    spec::SchemaSpec,
    text::TextChanges,
};

/// The most updates in one batch.
pub(super) const BATCH_ROWS_MAX: usize = 8192;
/// About the most bytes in one batch.
pub(super) const BATCH_BYTES_MAX: usize = 32 << 20;

/// How a change file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a header.
    Csv,
    /// One JSON object a line.
    Ndjson,
    /// Parquet.
    Parquet,
}

impl Format {
    /// The format that a file name ends in, if it is one of these.
    pub fn of_path(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Format::Csv),
            "ndjson" | "jsonl" => Some(Format::Ndjson),
            "parquet" => Some(Format::Parquet),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Csv => "csv",
            Format::Ndjson => "ndjson",
            Format::Parquet => "parquet",
        })
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        match text {
            "csv" => Ok(Format::Csv),
            "ndjson" => Ok(Format::Ndjson),
            "parquet" => Ok(Format::Parquet),
            _ => Err(format!("{text:?} is not a format; use csv, ndjson or parquet")),
        }
    }
}

/// Which columns of the file are not the row's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnRoles {
    /// The column of times.
    pub time: String,
    /// The column of diffs; without one every diff is +1.
    pub diff: Option<String>,
}

impl ColumnRoles {
    /// Refuses one column for both roles.
    pub(super) fn check(&self, path: &Path) -> Result<(), InputError> {
        if self.diff.as_ref() == Some(&self.time) {
            return Err(InputError::whole(path, Fault::OneColumnTwoRoles).of(&self.time));
        }
        Ok(())
    }

    /// Whether `name` is a row column; an error if a row column may not have that name.
    pub(super) fn is_row(&self, name: &str) -> Result<bool, Fault> {
        if self.time == name || self.diff.as_deref() == Some(name) {
            return Ok(false);
        }
        if name.is_empty() {
            return Err(Fault::Nameless);
        }
        if !name.starts_with('_') {
            return Ok(true);
        }
        let hint = match name {
            TIME => "rename it, or pass --time-column _time".to_owned(),
            DIFF => "rename it, or pass --diff-column _diff".to_owned(),
            _ => format!("rename it, to {:?} perhaps", format!("x{name}")),
        };
        Err(Fault::Reserved { hint })
    }

    /// Refuses if a role column is not among `names`.
    pub(super) fn are_among(&self, names: &[String]) -> Result<(), (String, Fault)> {
        let roles = [("--time-column", Some(&self.time)), ("--diff-column", self.diff.as_ref())];
        for (flag, name) in roles {
            if let Some(name) = name.filter(|name| !names.contains(name)) {
                return Err((name.clone(), Fault::NoSuchColumn { flag, columns: names.to_vec() }));
            }
        }
        Ok(())
    }
}

/// How far a file was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read in this pass.
    pub read: u64,
    /// Bytes in the file; unknown for a pipe.
    pub total: Option<u64>,
}

/// Some updates of a file, in its order.
///
/// - At most 8192. None at all where every diff was 0: then only the count speaks.
#[derive(Clone, Debug)]
pub struct ChangeBatch {
    /// The row columns, then `_time` (UInt64, no nulls) and `_diff` (Int64, no nulls, never 0).
    pub batch: RecordBatch,
    /// The line (row of a Parquet file) of the first update read for this batch, dropped ones included; from 1.
    pub first_line: u64,
    /// How many updates of diff 0 were left out.
    pub dropped_zero_diffs: u64,
    lines: Vec<u64>,
    of_rows: bool,
}

impl ChangeBatch {
    /// The line that row `row` of the batch begins on, from 1; for Parquet, its row. Past the end: the last.
    pub fn line_of(&self, row: usize) -> u64 {
        self.lines.get(row).or(self.lines.last()).copied().unwrap_or(self.first_line)
    }

    /// The same, with the word for it.
    pub fn place_of(&self, row: usize) -> Place {
        if self.of_rows { Place::Row(self.line_of(row)) } else { Place::Line(self.line_of(row)) }
    }

    /// Puts a batch together and drops what has diff 0. All columns and `lines` are of one length.
    pub(super) fn new(
        schema: &SchemaRef,
        mut columns: Vec<ArrayRef>,
        times: Vec<u64>,
        diffs: Vec<i64>,
        lines: Vec<u64>,
        of_rows: bool,
    ) -> Result<ChangeBatch, ArrowError> {
        let first_line = lines.first().copied().unwrap_or(1);
        let keep: Option<BooleanArray> =
            diffs.contains(&0).then(|| diffs.iter().map(|diff| Some(*diff != 0)).collect());
        let options = RecordBatchOptions::new().with_row_count(Some(lines.len()));
        columns.push(Arc::new(UInt64Array::from(times)));
        columns.push(Arc::new(Int64Array::from(diffs)));
        let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?;
        let Some(keep) = keep else {
            return Ok(ChangeBatch { batch, first_line, dropped_zero_diffs: 0, lines, of_rows });
        };
        let kept: Vec<u64> =
            lines.iter().zip(keep.values().iter()).filter(|(_, keep)| *keep).map(|(line, _)| *line).collect();
        let dropped_zero_diffs = u64::try_from(lines.len() - kept.len()).unwrap_or(u64::MAX);
        let batch = filter_record_batch(&batch, &keep)?;
        Ok(ChangeBatch { batch, first_line, dropped_zero_diffs, lines: kept, of_rows })
    }
}

/// The schema of batches whose rows have `row`.
pub(super) fn with_roles(row: &Schema) -> SchemaRef {
    let roles = [Field::new(TIME, DataType::UInt64, false), Field::new(DIFF, DataType::Int64, false)];
    let fields = row.fields().iter().cloned().chain(roles.map(Arc::new));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

#[derive(Debug)]
enum Source {
    Text(Box<TextChanges>),
    Parquet(Box<ParquetChanges>),
}

/// A change file, its schema known: an iterator over its batches, which ends after the first error.
#[derive(Debug)]
pub struct ChangeFile {
    source: Source,
    ended: bool,
}

impl ChangeFile {
    /// Opens `path`. Without `schema` a text file is read once as a whole here, see the module above.
    pub fn open(
        path: &Path,
        format: Format,
        roles: ColumnRoles,
        schema: Option<SchemaSpec>,
    ) -> Result<ChangeFile, InputError> {
        ChangeFile::open_watched(path, format, roles, schema, &mut |_| {})
    }

    /// The same; `watch` is told now and then how far that first reading is.
    pub fn open_watched(
        path: &Path,
        format: Format,
        roles: ColumnRoles,
        schema: Option<SchemaSpec>,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<ChangeFile, InputError> {
        roles.check(path)?;
        let source = match format {
            Format::Parquet if schema.is_some() => {
                return Err(InputError::whole(path, Fault::SchemaNotWanted));
            }
            Format::Parquet => Source::Parquet(Box::new(ParquetChanges::open(path, &roles)?)),
            Format::Csv | Format::Ndjson => {
                Source::Text(Box::new(TextChanges::open(path, format, roles, schema, watch)?))
            }
        };
        Ok(ChangeFile { source, ended: false })
    }

    /// The row's columns, without time and diff.
    pub fn schema(&self) -> SchemaRef {
        match &self.source {
            Source::Text(changes) => changes.row_schema(),
            Source::Parquet(changes) => changes.row_schema(),
        }
    }

    /// How far the file was read.
    pub fn progress(&self) -> Progress {
        match &self.source {
            Source::Text(changes) => changes.progress(),
            Source::Parquet(changes) => changes.progress(),
        }
    }
}

impl Iterator for ChangeFile {
    type Item = Result<ChangeBatch, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = match &mut self.source {
            Source::Text(changes) => changes.next_batch(),
            Source::Parquet(changes) => changes.next_batch(),
        };
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}
