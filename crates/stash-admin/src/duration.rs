//! Durations as people write them: a whole number and one unit, such as `90s`, `15m`, `36h` or `7d`.
//!
//! Nothing else is taken: no fractions, no spaces, no sums of units, no bare number, whose unit somebody would have
//! to guess. Zero is refused too: everywhere a duration is asked for, leaving it out says for ever.

use std::time::Duration;

/// The units, largest first, with the milliseconds of each.
const UNITS: [(&str, u64); 5] =
    [("d", 24 * 60 * 60 * 1000), ("h", 60 * 60 * 1000), ("m", 60 * 1000), ("s", 1000), ("ms", 1)];

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It does not begin with a whole number.
    #[error("write a whole number and a unit, such as 90s, 15m, 36h or 7d")]
    NoNumber,
    /// It is a number alone.
    #[error("the unit is missing: write {number}s, {number}m, {number}h or {number}d")]
    NoUnit {
        /// The number.
        number: String,
    },
    /// The unit is none of ours.
    #[error("{unit:?} is no unit: write ms, s, m, h or d behind one whole number")]
    UnknownUnit {
        /// What stands for the unit.
        unit: String,
    },
    /// It lasts no time.
    #[error("a duration of zero: leave the option out to say for ever")]
    Zero,
    /// It does not fit.
    #[error("longer than a clock can count: leave the option out to say for ever")]
    TooLong,
}

/// Reads a duration.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err(DurationError::NoNumber);
    }
    if unit.is_empty() {
        return Err(DurationError::NoUnit { number: number.to_owned() });
    }
    let Some((_, millis)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
        return Err(DurationError::UnknownUnit { unit: unit.to_owned() });
    };
    let number: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
    // The catalog counts in 63 bits.
    let millis = number.checked_mul(millis).filter(|millis| i64::try_from(*millis).is_ok());
    match millis {
        None => Err(DurationError::TooLong),
        Some(0) => Err(DurationError::Zero),
        Some(millis) => Ok(Duration::from_millis(millis)),
    }
}

/// Writes milliseconds in the largest unit that says them exactly.
pub fn written(millis: u64) -> String {
    let whole = UNITS.into_iter().find(|(_, unit)| millis.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{millis}ms"), |(name, unit)| format!("{}{name}", millis / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit_are_read_and_written_as_they_are() {
        for (text, millis) in [
            ("1ms", 1),
            ("1500ms", 1500),
            ("90s", 90_000),
            ("15m", 900_000),
            ("36h", 129_600_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)));
            assert_eq!(written(millis), text);
        }
        assert_eq!(written(60_000), "1m", "in the largest unit");
        assert_eq!(parse("007d"), parse("7d"));
    }

    #[test]
    fn everything_else_is_refused_by_what_is_wrong_with_it() {
        use DurationError::{NoNumber, NoUnit, TooLong, UnknownUnit, Zero};
        let unit = |unit: &str| UnknownUnit { unit: unit.to_owned() };
        for (text, error) in [
            ("", NoNumber),
            ("d", NoNumber),
            ("-1d", NoNumber),
            (" 1d", NoNumber),
            ("+1d", NoNumber),
            ("7", NoUnit { number: "7".to_owned() }),
            ("7 d", unit(" d")),
            ("7D", unit("D")),
            ("7days", unit("days")),
            ("1.5h", unit(".5h")),
            ("1h30m", unit("h30m")),
            ("7w", unit("w")),
            ("0s", Zero),
            ("99999999999999999999s", TooLong),
            ("9223372036854775808ms", TooLong),
            ("106751991168d", TooLong),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
        assert!(parse("9223372036854775807ms").is_ok());
    }
}
