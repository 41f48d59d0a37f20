//! The plan of a sweep as a file: what would be deleted, why, and for which catalog.
//!
//! A plan is JSON lines. The first says what it is, each further one names an object or an unpublished upload, the last
//! one counts them, so that a file that was cut short is no plan:
//!
//! ```text
//! {"plan":{"format":1,"catalog":"c…","store":"…","scope":null,"made_ms":1790000000000}}
//! {"garbage":{"key":"s…/i…/….parquet","reason":"incarnation_closed","bytes":1234}}
//! {"left_over_upload":{"key":"s…/i…/….parquet","token":"…","reason":"key_settled","bytes":12}}
//! {"end":{"garbage":{"entries":1,"bytes":1234},"left_over_uploads":{"entries":1,"bytes":12}}}
//! ```
//!
//! - Readers look at the format alone first: what else a newer one holds is not theirs to judge. Unknown fields are
//!   refused, keys have one spelling, a line is at most [`LINE_BYTES_MAX`] long, and nothing follows the end.
//! - Nothing in a plan is believed: whoever applies it judges every key again, see `sweep`.

use std::{
    fmt,
    io::{BufRead, Write},
};

use serde::{Deserialize, Serialize};
use stash_types::{CatalogId, PartKey, ShardId, Timestamp};

use crate::{Tally, Unowned};

/// The format of plans that this build writes, and the newest it reads.
pub const PLAN_FORMAT: u32 = 1;
/// The longest line of a plan: far above what a key and a token take.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// Why a file cannot be used as a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is no plan, or not as it was written.
    #[error("line {line} of the plan: {what}; make a new plan")]
    Garbage {
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// It ends before its end: writing or copying it was interrupted.
    #[error("the plan ends at line {line} without its end: it was cut short; make a new plan")]
    CutShort {
        /// The last line, from 1; 0 if there is none.
        line: u64,
    },
    /// A newer build wrote it.
    #[error("the plan has format {found}; this build reads up to {known}: upgrade it, or make a new plan")]
    NewerFormat {
        /// Its format.
        found: u64,
        /// The newest that this build reads.
        known: u32,
    },
    /// It was made for another catalog.
    #[error("the plan was made for catalog {theirs}, this one is {ours}: nothing of it may be deleted here")]
    OtherCatalog {
        /// The catalog it was made for.
        theirs: CatalogId,
        /// The catalog it was to be applied to.
        ours: CatalogId,
    },
    /// It names something twice.
    #[error("the plan names {name} twice: it is not as it was written, make a new plan")]
    Twice {
        /// The key; of an upload, its token too.
        name: String,
    },
    /// It names a key outside of the shards that this catalog has sinks for.
    #[error("the plan names {key}, whose shard is of no sink of this catalog: nothing of it is deleted")]
    UnknownShard {
        /// The key.
        key: PartKey,
    },
    /// The file cannot be read or written.
    #[error("the plan cannot be read or written")]
    Io(#[from] std::io::Error),
}

/// What a plan says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanHeader {
    /// The catalog it was made for, and the only one it may be applied to.
    pub catalog: CatalogId,
    /// Where the store was, for people, without secrets.
    pub store: String,
    /// The shard it is limited to.
    pub scope: Option<ShardId>,
    /// When it was made, by the clock of the session that made it.
    pub made: Timestamp,
}

/// Something that a sweep would delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The key, or the key that the upload was to become.
    pub key: PartKey,
    /// Of an upload, what tells it from others of its key.
    pub token: Option<String>,
    /// Why nobody owns it.
    pub reason: Unowned,
    /// Its bytes.
    pub bytes: u64,
}

/// How much a plan names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanTotals {
    /// Objects.
    pub garbage: Tally,
    /// Unpublished uploads.
    pub left_over_uploads: Tally,
}

impl PlanTotals {
    fn add(&mut self, planned: &Planned) {
        let tally = if planned.token.is_some() { &mut self.left_over_uploads } else { &mut self.garbage };
        tally.add(planned.bytes);
    }

    /// Both together.
    pub fn all(&self) -> Tally {
        self.garbage.and(self.left_over_uploads)
    }
}

impl fmt::Display for PlanTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanTotals { garbage, left_over_uploads: uploads } = self;
        write!(
            f,
            "{} objects of {} bytes and {} uploads of {} bytes",
            garbage.entries, garbage.bytes, uploads.entries, uploads.bytes
        )
    }
}

