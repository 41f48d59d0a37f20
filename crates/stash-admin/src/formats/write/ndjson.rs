//! Batches as NDJSON.

use std::{
    io::{self, Write},
    sync::{Arc, OnceLock},
};

use arrow::{
    array::{Array, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch},
    datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type, SchemaRef},
    error::ArrowError,
    json::{
        WriterBuilder,
        writer::{Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder},
    },
    util::display::{ArrayFormatter, FormatOptions},
};

use super::{super::PROGRESS, BatchWriter, invalid, io_error, unprintable};

/// Prints NDJSON.
#[derive(Debug)]
pub struct NdjsonWriter<W> {
    output: W,
    buffer: Vec<u8>,
}

impl<W: Write> NdjsonWriter<W> {
    /// Prints onto `output`.
    pub fn new(output: W) -> NdjsonWriter<W> {
        NdjsonWriter { output, buffer: Vec::new() }
    }
}

impl<W: Write + Send> BatchWriter for NdjsonWriter<W> {
    fn begin(&mut self, _schema: &SchemaRef) -> io::Result<()> {
        Ok(())
    }

    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        // Encoded aside, so that an error of the output comes back as it was.
        self.buffer.clear();
        let exact = Arc::new(Exact::default());
        let factory = Arc::clone(&exact) as Arc<dyn EncoderFactory>;
        let builder = WriterBuilder::new().with_explicit_nulls(true).with_encoder_factory(factory);
        let mut writer = builder.build::<_, LineDelimited>(&mut self.buffer);
        writer.write(batch).and_then(|()| writer.finish()).map_err(io_error)?;
        drop(writer);
        exact.check()?;
        self.output.write_all(&self.buffer)
    }

    fn progress(&mut self, upper: Option<u64>) -> io::Result<()> {
        match upper {
            Some(upper) => writeln!(self.output, "{{\"{PROGRESS}\": {upper}}}"),
            None => writeln!(self.output, "{{\"{PROGRESS}\": \"end\"}}"),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Values as they are: floats in their shortest exact form, and no moment that the calendar does not have. The library's
/// own encoder prints null for NaN and the infinities, a lost value, and for such a moment its error as if it was text.
#[derive(Debug, Default)]
pub(super) struct Exact {
    failed: Arc<OnceLock<String>>,
}

impl Exact {
    /// An encoder cannot fail: whether one should have.
    pub(super) fn check(&self) -> io::Result<()> {
        self.failed.get().map_or(Ok(()), |why| Err(invalid(why.as_str())))
    }
}

impl EncoderFactory for Exact {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float16 => Box::new(Floats(array.as_primitive::<Float16Type>(), |v| {
                (v.to_f32().is_finite(), v.to_f32().to_string())
            })),
            DataType::Float32 => {
                Box::new(Floats(array.as_primitive::<Float32Type>(), |v| (v.is_finite(), format!("{v:?}"))))
            }
            DataType::Float64 => {
                Box::new(Floats(array.as_primitive::<Float64Type>(), |v| (v.is_finite(), format!("{v:?}"))))
            }
            other if other.is_temporal() => {
                let formatter = ArrayFormatter::try_new(array, &FormatOptions::new())
                    .map_err(|error| ArrowError::JsonError(unprintable(field.name(), &error)))?;
                let (text, failed) = (String::new(), Arc::clone(&self.failed));
                Box::new(Moments { field, formatter, text, failed })
            }
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

/// A float column, and how to print a value: whether it is finite, and its text.
struct Floats<'a, T: ArrowPrimitiveType>(&'a PrimitiveArray<T>, fn(T::Native) -> (bool, String));

impl<T: ArrowPrimitiveType> Encoder for Floats<'_, T> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        let (finite, text) = (self.1)(self.0.value(index));
        if finite {
            out.extend_from_slice(text.as_bytes());
        } else {
            out.push(b'"');
            out.extend_from_slice(text.as_bytes());
            out.push(b'"');
        }
    }
}

/// A column of dates, times or durations.
struct Moments<'a> {
    field: &'a FieldRef,
    formatter: ArrayFormatter<'a>,
    text: String,
    failed: Arc<OnceLock<String>>,
}

impl Encoder for Moments<'_> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        self.text.clear();
        if let Err(error) = self.formatter.value(index).write(&mut self.text) {
            self.failed.get_or_init(|| unprintable(self.field.name(), &error));
        }
        out.push(b'"');
        out.extend_from_slice(self.text.as_bytes());
        out.push(b'"');
    }
}
