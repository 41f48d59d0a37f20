//! Batches as CSV. The printing is our own because null and the empty string must differ in the file.

use std::{
    io::{self, Write},
    sync::Arc,
};

use arrow::{
    array::{Array, RecordBatch},
    buffer::NullBuffer,
    datatypes::{Field, SchemaRef},
    json::writer::{EncoderFactory, EncoderOptions, NullableEncoder, make_encoder},
    util::display::{ArrayFormatter, FormatOptions},
};

use super::{
    super::PROGRESS, BatchWriter, check_schema, invalid, io_error, ndjson::Exact, progress_text, unprintable,
};

/// Prints CSV.
#[derive(Debug)]
pub struct CsvWriter<W> {
    output: W,
    schema: Option<SchemaRef>,
    buffer: String,
}

impl<W: Write> CsvWriter<W> {
    /// Prints onto `output`.
    pub fn new(output: W) -> CsvWriter<W> {
        CsvWriter { output, schema: None, buffer: String::new() }
    }
}

/// How the values of one column become text.
enum Printer<'a> {
    Plain(&'a Field, ArrayFormatter<'a>, Option<NullBuffer>),
    Json(NullableEncoder<'a>),
}

impl Printer<'_> {
    /// Puts the value into `text`, which is empty; false for null.
    fn print(&mut self, row: usize, text: &mut String) -> io::Result<bool> {
        match self {
            Printer::Plain(_, _, Some(nulls)) if nulls.is_null(row) => return Ok(false),
            Printer::Json(encoder) if encoder.is_null(row) => return Ok(false),
            Printer::Plain(field, formatter, _) => {
                formatter
                    .value(row)
                    .write(text)
                    .map_err(|error| invalid(unprintable(field.name(), &error)))?;
            }
            Printer::Json(encoder) => {
                let mut bytes = Vec::new();
                encoder.encode(row, &mut bytes);
                text.push_str(&String::from_utf8(bytes).map_err(invalid)?);
            }
        }
        Ok(true)
    }
}

/// Adds `text` to `line`, in quotes where a reader needs them: empty text too, since a bare empty field is null.
fn push_field(line: &mut String, text: &str) {
    // U+FEFF at the start of a file is no text to a reader.
    let plain = |c: char| !matches!(c, ',' | '"' | '\n' | '\r' | '\u{feff}');
    if !text.is_empty() && text.chars().all(plain) && text.trim() == text {
        line.push_str(text);
        return;
    }
    line.push('"');
    for piece in text.split_inclusive('"') {
        line.push_str(piece);
        if piece.ends_with('"') {
            line.push('"');
        }
    }
    line.push('"');
}

impl<W: Write + Send> BatchWriter for CsvWriter<W> {
    fn begin(&mut self, schema: &SchemaRef) -> io::Result<()> {
        let mut line = String::new();
        for field in schema.fields() {
            push_field(&mut line, field.name());
            line.push(',');
        }
        self.schema = Some(Arc::clone(schema));
        writeln!(self.output, "{line}{PROGRESS}")
    }

    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        match &self.schema {
            Some(schema) => check_schema(schema, batch)?,
            None => self.begin(batch.schema_ref())?,
        }
        let format = FormatOptions::new();
        let exact = Arc::new(Exact::default());
        let json =
            EncoderOptions::default().with_encoder_factory(Arc::clone(&exact) as Arc<dyn EncoderFactory>);
        let mut printers = Vec::with_capacity(batch.num_columns());
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            printers.push(if column.data_type().is_nested() {
                Printer::Json(make_encoder(field, column, &json).map_err(io_error)?)
            } else {
                let formatter = ArrayFormatter::try_new(column, &format)
                    .map_err(|error| invalid(unprintable(field.name(), &error)))?;
                Printer::Plain(field, formatter, column.logical_nulls())
            });
        }
        self.buffer.clear();
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            for printer in &mut printers {
                text.clear();
                if printer.print(row, &mut text)? {
                    push_field(&mut self.buffer, &text);
                }
                self.buffer.push(',');
            }
            self.buffer.push('\n');
        }
        exact.check()?;
        self.output.write_all(self.buffer.as_bytes())
    }

    fn progress(&mut self, upper: Option<u64>) -> io::Result<()> {
        let columns = self.schema.as_ref().map_or(0, |schema| schema.fields().len());
        writeln!(self.output, "{}{}", ",".repeat(columns), progress_text(upper))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