/// A line as it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Plan(StoredHeader),
    Garbage(StoredObject),
    LeftOverUpload(StoredUpload),
    End(PlanTotals),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredHeader {
    format: u32,
    catalog: String,
    store: String,
    scope: Option<String>,
    made_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredObject {
    key: String,
    reason: Unowned,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredUpload {
    key: String,
    token: String,
    reason: Unowned,
    bytes: u64,
}

/// What is read of the first line at first.
#[derive(Deserialize)]
struct AnyFormat {
    plan: FormatOnly,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u64,
}

/// Writes a plan. Without [`PlanWriter::finish`] what was written is no plan.
#[derive(Debug)]
pub struct PlanWriter<W> {
    out: W,
    totals: PlanTotals,
}

impl<W: Write> PlanWriter<W> {
    /// Begins a plan on `out`.
    pub fn new(out: W, header: &PlanHeader) -> Result<PlanWriter<W>, PlanError> {
        let PlanHeader { catalog, store, scope, made } = header;
        let mut writer = PlanWriter { out, totals: PlanTotals::default() };
        writer.line(&Line::Plan(StoredHeader {
            format: PLAN_FORMAT,
            catalog: catalog.to_string(),
            store: store.clone(),
            scope: scope.map(|shard| shard.to_string()),
            made_ms: made.0,
        }))?;
        Ok(writer)
    }

    /// Adds something to be deleted.
    pub fn add(&mut self, planned: &Planned) -> Result<(), PlanError> {
        self.totals.add(planned);
        let Planned { key, token, reason, bytes } = planned;
        let (key, reason, bytes) = (key.to_string(), *reason, *bytes);
        self.line(&match token.clone() {
            None => Line::Garbage(StoredObject { key, reason, bytes }),
            Some(token) => Line::LeftOverUpload(StoredUpload { key, token, reason, bytes }),
        })
    }

    /// Ends the plan, and gives back what it was written to.
    pub fn finish(mut self) -> Result<(W, PlanTotals), PlanError> {
        let totals = self.totals;
        self.line(&Line::End(totals))?;
        self.out.flush()?;
        Ok((self.out, totals))
    }

    fn line(&mut self, line: &Line) -> Result<(), PlanError> {
        serde_json::to_writer(&mut self.out, line).map_err(std::io::Error::from)?;
        Ok(self.out.write_all(b"\n")?)
    }
}

/// Reads a plan line by line.
#[derive(Debug)]
pub struct PlanReader<R> {
    input: R,
    header: PlanHeader,
    line: u64,
    totals: PlanTotals,
    ended: bool,
}

impl<R: BufRead> PlanReader<R> {
    /// Reads the first line.
    pub fn new(mut input: R) -> Result<PlanReader<R>, PlanError> {
        let text = read_line(&mut input, 1)?.ok_or(PlanError::CutShort { line: 0 })?;
        let garbage = |what: String| PlanError::Garbage { line: 1, what };
        let AnyFormat { plan: FormatOnly { format } } =
            serde_json::from_str(&text).map_err(|error| garbage(format!("it is no plan: {error}")))?;
        if format > u64::from(PLAN_FORMAT) {
            return Err(PlanError::NewerFormat { found: format, known: PLAN_FORMAT });
        }
        let Ok(Line::Plan(stored)) = parse(&text, 1) else {
            return Err(garbage("it does not begin as a plan does".to_owned()));
        };
        let StoredHeader { format, catalog, store, scope, made_ms } = stored;
        if format == 0 {
            return Err(garbage("format 0".to_owned()));
        }
        let header = PlanHeader {
            catalog: catalog.parse().map_err(|error| garbage(format!("{error}")))?,
            store,
            scope: scope
                .map(|shard| shard.parse())
                .transpose()
                .map_err(|error| garbage(format!("{error}")))?,
            made: Timestamp(made_ms),
        };
        Ok(PlanReader { input, header, line: 1, totals: PlanTotals::default(), ended: false })
    }

    /// What the plan says of itself.
    pub fn header(&self) -> &PlanHeader {
        &self.header
    }

    /// What was read so far; after the end, all that the plan names.
    pub fn totals(&self) -> PlanTotals {
        self.totals
    }

    /// What is to be deleted next; `None` at the end, once that was found in order.
    pub fn next_planned(&mut self) -> Result<Option<Planned>, PlanError> {
        if self.ended {
            return Ok(None);
        }
        let Some(text) = read_line(&mut self.input, self.line.saturating_add(1))? else {
            return Err(PlanError::CutShort { line: self.line });
        };
        self.line = self.line.saturating_add(1);
        let line = self.line;
        let garbage = |what: String| PlanError::Garbage { line, what };
        let planned = match parse(&text, line)? {
            Line::Plan(_) => return Err(garbage("a second plan begins".to_owned())),
            Line::Garbage(StoredObject { key, reason, bytes }) => {
                Planned { key: key_of(&key, line)?, token: None, reason, bytes }
            }
            Line::LeftOverUpload(StoredUpload { key, token, reason, bytes }) => {
                Planned { key: key_of(&key, line)?, token: Some(token), reason, bytes }
            }
            Line::End(totals) if totals != self.totals => {
                return Err(garbage(format!("it counts {totals}, the lines before {}", self.totals)));
            }
            Line::End(_) => {
                if read_line(&mut self.input, line.saturating_add(1))?.is_some() {
                    return Err(PlanError::Garbage {
                        line: line.saturating_add(1),
                        what: "something follows the end".to_owned(),
                    });
                }
                self.ended = true;
                return Ok(None);
            }
        };
        if self.header.scope.is_some_and(|scope| scope != planned.key.shard) {
            return Err(garbage(format!("{} is outside of the plan's own scope", planned.key)));
        }
        self.totals.add(&planned);
        Ok(Some(planned))
    }
}

fn parse(text: &str, line: u64) -> Result<Line, PlanError> {
    serde_json::from_str(text).map_err(|error| PlanError::Garbage { line, what: error.to_string() })
}

fn key_of(text: &str, line: u64) -> Result<PartKey, PlanError> {
    text.parse().map_err(|error: stash_types::KeyError| PlanError::Garbage { line, what: error.to_string() })
}

/// A line without its end; `None` at the end of the input. A last line without an end was cut short.
fn read_line(input: &mut impl BufRead, line: u64) -> Result<Option<String>, PlanError> {
    let mut bytes = Vec::new();
    std::io::Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    match bytes.pop() {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) if bytes.len() as u64 + 1 >= LINE_BYTES_MAX => {
            let what = format!("it is longer than {LINE_BYTES_MAX} bytes");
            return Err(PlanError::Garbage { line, what });
        }
        Some(_) => return Err(PlanError::CutShort { line }),
    }
    let text = String::from_utf8(bytes);
    Ok(Some(text.map_err(|_| PlanError::Garbage { line, what: "it is not UTF-8".to_owned() })?))
}

#[cfg(test)]
mod tests;
