//! Target `ids`: texts that people and other programs write.
//!
//! Input: a byte that says what the text is, then the text; change files come behind a schema.
//!
//! - An id, a key, a name has one spelling: what is read prints as it stood.
//! - A key never leaves its prefix, whatever its text.
//! - A command line is understood, or refused with a message; a URL is checked without being opened.
//! - A change file is read, or refused with its place named. What was read prints, in each text format, as a file
//!   that reads back as the same updates.

use std::cell::RefCell;
use std::fmt::{Debug, Display};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::str::FromStr;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use stash::OpenOptions;
use stash_admin::{
    ChangeFile, ColumnRoles, DIFF, Format, InputError, SchemaSpec, TIME, batch_writer, parse, url_of,
};
use stash_types::{
    BatchId, BlobKey, BlobPrefix, CatalogId, CommitId, ConsumerName, Description, Frontier, IncarnationId,
    LaunchToken, PartKey, ReplicaName, SessionId, ShardId, SinkId, SinkName,
};
use tempfile::NamedTempFile;

use crate::input::Input;

/// Ids, keys and names.
pub const NAMES: u8 = 0;
/// The URL of a stash.
pub const URL: u8 = 1;
/// The words of a command line, one a line.
pub const WORDS: u8 = 2;
/// The columns of rows, inline.
pub const SPEC: u8 = 3;
/// A CSV file: flags, a schema behind its length, the file.
pub const CSV: u8 = 4;
/// An NDJSON file, likewise.
pub const NDJSON: u8 = 5;
/// How many kinds of input there are.
const KINDS: u8 = 6;

/// Flag of a change file: it has a column of diffs.
pub const DIFFS: u8 = 1;
/// Flag of a change file: its columns are declared.
pub const DECLARED: u8 = 2;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8() % KINDS;
    match kind {
        CSV => change_file(Format::Csv, input),
        NDJSON => change_file(Format::Ndjson, input),
        _ => {
            let text = String::from_utf8_lossy(input.rest());
            match kind {
                NAMES => names(&text),
                URL => url(&text),
                WORDS => words(&text),
                _ => spec(&text),
            }
        }
    }
}

fn one_spelling<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    match text.parse::<T>() {
        Ok(value) => {
            assert_eq!(value.to_string(), text, "read from another spelling than its own");
            Some(value)
        }
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 4096, "an error is one line: {line}");
            None
        }
    }
}

fn names(text: &str) {
    one_spelling::<CatalogId>(text);
    one_spelling::<SinkId>(text);
    one_spelling::<ShardId>(text);
    one_spelling::<IncarnationId>(text);
    one_spelling::<BatchId>(text);
    one_spelling::<LaunchToken>(text);
    one_spelling::<SessionId>(text);
    one_spelling::<CommitId>(text);
    one_spelling::<SinkName>(text);
    one_spelling::<ReplicaName>(text);
    one_spelling::<ConsumerName>(text);
    let blob = one_spelling::<BlobKey>(text);
    if let Some(key) = &blob {
        let path = Path::new(key.as_str());
        assert!(path.components().all(|part| matches!(part, std::path::Component::Normal(_))), "{key}");
    }
    if let Some(key) = one_spelling::<PartKey>(text) {
        assert_eq!(blob.as_ref().and_then(BlobKey::part_key), Some(key), "a part key is a blob key");
        let prefix = BlobPrefix::Incarnation(key.shard, key.name.incarnation).to_string();
        assert!(text.starts_with(&prefix), "{text} does not lie below {prefix}");
        assert_eq!(key.name.under(key.shard), key);
    }
    let mut bytes = Input::new(text.as_bytes());
    let frontiers = [bytes.array(), bytes.array()].map(Frontier::from_be_bytes);
    let [lower, upper] = frontiers;
    assert_eq!(
        lower.to_be_bytes().cmp(&upper.to_be_bytes()),
        lower.cmp(&upper),
        "bytes order as frontiers do"
    );
    if let Some(description) = Description::new(lower, upper) {
        assert!(lower.time().is_some_and(|time| description.contains(time)), "it covers its lower");
    }
}

fn url(text: &str) {
    if let Err(error) = OpenOptions::new(text).create(false).check() {
        assert!(!error.to_string().is_empty());
    }
    let url = url_of(text.to_owned());
    assert_eq!(url_of(url.clone()), url, "the URL of a URL is itself");
}

