//! The argument of `--schema`: the rows' columns, by name and type.
//!
//! Inline it is `name:type, …`; from a file (`@path`, or any argument that ends in `.json`) it is a JSON list of
//! `{"name": …, "type": …, "nullable": …}`. A column has no nulls unless its type ends in `?` or it says
//! `"nullable": true`: who declares a schema says what is expected, and a null elsewhere is then a finding.
//! A name with `:`, `,`, `"` or spaces stands in double quotes, quotes within doubled.
//!
//! Types: `bool`, `int8` … `int64`, `uint8` … `uint64`, `float32`, `float64`, `utf8`, `binary` (hex digits),
//! `date` (`2024-02-29`), `timestamp` or `timestamp(us)` (`2024-02-29T12:00:00.000001`, an offset is
//! converted to UTC; no more than microseconds), `decimal(precision,scale)`. In any case of letters, and also by
//! the names that Arrow prints: `Boolean`, `Date32`, `Timestamp(µs)`, `Decimal128(10, 2)`.

use std::{fmt, io, path::PathBuf, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::Deserialize;

/// Who says which columns a file has; errors give advice by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// Whoever passed `--schema`, or nobody.
    #[default]
    Flag,
    /// The sink of this name, which exists: its columns never change.
    Sink(String),
}

/// The declared columns, in order.
///
/// - At least one, unless a sink has none; names are unique, not empty, and not reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaSpec {
    schema: SchemaRef,
    owner: Owner,
}

/// An argument of `--schema` that declares no columns.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The inline form is wrong at one place.
    #[error("--schema, character {position}: {problem}")]
    Inline {
        /// The character, from 1.
        position: usize,
        /// What is wrong there.
        problem: String,
    },
    /// The file cannot be read.
    #[error("--schema: {} cannot be read; inline schemas look like id:int64,name:utf8?", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not the JSON wanted.
    #[error("--schema: {} is not a JSON list of {{\"name\", \"type\", \"nullable\"}} objects", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// One entry of the file is wrong.
    #[error("--schema: {}, column {entry}: {problem}", .path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The entry, from 1.
        entry: usize,
        /// What is wrong there.
        problem: String,
    },
}

const TYPES: &str = "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, utf8, \
    binary, date, timestamp, decimal(p,s)";

impl SchemaSpec {
    /// Reads the argument of `--schema`.
    pub fn from_arg(arg: &str) -> Result<SchemaSpec, SpecError> {
        match arg.strip_prefix('@') {
            Some(path) => from_file(path.into()),
            None if arg.ends_with(".json") => from_file(arg.into()),
            None => from_inline(arg),
        }
    }

    /// The same columns, said by the sink `name`.
    #[must_use]
    pub fn of_sink(mut self, name: impl Into<String>) -> SchemaSpec {
        self.owner = Owner::Sink(name.into());
        self
    }

    /// Who says so.
    pub(super) fn owner(&self) -> Owner {
        self.owner.clone()
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The spec of `schema`, or the first column whose type has no word here.
    pub fn of(schema: &Schema) -> Result<SchemaSpec, String> {
        let fields = schema.fields().iter().map(|field| match type_word(field.data_type()) {
            Some(_) => Ok(Field::new(field.name(), field.data_type().clone(), field.is_nullable())),
            None => Err(field.name().clone()),
        });
        Ok(SchemaSpec {
            schema: Arc::new(Schema::new(fields.collect::<Result<Vec<_>, _>>()?)),
            owner: Owner::Flag,
        })
    }
}

impl fmt::Display for SchemaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in self.schema.fields().iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let name = field.name();
            let plain = name.chars().all(|c| !is_mark(c) && !c.is_whitespace());
            let name = if plain { name.clone() } else { format!("\"{}\"", name.replace('"', "\"\"")) };
            let word = type_word(field.data_type()).unwrap_or_default();
            write!(f, "{comma}{name}:{word}{}", if field.is_nullable() { "?" } else { "" })?;
        }
        Ok(())
    }
}

/// The word for a type, or `None` if there is none.
pub(super) fn type_word(data_type: &DataType) -> Option<String> {
    Some(match data_type {
        DataType::Boolean => "bool".into(),
        DataType::Utf8 => "utf8".into(),
        DataType::Binary => "binary".into(),
        DataType::Date32 => "date".into(),
        DataType::Timestamp(TimeUnit::Microsecond, None) => "timestamp(us)".into(),
        DataType::Decimal128(precision, scale) => format!("decimal({precision},{scale})"),
        DataType::Float32 | DataType::Float64 => data_type.to_string().to_lowercase(),
        other if other.is_integer() => other.to_string().to_lowercase(),
        _ => return None,
    })
}

fn is_mark(c: char) -> bool {
    matches!(c, ':' | ',' | '"' | '?' | '(' | ')')
}

/// The type that a word names, its `?` already gone.
fn parse_type(word: &str) -> Result<DataType, String> {
    let plain: String = word.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect();
    Ok(match plain.as_str() {
        "bool" | "boolean" => DataType::Boolean,
        "int8" => DataType::Int8,
        "int16" => DataType::Int16,
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        "uint8" => DataType::UInt8,
        "uint16" => DataType::UInt16,
        "uint32" => DataType::UInt32,
        "uint64" => DataType::UInt64,
        "float32" => DataType::Float32,
        "float64" => DataType::Float64,
        "utf8" | "string" | "text" => DataType::Utf8,
        "binary" => DataType::Binary,
        "date" | "date32" => DataType::Date32,
        "timestamp" | "timestamp(us)" | "timestamp(µs)" | "timestamp(microsecond,none)" => {
            DataType::Timestamp(TimeUnit::Microsecond, None)
        }
        "" => return Err(format!("a type is missing; one of {TYPES}")),
        _ => match decimal_arguments(&plain) {
            Some(arguments) => parse_decimal(arguments)?,
            None => return Err(format!("{word:?} is not a type; one of {TYPES}")),
        },
    })
}

