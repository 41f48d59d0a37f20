//! One field of a text record, and the numbers that texts spell.

use super::fault::{Fault, cut};

/// A field as it stands in the file: its kind, and its text unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    /// An empty CSV field, or JSON null.
    Null,
    /// A quoted empty CSV field: the empty string where the column is text, else null.
    Blank,
    /// A CSV field, or the content of a JSON string.
    Text(&'a str),
    /// A JSON number.
    Number(&'a str),
    /// `true` or `false` of JSON.
    Bool(&'a str),
    /// A JSON object or list.
    Nested(&'a str),
}

impl<'a> Cell<'a> {
    /// The text, unless null.
    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Cell::Null | Cell::Blank => None,
            Cell::Text(text) | Cell::Number(text) | Cell::Bool(text) | Cell::Nested(text) => Some(text),
        }
    }

    /// The cell as a time.
    pub(super) fn time(self) -> Result<u64, Fault> {
        self.text().ok_or(Fault::NullTime).and_then(parse_time)
    }

    /// The cell as a diff.
    pub(super) fn diff(self) -> Result<i64, Fault> {
        self.text().ok_or(Fault::NullDiff).and_then(parse_diff)
    }
}

/// One field on its way from a file to a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// The line its record begins on.
    pub(super) line: u64,
    /// Its place in the record.
    pub(super) index: usize,
    /// Its column.
    pub(super) name: &'a str,
    /// What it holds.
    pub(super) cell: Cell<'a>,
}

/// What takes in the fields of a record, one after the other.
pub(super) type Visit<'v> = &'v mut dyn FnMut(Entry<'_>) -> Result<(), Fault>;

/// The time that `text` spells.
pub(super) fn parse_time(text: &str) -> Result<u64, Fault> {
    let why = match (all_digits(text), text.strip_prefix('-').is_some_and(all_digits)) {
        (true, _) => match text.parse() {
            Ok(time) if time < u64::MAX => return Ok(time),
            _ => "it is too large",
        },
        (_, true) => "it is negative",
        _ => "it is not an integer",
    };
    Err(Fault::BadTime { text: cut(text), why })
}

/// The diff that `text` spells.
pub(super) fn parse_diff(text: &str) -> Result<i64, Fault> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let why = match text.parse() {
        Ok(diff) => return Ok(diff),
        Err(_) if all_digits(digits) => "it is out of range",
        Err(_) => "it is not an integer",
    };
    Err(Fault::BadDiff { text: cut(text), why })
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// What a text spells, as far as types can be told from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `true` or `false`.
    Bool,
    /// An integer within `i64`, spelled as it would be printed.
    Int {
        /// Whether it is below zero.
        negative: bool,
        /// Whether `f64` holds it, and every integer nearer to zero.
        exact: bool,
    },
    /// An integer above `i64` within `u64`.
    Unsigned,
    /// A finite number with fraction or exponent, of at most 17 significant digits.
    Fraction,
    /// A number that no 64 bits hold.
    Beyond,
    /// `NaN`, `inf` or `-inf`.
    Special,
    /// Anything else.
    Text,
}

impl Shape {
    /// The shape of `text`.
    pub(super) fn of(text: &str) -> Shape {
        match text {
            "true" | "false" => Shape::Bool,
            "NaN" | "inf" | "-inf" => Shape::Special,
            _ => number(text).unwrap_or(Shape::Text),
        }
    }
}

/// The shape of a number in JSON's grammar, or `None`.
fn number(text: &str) -> Option<Shape> {
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    let negative = magnitude.len() < text.len();
    let (mantissa, exponent) = match magnitude.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (magnitude, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let canonical = all_digits(whole) && (whole == "0" || !whole.starts_with('0'));
    let exponent_digits = exponent.map(|exponent| exponent.strip_prefix(['-', '+']).unwrap_or(exponent));
    if !canonical || !fraction.is_none_or(all_digits) || !exponent_digits.is_none_or(all_digits) {
        return None;
    }
    // Minus zero is a number only floats have.
    if fraction.is_none() && exponent.is_none() && text != "-0" {
        return Some(match text.parse::<i64>() {
            Ok(value) => Shape::Int { negative, exact: value.unsigned_abs() <= 1 << 53 },
            Err(_) if text.parse::<u64>().is_ok() => Shape::Unsigned,
            Err(_) => Shape::Beyond,
        });
    }
    let digits = format!("{whole}{}", fraction.unwrap_or_default());
    let significant = digits.trim_start_matches('0').trim_end_matches('0').len();
    let held = text.parse::<f64>().is_ok_and(|value| value.is_finite() && (value != 0.0 || significant == 0));
    Some(if held && significant <= 17 { Shape::Fraction } else { Shape::Beyond })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_a_number_only_if_printing_gives_the_text_back() {
        let int = |negative, exact| Shape::Int { negative, exact };
        for (text, shape) in [
            ("0", int(false, true)),
            ("-1", int(true, true)),
            ("9007199254740992", int(false, true)),
            ("9007199254740993", int(false, false)),
            ("-9223372036854775808", int(true, false)),
            ("9223372036854775808", Shape::Unsigned),
            ("18446744073709551615", Shape::Unsigned),
            ("18446744073709551616", Shape::Beyond),
            ("-9223372036854775809", Shape::Beyond),
            ("-0", Shape::Fraction),
            ("0.0", Shape::Fraction),
            ("1.5e300", Shape::Fraction),
            ("100000000000000000000.0", Shape::Fraction),
            ("1e400", Shape::Beyond),
            ("1e-400", Shape::Beyond),
            ("0.123456789012345678", Shape::Beyond),
            ("007", Shape::Text),
            ("+1", Shape::Text),
            ("1.", Shape::Text),
            (".5", Shape::Text),
            ("1e", Shape::Text),
            ("-", Shape::Text),
            ("1_000", Shape::Text),
            ("nan", Shape::Text),
            ("-inf", Shape::Special),
            ("true", Shape::Bool),
            ("True", Shape::Text),
        ] {
            assert_eq!(Shape::of(text), shape, "{text}");
        }
    }
}
