//! What can be wrong with a change file, and where.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use super::spec::Owner;

/// A place within a file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of text: the one a record begins on.
    Line(u64),
    /// A row of a Parquet file.
    Row(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line}"),
            Place::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// A change file that cannot be read as asked: which file, where in it, and what is wrong.
#[derive(Debug)]
pub struct InputError {
    /// The file.
    pub path: PathBuf,
    /// The line or row, where one is at fault.
    pub place: Option<Place>,
    /// The column, where one is at fault.
    pub column: Option<String>,
    /// What is wrong, and what to do.
    pub fault: Fault,
}

impl InputError {
    /// A fault of the file as a whole.
    pub(super) fn whole(path: &Path, fault: Fault) -> InputError {
        InputError { path: path.to_owned(), place: None, column: None, fault }
    }

    /// A fault of one line.
    pub(super) fn line(path: &Path, line: u64, fault: Fault) -> InputError {
        InputError { place: Some(Place::Line(line)), ..InputError::whole(path, fault) }
    }

    /// A fault of one row of a Parquet file.
    pub(super) fn row(path: &Path, row: u64, fault: Fault) -> InputError {
        InputError { place: Some(Place::Row(row)), ..InputError::whole(path, fault) }
    }

    /// The same fault, of `column`.
    pub(super) fn of(mut self, column: impl Into<String>) -> InputError {
        self.column = Some(column.into());
        self
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(place) = self.place {
            write!(f, ", {place}")?;
        }
        if let Some(column) = &self.column {
            write!(f, ", column {column:?}")?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl std::error::Error for InputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.fault.source()
    }
}

/// What is wrong with a change file, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file cannot be opened or read.
    #[error("cannot be read; check the path and its permissions")]
    Unreadable(#[source] io::Error),
    /// The path names a directory.
    #[error("is a directory; name one file")]
    Directory,
    /// A pipe cannot be read twice.
    #[error("is not a regular file, and finding the column types reads it twice; pass --schema, or a file")]
    NotRegular,
    /// Parquet is read from its end.
    #[error("is not a regular file, and Parquet is read from its end; write it to a file first")]
    NotSeekable,
    /// There is nothing in it.
    #[error("is empty; {0}")]
    Empty(&'static str),
    /// Bytes that are not UTF-8.
    #[error("is not UTF-8; convert the file to UTF-8 first")]
    NotUtf8,
    /// A record beyond the limit.
    #[error(
        "the record is longer than {max} bytes; if it should not be, look for a missing quote or newline"
    )]
    RecordTooLong {
        /// The limit.
        max: usize,
    },
    /// More columns than anyone means.
    #[error("there are more than {max} columns; if keys or fields hold values, put them into rows")]
    TooManyColumns {
        /// The limit.
        max: usize,
    },
    /// A CSV record of other length than the header.
    #[error("has {got} fields, but the header has {expected}; add or quote what is missing or too much")]
    FieldCount {
        /// Fields in the header.
        expected: usize,
        /// Fields in the record.
        got: usize,
    },
    /// A quote within a bare CSV field.
    #[error("a quote within a field; put the whole field in quotes and double each quote in it")]
    StrayQuote,
    /// Text after the closing quote of a CSV field.
    #[error("text follows a closing quote; double each quote that is part of the field")]
    AfterQuote,
    /// The file ends within quotes.
    #[error("a quote opened here is never closed")]
    OpenQuote,
    /// A column of a CSV header without a name.
    #[error("column {index} of the header has no name; give it one")]
    Unnamed {
        /// Its number, from 1.
        index: usize,
    },
    /// A field whose name is empty.
    #[error("a column without a name; give it one")]
    Nameless,
    /// Two columns of one name.
    #[error("the name occurs twice; rename one of the two")]
    Duplicate,
    /// A reserved name.
    #[error("names that begin with \"_\" are reserved; {hint}")]
    Reserved {
        /// What to do.
        hint: String,
    },
    /// Time and diff are one column.
    #[error("cannot be both the time and the diff column; name two columns")]
    OneColumnTwoRoles,
    /// A role column that is not there.
    #[error("there is no such column; pass {flag} with one of: {}", list(.columns))]
    NoSuchColumn {
        /// The flag that names it.
        flag: &'static str,
        /// The columns there are.
        columns: Vec<String>,
    },
    /// A header of one column that holds another separator.
    #[error(
        "the header is one column, {header:?}: the file seems to be separated by {by}, and only commas are read; convert it first"
    )]
    OtherSeparator {
        /// The header.
        header: String,
        /// The separator, in a word.
        by: &'static str,
    },
    /// A column of `--schema` that is not in the file.
    #[error("{}, but the file has only: {}", named_by(.owner), list(.columns))]
    NotInFile {
        /// Who names the column.
        owner: Owner,
        /// The columns there are.
        columns: Vec<String>,
    },
    /// A column of the file that is not in `--schema`.
    #[error("{}", unnamed_by(.0))]
    NotInSchema(Owner),
    /// A role column in `--schema`.
    #[error("{}", role_named_by(.0))]
    RoleInSchema(Owner),
    /// A schema for a file that has one.
    #[error("a Parquet file carries its own schema; leave --schema out")]
    SchemaNotWanted,
    /// A line that is not an object.
    #[error("is not a JSON object ({why}); NDJSON has one object a line")]
    NotAnObject {
        /// What the parser says, or what was found.
        why: String,
    },
    /// A nested value in a column without declared type.
    #[error("holds {kind}; pass --schema with this column as utf8 to keep it as JSON text")]
    Nested {
        /// `an object` or `a list`.
        kind: &'static str,
    },
    /// Values of different kinds in a column without declared type.
    #[error(
        "holds {this} here and {other} in line {other_line}; pass --schema with this column as utf8 to keep both as text"
    )]
    MixedKinds {
        /// The kind in this line.
        this: &'static str,
        /// The kind elsewhere.
        other: &'static str,
        /// Where that is.
        other_line: u64,
    },
    /// A value that the column's type cannot hold.
    #[error("{text:?} is not {wanted}{}", other_type(.owner))]
    BadValue {
        /// The value, cut to 80 characters.
        text: String,
        /// The type, in the words of `--schema`.
        wanted: String,
        /// Who gave the column its type.
        owner: Owner,
    },
    /// A null in a column that has none.
    #[error("is null; give it a value, or {}", nullable(.owner, .name, .wanted))]
    NullValue {
        /// The column.
        name: String,
        /// The type, in the words of `--schema`.
        wanted: String,
        /// Who says that it has none.
        owner: Owner,
    },
    /// An update without time.
    #[error("has no time; every update needs one")]
    NullTime,
    /// An update without diff.
    #[error("has no diff; every update needs one where a diff column is named")]
    NullDiff,
    /// A time that is none.
    #[error("{text:?} cannot be a time: {why}; times are integers from 0 to 18446744073709551614")]
    BadTime {
        /// The value, cut to 80 characters.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A diff that is none.
    #[error("{text:?} cannot be a diff: {why}; diffs are integers that fit 64 bits with sign")]
    BadDiff {
        /// The value, cut to 80 characters.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A role column whose type has no integers.
    #[error("is of type {found}, and cannot be the {role} column; name one with integers")]
    RoleType {
        /// `time` or `diff`.
        role: &'static str,
        /// The type it has.
        found: String,
    },
    /// Not Parquet, or damaged.
    #[error("is not a Parquet file, or is damaged: {why}")]
    NotParquet {
        /// What the decoder says.
        why: String,
    },
}

fn named_by(owner: &Owner) -> String {
    match owner {
        Owner::Flag => "--schema names this column".to_owned(),
        Owner::Sink(name) => format!("sink {name} has this column and its columns never change"),
    }
}

fn unnamed_by(owner: &Owner) -> String {
    match owner {
        Owner::Flag => {
            "--schema does not name this column; add it there, or take it out of the file".to_owned()
        }
        Owner::Sink(name) => format!(
            "sink {name} has no such column and its columns never change; take it out of the file, or load into \
             another sink"
        ),
    }
}

fn role_named_by(owner: &Owner) -> String {
    match owner {
        Owner::Flag => {
            "--schema names the rows' columns only; leave the time and diff columns out of it".to_owned()
        }
        Owner::Sink(name) => {
            format!("is a column of sink {name}, so it cannot be the time or diff column; name another one")
        }
    }
}

fn other_type(owner: &Owner) -> String {
    match owner {
        Owner::Flag => "; correct it, or give the column another type with --schema".to_owned(),
        Owner::Sink(name) => format!(
            ", the column's type in sink {name}, which never changes; correct it, or load into another sink"
        ),
    }
}

fn nullable(owner: &Owner, name: &str, wanted: &str) -> String {
    match owner {
        Owner::Flag => format!("declare the column nullable: {name}:{wanted}?"),
        Owner::Sink(sink) => format!("load into another sink: in sink {sink} the column is never null"),
    }
}

/// The names, quoted, at most twenty of them.
fn list(columns: &[String]) -> String {
    let mut shown: Vec<String> = columns.iter().take(20).map(|name| format!("{name:?}")).collect();
    if let Some(more) = columns.len().checked_sub(20).filter(|more| *more > 0) {
        shown.push(format!("and {more} more"));
    }
    if shown.is_empty() { "(none)".to_owned() } else { shown.join(", ") }
}

/// A value as an error shows it.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}