/// What stands in the parentheses of a decimal.
fn decimal_arguments(plain: &str) -> Option<&str> {
    let rest = plain.strip_prefix("decimal128").or_else(|| plain.strip_prefix("decimal"))?;
    rest.strip_prefix('(')?.strip_suffix(')')
}

fn parse_decimal(arguments: &str) -> Result<DataType, String> {
    let parsed = arguments
        .split_once(',')
        .and_then(|(p, s)| Some((p.trim().parse::<u8>().ok()?, s.trim().parse::<i8>().ok()?)));
    match parsed {
        Some((precision @ 1..=38, scale))
            if (0..=38).contains(&scale) && scale.unsigned_abs() <= precision =>
        {
            Ok(DataType::Decimal128(precision, scale))
        }
        _ => Err("a decimal is decimal(p,s) with 1 ≤ p ≤ 38 and 0 ≤ s ≤ p".to_owned()),
    }
}

/// What is wrong with a column of this name, given those before it.
fn check_name(name: &str, before: &[Field]) -> Result<(), String> {
    if name.is_empty() {
        return Err("a column name is missing".to_owned());
    }
    if name.starts_with('_') {
        return Err(format!(
            "{name:?}: names that begin with \"_\" are reserved; list the rows' columns only"
        ));
    }
    if before.iter().any(|field| field.name() == name) {
        return Err(format!("{name:?} occurs twice"));
    }
    Ok(())
}

fn from_inline(text: &str) -> Result<SchemaSpec, SpecError> {
    let chars: Vec<char> = text.chars().collect();
    let at = |position: usize, problem: String| SpecError::Inline { position: position + 1, problem };
    let mut fields = Vec::new();
    let mut next = 0;
    loop {
        next = skip_spaces(&chars, next);
        let start = next;
        let (name, after) = scan_name(&chars, start).map_err(|problem| at(start, problem))?;
        check_name(&name, &fields).map_err(|problem| at(start, problem))?;
        next = skip_spaces(&chars, after);
        if chars.get(next) != Some(&':') {
            return Err(at(next, format!("expected \":\" and a type after {name:?}")));
        }
        let start = skip_spaces(&chars, next + 1);
        let (word, after) = scan_type(&chars, start);
        let bare = word.strip_suffix('?');
        let data_type = parse_type(bare.unwrap_or(&word).trim_end()).map_err(|problem| at(start, problem))?;
        fields.push(Field::new(name, data_type, bare.is_some()));
        if after == chars.len() {
            return Ok(SchemaSpec { schema: Arc::new(Schema::new(fields)), owner: Owner::Flag });
        }
        next = after + 1;
    }
}

fn skip_spaces(chars: &[char], from: usize) -> usize {
    from + chars.iter().skip(from).take_while(|c| c.is_whitespace()).count()
}

/// The name that begins at `start`, and where it ends.
fn scan_name(chars: &[char], start: usize) -> Result<(String, usize), String> {
    if chars.get(start) != Some(&'"') {
        let name: String = chars.iter().skip(start).take_while(|c| !is_mark(**c)).collect();
        let end = start + name.chars().count();
        return Ok((name.trim_end().to_owned(), end));
    }
    let mut name = String::new();
    let mut next = start + 1;
    loop {
        match (chars.get(next), chars.get(next + 1)) {
            (Some('"'), Some('"')) => {
                name.push('"');
                next += 2;
            }
            (Some('"'), _) => return Ok((name, next + 1)),
            (Some(c), _) => {
                name.push(*c);
                next += 1;
            }
            (None, _) => return Err("the quote that opens here is never closed".to_owned()),
        }
    }
}

/// The type word that begins at `start`, up to a comma outside parentheses, and where it ends.
fn scan_type(chars: &[char], start: usize) -> (String, usize) {
    let mut open = false;
    let ends = |c: &char| {
        open = (open || *c == '(') && *c != ')';
        *c == ',' && !open
    };
    let end = chars.iter().skip(start).position(ends).map_or(chars.len(), |length| start + length);
    let word: String = chars.iter().take(end).skip(start).collect();
    (word.trim().to_owned(), end)
}

fn from_file(path: PathBuf) -> Result<SchemaSpec, SpecError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Entry {
        name: String,
        r#type: String,
        #[serde(default)]
        nullable: bool,
    }
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(SpecError::Unreadable { path, source }),
    };
    let entries: Vec<Entry> = match serde_json::from_str(&text) {
        Ok(entries) => entries,
        Err(source) => return Err(SpecError::Json { path, source }),
    };
    let mut fields = Vec::new();
    for (index, Entry { name, r#type: word, nullable }) in entries.into_iter().enumerate() {
        let bare = word.trim().strip_suffix('?');
        let checked = check_name(&name, &fields).and_then(|()| parse_type(bare.unwrap_or(word.trim())));
        match checked {
            Ok(data_type) => fields.push(Field::new(name, data_type, nullable || bare.is_some())),
            Err(problem) => return Err(SpecError::Entry { path, entry: index + 1, problem }),
        }
    }
    if fields.is_empty() {
        return Err(SpecError::Entry {
            path,
            entry: 1,
            problem: "there is none; list at least one".to_owned(),
        });
    }
    Ok(SchemaSpec { schema: Arc::new(Schema::new(fields)), owner: Owner::Flag })
}