fn words(text: &str) {
    let words = text.split('\n').take(32).map(Into::into);
    match parse(std::iter::once("stash-admin".into()).chain(words)) {
        Ok(cli) => drop(format!("{cli:?}")),
        Err(error) => assert!(!error.to_string().is_empty(), "refused without a word"),
    }
}

fn spec(text: &str) {
    // Names of files are not for the fuzzer to read.
    if text.starts_with('@') || text.ends_with(".json") {
        return;
    }
    match SchemaSpec::from_arg(text) {
        Ok(spec) => {
            let again = SchemaSpec::from_arg(&spec.to_string());
            assert_eq!(
                again.ok().as_ref(),
                Some(&spec),
                "{text:?} prints as {spec}, which is something else"
            );
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "an error is one line: {error}"),
    }
}

struct Files {
    input: NamedTempFile,
    output: NamedTempFile,
}

impl Files {
    fn new() -> Files {
        let file = || NamedTempFile::new().expect("a temporary file is made");
        Files { input: file(), output: file() }
    }

    fn fill(&mut self, bytes: &[u8]) {
        let file = self.input.as_file_mut();
        file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).expect("a temporary file is emptied");
        file.write_all(bytes).expect("a temporary file is written");
    }

    /// An empty file to print into.
    fn empty(&self) -> File {
        File::create(self.output.path()).expect("a temporary file is emptied")
    }
}

thread_local! {
    static FILES: RefCell<Files> = RefCell::new(Files::new());
}

/// All updates of a file.
struct Changes {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

fn read(
    path: &Path,
    format: Format,
    roles: ColumnRoles,
    spec: Option<SchemaSpec>,
) -> Result<Changes, InputError> {
    let file = ChangeFile::open(path, format, roles, spec)?;
    let schema = file.schema();
    let batches = file.map(|batch| batch.map(|batch| batch.batch)).collect::<Result<Vec<_>, _>>()?;
    Ok(Changes { schema, batches })
}

fn change_file(format: Format, mut input: Input<'_>) {
    let flags = input.u8();
    let spec = String::from_utf8_lossy(input.stretch()).into_owned();
    if spec.starts_with('@') || spec.ends_with(".json") {
        return;
    }
    let spec = match SchemaSpec::from_arg(&spec) {
        _ if flags & DECLARED == 0 => None,
        Ok(spec) => Some(spec),
        Err(_) => return,
    };
    let roles = ColumnRoles { time: "t".into(), diff: (flags & DIFFS != 0).then(|| "d".into()) };
    FILES.with_borrow_mut(|files| {
        files.fill(input.rest());
        match read(files.input.path(), format, roles, spec) {
            Ok(changes) => printed_again(files, &changes),
            Err(error) => assert!(error.to_string().len() < 65_536, "an error of a book's length"),
        }
    });
}

/// What was read prints as a file that reads back as the same.
fn printed_again(files: &Files, changes: &Changes) {
    let Changes { schema, batches } = changes;
    for batch in batches {
        assert!(batch.num_rows() <= 8192, "a batch of {} updates", batch.num_rows());
        let times = batch.column_by_name(TIME).and_then(|times| times.as_any().downcast_ref::<UInt64Array>());
        assert!(times.is_some_and(|times| !times.values().contains(&u64::MAX)), "u64::MAX is no time");
    }
    let Some(first) = batches.first() else { return };
    let whole = concat_batches(&first.schema(), batches).expect("the batches are of one schema");
    let spec = SchemaSpec::of(schema).expect("every type that is read has a word");
    for format in [Format::Csv, Format::Ndjson] {
        let mut writer = batch_writer(format, files.empty());
        let printed = writer
            .begin(&first.schema())
            .and_then(|()| writer.batch(&whole))
            .and_then(|()| writer.progress(None))
            .and_then(|()| writer.finish());
        printed.expect("what was read can be printed");
        let roles = ColumnRoles { time: TIME.into(), diff: Some(DIFF.into()) };
        let again = read(files.output.path(), format, roles, Some(spec.clone()));
        let again = again.unwrap_or_else(|error| panic!("{format} that we printed is refused: {error}"));
        let again = concat_batches(&first.schema(), &again.batches).expect("the batches are of one schema");
        assert_eq!(again, whole, "{format}: printed and read again they are other updates");
    }
}
