//! CSV as a sequence of records.
//!
//! The splitting is our own because two things must be known that a field's text does not tell: the line a
//! record begins on (a quoted field may hold newlines), and whether an empty field stood in quotes.
//!
//! - A record ends at `\n` or `\r\n` outside quotes, or at the end of the file.
//! - A quote opens a field only as its first character; anywhere else it is an error, not a guess.

use std::{path::PathBuf, str};

use super::{
    PROGRESS,
    cell::{Cell, Entry, Visit},
    fault::{Fault, InputError},
    input::{COLUMNS_MAX, Input, RECORD_BYTES_MAX},
};

/// Where in a record the next byte falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    FieldStart,
    Bare,
    Quoted,
    /// Behind a quote within quotes: the end of the field, or the first of a doubled quote.
    Closed,
    /// Behind `\r` behind a closing quote.
    ClosedReturn,
}

/// One record: the bytes of all fields, and where each ends.
#[derive(Debug, Default)]
struct Record {
    line: u64,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    quoted: Vec<bool>,
}

impl Record {
    fn end_field(&mut self, quoted: bool) {
        self.ends.push(self.bytes.len());
        self.quoted.push(quoted);
    }

    fn field(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(index).copied().unwrap_or(start);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Whether field `at` is a progress and all others are empty.
    fn is_progress(&self, at: usize) -> bool {
        self.field(at).len() == self.bytes.len()
            && str::from_utf8(self.field(at)).is_ok_and(|text| text == "end" || text.parse::<u64>().is_ok())
    }

    /// A line without a character: one bare empty field.
    fn is_blank(&self) -> bool {
        self.bytes.is_empty() && self.quoted == [false]
    }
}

/// The records of one file, its header read.
#[derive(Debug)]
pub(super) struct CsvRecords {
    path: PathBuf,
    input: Input,
    header: Vec<String>,
    header_line: u64,
    progress: Option<usize>,
    next_line: u64,
    record: Record,
}

impl CsvRecords {
    /// Reads the header.
    pub(super) fn new(path: PathBuf, input: Input) -> Result<CsvRecords, InputError> {
        let record = Record::default();
        let mut records = CsvRecords {
            path,
            input,
            header: Vec::new(),
            header_line: 1,
            progress: None,
            next_line: 1,
            record,
        };
        if !records.split()? {
            let fault = Fault::Empty("a CSV file begins with a header that names its columns");
            return Err(InputError::whole(&records.path, fault));
        }
        let line = records.record.line;
        records.header_line = line;
        for index in 0..records.record.ends.len() {
            let refuse = |fault| InputError::line(&records.path, line, fault);
            let name = str::from_utf8(records.record.field(index)).map_err(|_| refuse(Fault::NotUtf8))?;
            if name.is_empty() {
                return Err(refuse(Fault::Unnamed { index: index + 1 }));
            }
            if records.header.iter().any(|before| before == name) {
                return Err(refuse(Fault::Duplicate).of(name));
            }
            records.header.push(name.to_owned());
        }
        records.progress = records.header.iter().position(|name| name == PROGRESS);
        Ok(records)
    }

    /// The names of all columns but the one that marks progress.
    pub(super) fn names(&self) -> Vec<String> {
        self.header.iter().filter(|name| *name != PROGRESS).cloned().collect()
    }

    /// The line the header begins on.
    pub(super) fn header_line(&self) -> u64 {
        self.header_line
    }

    pub(super) fn input(&self) -> &Input {
        &self.input
    }

    /// Starts anew.
    pub(super) fn rewind(self) -> Result<CsvRecords, InputError> {
        let CsvRecords { path, input, .. } = self;
        let input = input.rewind().map_err(|source| InputError::whole(&path, Fault::Unreadable(source)))?;
        CsvRecords::new(path, input)
    }

    /// Shows the fields of the next update to `visit`, and returns its line; `None` at the end.
    pub(super) fn next(&mut self, visit: Visit<'_>) -> Result<Option<u64>, InputError> {
        loop {
            if !self.split()? {
                return Ok(None);
            }
            let line = self.record.line;
            let (expected, got) = (self.header.len(), self.record.ends.len());
            if expected != got {
                return Err(InputError::line(&self.path, line, Fault::FieldCount { expected, got }));
            }
            match self.progress.filter(|at| !self.record.field(*at).is_empty()) {
                None => {
                    self.visit(visit)?;
                    return Ok(Some(line));
                }
                Some(at) if self.record.is_progress(at) => {}
                // Skipping what only looks like a progress record would lose an update in silence.
                Some(_) => {
                    let hint = "fill it only in progress records, or rename it".to_owned();
                    return Err(InputError::line(&self.path, line, Fault::Reserved { hint }).of(PROGRESS));
                }
            }
        }
    }

