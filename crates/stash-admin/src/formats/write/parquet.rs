//! Batches as one Parquet file.

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
};

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use parquet::{
    arrow::ArrowWriter,
    basic::Compression,
    errors::ParquetError,
    file::{metadata::KeyValue, properties::WriterProperties},
};

use super::{BatchWriter, check_schema, io_error, progress_text};

/// The footer's key for the last progress.
pub const PROGRESS_KEY: &str = "stash.progress";

/// A row group is closed when it holds about this many encoded bytes.
const ROW_GROUP_BYTES: usize = 32 << 20;

enum State<W: Write + Send> {
    New(W),
    Open(Box<ArrowWriter<W>>, SchemaRef),
    /// Finished, or failed in between.
    Over,
}

/// Prints a Parquet file, which is whole only after `finish`. Without `begin` nothing is printed.
pub struct ParquetWriter<W: Write + Send> {
    state: State<W>,
    progress: Option<String>,
}

impl<W: Write + Send> fmt::Debug for ParquetWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetWriter").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Prints onto `output`.
    pub fn new(output: W) -> ParquetWriter<W> {
        ParquetWriter { state: State::New(output), progress: None }
    }
}

/// An error of the output as it was; anything else as invalid data.
fn parquet_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(cause) => match cause.downcast::<arrow::error::ArrowError>() {
                Ok(error) => io_error(*error),
                Err(cause) => io::Error::new(io::ErrorKind::InvalidData, cause),
            },
        },
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

fn over() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the Parquet file is finished, or failed before")
}

impl<W: Write + Send> BatchWriter for ParquetWriter<W> {
    fn begin(&mut self, schema: &SchemaRef) -> io::Result<()> {
        let State::New(output) = std::mem::replace(&mut self.state, State::Over) else { return Err(over()) };
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer = ArrowWriter::try_new(output, Arc::clone(schema), Some(properties));
        self.state = State::Open(Box::new(writer.map_err(parquet_error)?), Arc::clone(schema));
        Ok(())
    }

    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        if matches!(self.state, State::New(_)) {
            self.begin(batch.schema_ref())?;
        }
        let State::Open(writer, schema) = &mut self.state else { return Err(over()) };
        check_schema(schema, batch)?;
        writer.write(batch).map_err(parquet_error)?;
        if writer.in_progress_size() >= ROW_GROUP_BYTES {
            writer.flush().map_err(parquet_error)?;
        }
        Ok(())
    }

    fn progress(&mut self, upper: Option<u64>) -> io::Result<()> {
        self.progress = Some(progress_text(upper));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::New(output) => output.flush(),
            State::Open(writer, _) => writer.inner_mut().flush(),
            State::Over => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::New(mut output) => output.flush(),
            State::Open(mut writer, _) => {
                if let Some(progress) = self.progress.take() {
                    writer.append_key_value_metadata(KeyValue::new(PROGRESS_KEY.to_owned(), progress));
                }
                writer.finish().map_err(parquet_error)?;
                writer.inner_mut().flush()
            }
            State::Over => Err(over()),
        }
    }
}
