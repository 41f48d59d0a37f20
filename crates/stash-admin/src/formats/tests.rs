//! Small files, their batches, and their errors.

mod faults;
mod inference;
mod reading;
mod roundtrip;
mod spec;

use std::path::PathBuf;

use arrow::{array::RecordBatch, compute::concat_batches};
use tempfile::TempDir;

use super::*;

/// A directory with one change file.
struct Fixture {
    dir: TempDir,
    path: PathBuf,
    format: Format,
}

impl Fixture {
    fn new(format: Format, content: impl AsRef<[u8]>) -> Fixture {
        let dir = TempDir::new().expect("a temporary directory");
        let path = dir.path().join(format!("f.{format}"));
        std::fs::write(&path, content).expect("a small file");
        Fixture { dir, path, format }
    }

    fn open(&self, time: &str, diff: Option<&str>, schema: Option<&str>) -> Result<ChangeFile, InputError> {
        let roles = ColumnRoles { time: time.to_owned(), diff: diff.map(str::to_owned) };
        let schema = schema.map(|arg| SchemaSpec::from_arg(arg).expect("a good schema"));
        ChangeFile::open(&self.path, self.format, roles, schema)
    }

    fn read(
        &self,
        time: &str,
        diff: Option<&str>,
        schema: Option<&str>,
    ) -> Result<Vec<ChangeBatch>, InputError> {
        self.open(time, diff, schema)?.collect()
    }

    /// The error of opening or reading, the path cut down to the file name.
    fn error(&self, time: &str, diff: Option<&str>, schema: Option<&str>) -> String {
        let error = match self.open(time, diff, schema) {
            Err(error) => error,
            Ok(file) => {
                // Whoever loads without a schema learns of a fault before the first update is written.
                assert!(schema.is_some() || self.format == Format::Parquet, "open overlooked a fault");
                file.collect::<Result<Vec<_>, _>>().expect_err("the file is faulty")
            }
        };
        error.to_string().replace(&format!("{}/", self.dir.path().display()), "")
    }
}

fn csv(content: impl AsRef<[u8]>) -> Fixture {
    Fixture::new(Format::Csv, content)
}

fn ndjson(content: impl AsRef<[u8]>) -> Fixture {
    Fixture::new(Format::Ndjson, content)
}

fn parquet_of(batch: &RecordBatch) -> Fixture {
    let mut bytes = Vec::new();
    let mut writer =
        ::parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).expect("a writer");
    writer.write(batch).expect("rows");
    writer.close().expect("a footer");
    Fixture::new(Format::Parquet, bytes)
}

/// All rows of the batches together.
fn whole(batches: &[ChangeBatch]) -> RecordBatch {
    let schema = batches.first().expect("a batch").batch.schema();
    concat_batches(&schema, batches.iter().map(|changes| &changes.batch)).expect("one schema")
}

/// The rows as lines, cells parted by `|`.
fn rows(batches: &[ChangeBatch]) -> Vec<String> {
    let options = arrow::util::display::FormatOptions::new().with_null("∅");
    let batch = whole(batches);
    let cells: Vec<_> = batch
        .columns()
        .iter()
        .map(|column| arrow::util::display::ArrayFormatter::try_new(column, &options).expect("printable"))
        .collect();
    let row = |row| cells.iter().map(|cell| cell.value(row).to_string()).collect::<Vec<_>>().join("|");
    (0..batch.num_rows()).map(row).collect()
}

/// The row columns as `--schema` would say them.
fn types(file: &ChangeFile) -> String {
    SchemaSpec::of(&file.schema()).expect("types that have words").to_string()
}