    fn visit(&self, visit: Visit<'_>) -> Result<(), InputError> {
        let mut shown = 0;
        for (index, (name, quoted)) in self.header.iter().zip(&self.record.quoted).enumerate() {
            if self.progress == Some(index) {
                continue;
            }
            let refuse = |fault| InputError::line(&self.path, self.record.line, fault).of(name);
            let cell = match str::from_utf8(self.record.field(index)) {
                Ok("") if *quoted => Cell::Blank,
                Ok("") => Cell::Null,
                Ok(text) => Cell::Text(text),
                Err(_) => return Err(refuse(Fault::NotUtf8)),
            };
            visit(Entry { line: self.record.line, index: shown, name, cell }).map_err(refuse)?;
            shown += 1;
        }
        Ok(())
    }

    /// Reads the next record that is not blank; false at the end of the file.
    fn split(&mut self) -> Result<bool, InputError> {
        loop {
            let found = self.split_one()?;
            if !found || !self.record.is_blank() {
                return Ok(found);
            }
        }
    }

    fn split_one(&mut self) -> Result<bool, InputError> {
        let CsvRecords { path, input, next_line, record, .. } = self;
        record.bytes.clear();
        record.ends.clear();
        record.quoted.clear();
        record.line = *next_line;
        let mut at = At::FieldStart;
        let mut opened = record.line;
        loop {
            let chunk = input.fill().map_err(|source| InputError::whole(path, Fault::Unreadable(source)))?;
            if chunk.is_empty() {
                break;
            }
            let (used, done) = feed(chunk, &mut at, record, next_line, &mut opened)
                .map_err(|fault| InputError::line(path, *next_line, fault))?;
            input.consume(used);
            if record.ends.len() > COLUMNS_MAX {
                return Err(InputError::line(path, record.line, Fault::TooManyColumns { max: COLUMNS_MAX }));
            }
            if record.bytes.len() > RECORD_BYTES_MAX {
                let fault = Fault::RecordTooLong { max: RECORD_BYTES_MAX };
                return Err(InputError::line(path, record.line, fault));
            }
            if done {
                return Ok(true);
            }
        }
        match at {
            At::FieldStart if record.ends.is_empty() => Ok(false),
            At::Quoted => Err(InputError::line(path, opened, Fault::OpenQuote)),
            At::FieldStart | At::Bare => {
                record.end_field(false);
                Ok(true)
            }
            At::Closed | At::ClosedReturn => {
                record.end_field(true);
                Ok(true)
            }
        }
    }
}

/// Takes bytes of `chunk` up to the end of the record or of the chunk; returns how many, and whether the record is complete.
fn feed(
    chunk: &[u8],
    at: &mut At,
    record: &mut Record,
    next_line: &mut u64,
    opened: &mut u64,
) -> Result<(usize, bool), Fault> {
    let mut rest = chunk;
    while let Some((&byte, behind)) = rest.split_first() {
        match *at {
            At::FieldStart if byte == b'"' => {
                *at = At::Quoted;
                *opened = *next_line;
                rest = behind;
            }
            At::FieldStart => *at = At::Bare,
            At::Bare => {
                let run = rest.iter().position(|b| matches!(b, b',' | b'\n' | b'"')).unwrap_or(rest.len());
                let (text, mark) = rest.split_at(run);
                record.bytes.extend_from_slice(text);
                rest = mark.get(1..).unwrap_or_default();
                match mark.first() {
                    Some(b',') => {
                        record.end_field(false);
                        *at = At::FieldStart;
                    }
                    Some(b'\n') => {
                        let start = record.ends.last().copied().unwrap_or(0);
                        if record.bytes.len() > start && record.bytes.last() == Some(&b'\r') {
                            record.bytes.pop();
                        }
                        record.end_field(false);
                        *next_line += 1;
                        return Ok((chunk.len() - rest.len(), true));
                    }
                    Some(_) => return Err(Fault::StrayQuote),
                    None => {}
                }
            }
            At::Quoted => {
                let run = rest.iter().position(|b| *b == b'"').unwrap_or(rest.len());
                let (text, mark) = rest.split_at(run);
                record.bytes.extend_from_slice(text);
                *next_line += text.iter().map(|b| u64::from(*b == b'\n')).sum::<u64>();
                rest = mark.get(1..).unwrap_or_default();
                if !mark.is_empty() {
                    *at = At::Closed;
                }
            }
            At::Closed | At::ClosedReturn => {
                rest = behind;
                match (byte, *at) {
                    (b'"', At::Closed) => {
                        record.bytes.push(b'"');
                        *at = At::Quoted;
                    }
                    (b',', At::Closed) => {
                        record.end_field(true);
                        *at = At::FieldStart;
                    }
                    (b'\r', At::Closed) => *at = At::ClosedReturn,
                    (b'\n', _) => {
                        record.end_field(true);
                        *next_line += 1;
                        return Ok((chunk.len() - rest.len(), true));
                    }
                    _ => return Err(Fault::AfterQuote),
                }
            }
        }
    }
    Ok((chunk.len(), false))
}
