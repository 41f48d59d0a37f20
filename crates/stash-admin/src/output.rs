//! What commands print: text that people read, or JSON.
//!
//! Numbers are grouped, bytes have units, times of the clock are UTC. In JSON numbers are bare, bytes are bytes,
//! clocks are milliseconds since 1970, and the empty frontier is `"end"`.
//!
//! A reader that goes away, as `head` does, takes nothing from what the command found: [`Output`] passes over what nobody
//! reads, so that the command comes to its verdict and to its exit code. What streams for long ends there instead: its
//! [`Stream`] fails with [`ReaderGone`], which tells this pipe from those of databases and stores. Any other failed write
//! is an error.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use stash::{Frontier, Timestamp};

/// Where a command prints to.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// For machines, or for people.
    pub fn new(json: bool) -> Output {
        Output { json }
    }

    /// Whether machines read it.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints one JSON document and a newline.
    pub fn document(self, value: &Value) -> io::Result<()> {
        print(serde_json::to_vec(value)?)
    }

    /// Prints text and a newline.
    pub fn line(self, text: impl AsRef<str>) -> io::Result<()> {
        print(text.as_ref().trim_end().as_bytes().to_vec())
    }
}

/// Prints a line, unless nobody is left to read it.
fn print(mut line: Vec<u8>) -> io::Result<()> {
    line.push(b'\n');
    let mut out = io::stdout().lock();
    match out.write_all(&line).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Whoever read what a command prints went away.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any longer")]
pub struct ReaderGone;

/// Where much is printed to, for a reader who may go away before the end.
#[derive(Debug)]
pub struct Stream<W>(pub W);

impl<W: Write> Write for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(reader_gone)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(reader_gone)
    }
}

fn reader_gone(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => io::Error::new(io::ErrorKind::BrokenPipe, ReaderGone),
        _ => error,
    }
}

/// A table without lines, to be filled by rows; columns named in `right` are aligned to the right.
pub fn table(columns: &[&str], right: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|name| name.to_uppercase()));
    for (index, name) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if right.contains(name) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table
}

/// Names and values, one pair a line, the values aligned.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines = pairs.iter().map(|(name, value)| format!("{name:<width$}  {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A count with its digits in groups of three: `1,234,567`.
pub fn count(number: impl Into<u64>) -> String {
    let digits = number.into().to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// How many there are, for sizes of collections.
pub fn len(items: usize) -> u64 {
    u64::try_from(items).unwrap_or(u64::MAX)
}

/// A count with its noun: `1 part`, `2 parts`.
pub fn counted(number: impl Into<u64>, one: &str, many: &str) -> String {
    let number = number.into();
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Bytes in the largest unit they fill: `713 B`, `12.3 KiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = bytes.ilog2() / 10;
    let unit = UNITS.get(usize::try_from(power - 1).unwrap_or(0)).copied().unwrap_or("EiB");
    let tenths = u128::from(bytes) * 10 / (1_u128 << (power * 10));
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A name or message of others, so that it can neither end its line nor speak to the terminal.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// A text that fits a line; what is longer ends in `…`.
pub fn cut(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}

/// A moment in UTC.
pub fn moment(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).ok();
    match millis.and_then(arrow::array::temporal_conversions::timestamp_ms_to_datetime) {
        Some(moment) => format!("{}Z", moment.format("%Y-%m-%d %H:%M:%S")),
        None => format!("{} ms", at.0),
    }
}

/// A frontier in JSON: a number, or `"end"`.
pub fn frontier(frontier: Frontier) -> Value {
    frontier.time().map_or_else(|| json!("end"), |time| json!(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_threes() {
        for (number, text) in [(0_u64, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1_u64, "part", "parts"), "1 part");
        assert_eq!(counted(1000_u64, "part", "parts"), "1,000 parts");
    }

    #[test]
    fn bytes_have_the_unit_they_fill() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (128 << 20, "128.0 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn control_characters_are_shown_and_nothing_else_changes() {
        assert_eq!(visible("a\nb\u{1b}[2J\u{9b}\r\t"), "a\\nb\\u{1b}[2J\\u{9b}\\r\\t");
        assert_eq!(visible("ä \\ \" '…"), "ä \\ \" '…");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"ä".repeat(100));
        assert_eq!((long.chars().count(), long.ends_with("ä…")), (61, true));
    }

    #[test]
    fn the_empty_frontier_is_a_word_in_json_and_moments_are_utc() {
        assert_eq!(frontier(Frontier::EMPTY), json!("end"));
        assert_eq!(frontier(Frontier::at(7)), json!(7));
        assert_eq!(moment(Timestamp(1_700_000_000_000)), "2023-11-14 22:13:20Z");
    }
}
