//! NDJSON as a sequence of objects.
//!
//! Values are kept as the text that stands in the file: a number passes through no `f64` on its way.

use std::{borrow::Cow, fmt, path::PathBuf, str};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    PROGRESS,
    cell::{Cell, Entry, Visit},
    fault::{Fault, InputError},
    input::{COLUMNS_MAX, Input, RECORD_BYTES_MAX},
};

/// The objects of one file.
#[derive(Debug)]
pub(super) struct NdjsonRecords {
    path: PathBuf,
    input: Input,
    line: u64,
    text: Vec<u8>,
}

/// A string that borrows where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The keys and values of an object, in the order they stand there.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Text(key), value)) = map.next_entry()? {
                    if members.len() >= COLUMNS_MAX {
                        return Err(A::Error::custom(format!("it has more than {COLUMNS_MAX} keys")));
                    }
                    members.push((key, value));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Collect).map(Members)
    }
}

impl NdjsonRecords {
    pub(super) fn new(path: PathBuf, input: Input) -> NdjsonRecords {
        NdjsonRecords { path, input, line: 0, text: Vec::new() }
    }

    pub(super) fn input(&self) -> &Input {
        &self.input
    }

    /// Starts anew.
    pub(super) fn rewind(self) -> Result<NdjsonRecords, InputError> {
        let NdjsonRecords { path, input, .. } = self;
        let input = input.rewind().map_err(|source| InputError::whole(&path, Fault::Unreadable(source)))?;
        Ok(NdjsonRecords::new(path, input))
    }

    /// Shows the members of the next update to `visit`, and returns its line; `None` at the end.
    pub(super) fn next(&mut self, visit: Visit<'_>) -> Result<Option<u64>, InputError> {
        while self.read_line()? {
            let refuse = |fault| InputError::line(&self.path, self.line, fault);
            let text = str::from_utf8(&self.text).map_err(|_| refuse(Fault::NotUtf8))?.trim();
            if text.is_empty() {
                continue;
            }
            let members = members(text).map_err(refuse)?;
            if matches!(members.as_slice(), [(key, value)] if key == PROGRESS && is_progress(value.get())) {
                continue;
            }
            for (index, (key, value)) in members.iter().enumerate() {
                let refuse = |fault| refuse(fault).of(key.as_ref());
                let text = value.get();
                let content;
                let cell = match text.as_bytes().first() {
                    Some(b'n') => Cell::Null,
                    Some(b't' | b'f') => Cell::Bool(text),
                    Some(b'{' | b'[') => Cell::Nested(text),
                    Some(b'"') => {
                        Text(content) = serde_json::from_str(text)
                            .map_err(|error| refuse(Fault::NotAnObject { why: error.to_string() }))?;
                        Cell::Text(&content)
                    }
                    _ => Cell::Number(text),
                };
                visit(Entry { line: self.line, index, name: key, cell }).map_err(refuse)?;
            }
            return Ok(Some(self.line));
        }
        Ok(None)
    }

    /// Reads the next line; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, InputError> {
        let NdjsonRecords { path, input, line, text } = self;
        text.clear();
        *line += 1;
        loop {
            let chunk = input.fill().map_err(|source| InputError::whole(path, Fault::Unreadable(source)))?;
            if chunk.is_empty() {
                return Ok(!text.is_empty());
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(chunk.len(), |end| end + 1);
            text.extend_from_slice(chunk.get(..used).unwrap_or_default());
            input.consume(used);
            if text.len() > RECORD_BYTES_MAX {
                return Err(InputError::line(path, *line, Fault::RecordTooLong { max: RECORD_BYTES_MAX }));
            }
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

/// Whether a JSON value is a progress; any other under its key is an update with a reserved name.
fn is_progress(value: &str) -> bool {
    value == "\"end\"" || value.parse::<u64>().is_ok()
}

fn members(text: &str) -> Result<Vec<(Cow<'_, str>, &RawValue)>, Fault> {
    let found = match text.as_bytes().first() {
        Some(b'[') => "it is a list",
        Some(b'{') => "",
        _ => "it does not begin with {",
    };
    if !found.is_empty() {
        return Err(Fault::NotAnObject { why: found.to_owned() });
    }
    match serde_json::from_str(text) {
        Ok(Members(members)) => Ok(members),
        // The parser counts lines within the one line it got; the character is what helps.
        Err(error) => {
            let why = error.to_string();
            let what = why.split(" at line ").next().unwrap_or_default();
            Err(Fault::NotAnObject { why: format!("{what}, character {}", error.column()) })
        }
    }
}
