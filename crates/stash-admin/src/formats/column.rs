//! One row column of a text file: its fields are collected as text and become an Arrow array together.

use std::{str::FromStr, sync::Arc};

use arrow::{
    array::{
        Array, ArrayBuilder, ArrayRef, ArrowPrimitiveType, BinaryBuilder, BooleanArray, Decimal128Array,
        PrimitiveArray, StringArray, StringBuilder, timezone::Tz,
    },
    compute::kernels::cast_utils::{Parser, string_to_datetime},
    datatypes::{
        DataType, Date32Type, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
        TimeUnit, TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
    },
};

use super::{
    cell::Cell,
    fault::{Fault, cut},
    spec::{Owner, type_word},
};

/// A row whose field the column refuses, and why.
pub(super) type Refused = (usize, Fault);

/// The fields of one column since the last [`Column::finish`].
#[derive(Debug)]
pub(super) struct Column {
    field: Arc<Field>,
    owner: Owner,
    text: StringBuilder,
}

impl Column {
    pub(super) fn new(field: Arc<Field>, owner: Owner) -> Column {
        Column { field, owner, text: StringBuilder::new() }
    }

    pub(super) fn name(&self) -> &str {
        self.field.name()
    }

    /// How many fields it has.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Adds a field. Refuses kinds the type cannot hold whatever their text.
    pub(super) fn push(&mut self, cell: Cell<'_>) -> Result<(), Fault> {
        let textual = matches!(self.field.data_type(), DataType::Utf8 | DataType::Binary);
        let fits = match (cell, self.field.data_type()) {
            (_, DataType::Utf8) | (Cell::Null | Cell::Blank | Cell::Text(_), _) => true,
            (Cell::Bool(_), wanted) => *wanted == DataType::Boolean,
            (Cell::Number(_), wanted) => wanted.is_numeric(),
            (Cell::Nested(_), _) => false,
        };
        match cell.text() {
            Some(text) if fits => self.text.append_value(text),
            Some(text) => return Err(self.bad(text)),
            None if cell == Cell::Blank && textual => self.text.append_value(""),
            None => self.text.append_null(),
        }
        Ok(())
    }

    /// The array of all fields added, or the first that is no value of the type.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, Refused> {
        let text = self.text.finish();
        if !self.field.is_nullable()
            && let Some(row) = (0..text.len()).find(|row| text.is_null(*row))
        {
            let name = self.field.name().clone();
            return Err((row, Fault::NullValue { name, wanted: self.wanted(), owner: self.owner.clone() }));
        }
        array(&text, self.field.data_type()).map_err(|row| (row, self.bad(text.value(row))))
    }

    fn wanted(&self) -> String {
        type_word(self.field.data_type()).unwrap_or_else(|| self.field.data_type().to_string())
    }

    fn bad(&self, text: &str) -> Fault {
        Fault::BadValue { text: cut(text), wanted: self.wanted(), owner: self.owner.clone() }
    }
}

/// `text` as an array of `wanted`, or the first row that spells none.
fn array(text: &StringArray, wanted: &DataType) -> Result<ArrayRef, usize> {
    Ok(match wanted {
        DataType::Boolean => Arc::new(BooleanArray::from(each(text, parse_bool)?)),
        DataType::Int8 => numbers::<Int8Type>(text, |t| t.parse().ok())?,
        DataType::Int16 => numbers::<Int16Type>(text, |t| t.parse().ok())?,
        DataType::Int32 => numbers::<Int32Type>(text, |t| t.parse().ok())?,
        DataType::Int64 => numbers::<Int64Type>(text, |t| t.parse().ok())?,
        DataType::UInt8 => numbers::<UInt8Type>(text, |t| t.parse().ok())?,
        DataType::UInt16 => numbers::<UInt16Type>(text, |t| t.parse().ok())?,
        DataType::UInt32 => numbers::<UInt32Type>(text, |t| t.parse().ok())?,
        DataType::UInt64 => numbers::<UInt64Type>(text, |t| t.parse().ok())?,
        DataType::Float32 => numbers::<Float32Type>(text, |t| parse_float(t, f32::NAN))?,
        DataType::Float64 => numbers::<Float64Type>(text, |t| parse_float(t, f64::NAN))?,
        DataType::Date32 => numbers::<Date32Type>(text, Date32Type::parse)?,
        DataType::Timestamp(TimeUnit::Microsecond, None) => {
            let utc: Tz = "+00:00".parse().map_err(|_| 0_usize)?;
            numbers::<TimestampMicrosecondType>(text, |t| parse_micros(t, utc))?
        }
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            let places = usize::from(scale.unsigned_abs());
            let values = each(text, |t| parse_decimal(t, usize::from(precision), places))?;
            let unscaled = Decimal128Array::from(values);
            Arc::new(unscaled.with_precision_and_scale(precision, scale).map_err(|_| 0_usize)?)
        }
        DataType::Binary => {
            let mut binary = BinaryBuilder::new();
            for value in each(text, parse_hex)? {
                binary.append_option(value);
            }
            Arc::new(binary.finish())
        }
        // Only types of `SchemaSpec` and of inference come here; text is what remains of them.
        _ => Arc::new(text.clone()),
    })
}

fn each<V>(text: &StringArray, parse: impl Fn(&str) -> Option<V>) -> Result<Vec<Option<V>>, usize> {
    let one = |(row, text): (usize, Option<&str>)| match text {
        Some(text) => parse(text).map(Some).ok_or(row),
        None => Ok(None),
    };
    text.iter().enumerate().map(one).collect()
}

fn numbers<T: ArrowPrimitiveType>(
    text: &StringArray,
    parse: impl Fn(&str) -> Option<T::Native>,
) -> Result<ArrayRef, usize> {
    let array: PrimitiveArray<T> = each(text, parse)?.into_iter().collect();
    Ok(Arc::new(array))
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Every NaN is `nan`: it is printed as `NaN`, whatever its sign.
fn parse_float<F: FromStr + Copy + Into<f64>>(text: &str, nan: F) -> Option<F> {
    let number: F = text.parse().ok()?;
    let wide: f64 = number.into();
    if wide.is_nan() {
        return Some(nan);
    }
    (!wide.is_infinite() || infinite(text)).then_some(number)
}

/// Whether the text says infinity, rather than a number too large.
fn infinite(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_digit())
}

fn parse_micros(text: &str, utc: Tz) -> Option<i64> {
    // Digits past the ninth would be cut without a word, so what follows the sixth must be zeros.
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit);
    if digits.skip(6).any(|digit| digit != b'0') {
        return None;
    }
    Some(string_to_datetime(&utc, text).ok()?.timestamp_micros())
}

fn parse_decimal(text: &str, precision: usize, places: usize) -> Option<i128> {
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = magnitude.split_once('.').unwrap_or((magnitude, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let fraction = if digits(fraction) { fraction.trim_end_matches('0') } else { return None };
    if !digits(whole) || fraction.len() > places {
        return None;
    }
    let unscaled = format!("{whole}{fraction:0<places$}");
    let unscaled = unscaled.trim_start_matches('0');
    if unscaled.len() > precision {
        return None;
    }
    let value: i128 = if unscaled.is_empty() { 0 } else { unscaled.parse().ok()? };
    Some(if magnitude.len() < text.len() { -value } else { value })
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes()
        .chunks(2)
        .map(|pair| pair.iter().try_fold(0, |sum, b| Some(sum * 16 + digit(*b)?)))
        .collect()
}
