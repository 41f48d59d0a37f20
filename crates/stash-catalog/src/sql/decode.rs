//! Rows into values. Nothing is believed: a column of another type, length or spelling than what is written
//! there is [`CatalogError::Damaged`], naming table, row and column.

use std::fmt::Display;
use std::str::FromStr;

use bytes::Bytes;
use stash_types::{
    DataflowError, Description, Digest, Frontier, InlineRun, PartKey, RunFacts, SchemaFingerprint, ShardId,
    Timestamp, wire::Wire,
};

use super::Result;
use crate::rows::{
    BatchRow, ConsumerRow, DeletionReason, DeletionRow, HeadRow, HeadStatus, HistoryRow, IncarnationRow,
    IncarnationState, NewSink, OutcomeKind, PartRow, ResolvedOffer, SinkRow,
};
use crate::{CatalogError, Committed};

/// What a column of a row holds, by the type it has there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found<'r> {
    Null,
    Int(i64),
    Text(&'r str),
    Blob(&'r [u8]),
    /// A type that no column has.
    Other(&'static str),
}

impl Found<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Found::Null => "null",
            Found::Int(_) => "an integer",
            Found::Text(_) => "text",
            Found::Blob(_) => "bytes",
            Found::Other(kind) => kind,
        }
    }
}

/// A row of a database, by its columns.
pub(crate) trait Columns: Send + Sync {
    /// What the column of that name holds, or why it cannot be read.
    fn column(&self, name: &str) -> std::result::Result<Found<'_>, String>;
    /// What the first column holds.
    fn first(&self) -> std::result::Result<Found<'_>, String>;
}

/// The version of the encoded [`RunFacts`].
const FACTS_VERSION: u8 = 1;

/// Encodes facts: a version byte, then that version's body.
pub(crate) fn facts_frame(facts: &RunFacts) -> std::result::Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(facts, vec![FACTS_VERSION])
}

/// How a deletion reason is spelled in the queue.
pub(crate) fn reason_word(reason: DeletionReason) -> &'static str {
    match reason {
        DeletionReason::Dropped => "dropped",
        DeletionReason::Trimmed => "trimmed",
        DeletionReason::Released => "released",
        DeletionReason::Expired => "expired",
        DeletionReason::SinkDropped => "sink-dropped",
        DeletionReason::Surrendered => "surrendered",
        DeletionReason::Swept => "swept",
    }
}

/// One row of a table, being read.
pub(crate) struct Fields<'r> {
    location: &'r str,
    table: &'static str,
    row: &'r dyn Columns,
}

impl<'r> Fields<'r> {
    pub(crate) fn new(location: &'r str, table: &'static str, row: &'r dyn Columns) -> Fields<'r> {
        Fields { location, table, row }
    }

    /// The fault in `column`, named by table and by the row's first column.
    pub(crate) fn damaged(&self, column: &str, why: impl Display) -> CatalogError {
        let row = match self.row.first() {
            Ok(Found::Int(number)) => number.to_string(),
            Ok(Found::Text(text)) => text.to_owned(),
            _ => "?".to_owned(),
        };
        let table = self.table;
        CatalogError::Damaged {
            location: self.location.to_owned(),
            what: format!("table {table}, row {row}, column {column}: {why}"),
        }
    }

    fn found(&self, column: &'static str) -> Result<Found<'r>> {
        self.row.column(column).map_err(|error| self.damaged(column, error))
    }

    fn is_null(&self, column: &'static str) -> Result<bool> {
        Ok(matches!(self.found(column)?, Found::Null))
    }

    fn other<T>(&self, column: &'static str, found: Found<'_>, wanted: &str) -> Result<T> {
        Err(self.damaged(column, format!("is {}, not {wanted}", found.kind())))
    }

    fn str(&self, column: &'static str) -> Result<&'r str> {
        match self.found(column)? {
            Found::Text(text) => Ok(text),
            other => self.other(column, other, "text"),
        }
    }

    fn str_opt(&self, column: &'static str) -> Result<Option<&'r str>> {
        if self.is_null(column)? { Ok(None) } else { self.str(column).map(Some) }
    }

    fn blob(&self, column: &'static str) -> Result<&'r [u8]> {
        match self.found(column)? {
            Found::Blob(bytes) => Ok(bytes),
            other => self.other(column, other, "bytes"),
        }
    }

    pub(crate) fn text(&self, column: &'static str) -> Result<String> {
        self.str(column).map(str::to_owned)
    }

    pub(crate) fn text_opt(&self, column: &'static str) -> Result<Option<String>> {
        Ok(self.str_opt(column)?.map(str::to_owned))
    }

    pub(crate) fn i64(&self, column: &'static str) -> Result<i64> {
        match self.found(column)? {
            Found::Int(value) => Ok(value),
            other => self.other(column, other, "an integer"),
        }
    }

    pub(crate) fn u64(&self, column: &'static str) -> Result<u64> {
        let value = self.i64(column)?;
        u64::try_from(value).map_err(|_| self.damaged(column, format!("{value} is negative")))
    }

    pub(crate) fn u64_opt(&self, column: &'static str) -> Result<Option<u64>> {
        if self.is_null(column)? { Ok(None) } else { self.u64(column).map(Some) }
    }

    fn flag(&self, column: &'static str) -> Result<bool> {
        Ok(self.i64(column)? != 0)
    }

    pub(crate) fn time(&self, column: &'static str) -> Result<Timestamp> {
        self.u64(column).map(Timestamp)
    }

    fn bytes(&self, column: &'static str) -> Result<Vec<u8>> {
        self.blob(column).map(<[u8]>::to_vec)
    }

    fn array<const N: usize>(&self, column: &'static str) -> Result<[u8; N]> {
        let found = self.blob(column)?;
        found.try_into().map_err(|_| self.damaged(column, format!("has {} bytes, not {N}", found.len())))
    }

    pub(crate) fn frontier(&self, column: &'static str) -> Result<Frontier> {
        self.array(column).map(Frontier::from_be_bytes)
    }

    pub(crate) fn frontier_opt(&self, column: &'static str) -> Result<Option<Frontier>> {
        if self.is_null(column)? { Ok(None) } else { self.frontier(column).map(Some) }
    }

    fn finite(&self, column: &'static str) -> Result<u64> {
        self.frontier(column)?.time().ok_or_else(|| self.damaged(column, "is the empty frontier, not a time"))
    }

    pub(crate) fn parse<T: FromStr<Err: Display>>(&self, column: &'static str) -> Result<T> {
        self.str(column)?.parse().map_err(|error: T::Err| self.damaged(column, error))
    }

    pub(crate) fn parse_opt<T: FromStr<Err: Display>>(&self, column: &'static str) -> Result<Option<T>> {
        if self.is_null(column)? { Ok(None) } else { self.parse(column).map(Some) }
    }

    fn facts(&self, column: &'static str) -> Result<RunFacts> {
        match self.blob(column)? {
            [FACTS_VERSION, body @ ..] => match postcard::take_from_bytes(body) {
                Ok((facts, [])) => Ok(facts),
                Ok((_, rest)) => Err(self.damaged(column, format!("{} bytes are left over", rest.len()))),
                Err(error) => Err(self.damaged(column, error)),
            },
            [version, ..] => Err(self.damaged(column, format!("unknown version {version}"))),
            [] => Err(self.damaged(column, "is empty")),
        }
    }

    fn description(&self, lower: &'static str, upper: &'static str) -> Result<Description> {
        let (from, to) = (self.frontier(lower)?, self.frontier(upper)?);
        Description::new(from, to)
            .ok_or_else(|| self.damaged(upper, format!("[{from}, {to}) covers no time")))
    }

    /// A row of `sinks`, whose shard is derived and not stored.
    pub(crate) fn sink(&self, shard: impl FnOnce(stash_types::SinkId) -> ShardId) -> Result<SinkRow> {
        let id = self.parse("id")?;
        Ok(SinkRow {
            spec: NewSink {
                id,
                name: self.parse("name")?,
                schema: Bytes::from(self.bytes("schema")?),
                fingerprint: SchemaFingerprint(Digest(self.array("fingerprint")?)),
                as_of: self.finite("as_of")?,
                up_to: self.frontier("up_to")?,
                seals: self.flag("seals")?,
                retention_ms: self.u64_opt("retention_ms")?,
                absent_hold_ms: self.u64_opt("absent_hold_ms")?,
            },
            shard: shard(id),
            declared: self.time("declared")?,
            dropped: self.u64_opt("dropped")?.map(Timestamp),
        })
    }

    /// A row of `chains`.
    pub(crate) fn head(&self) -> Result<HeadRow> {
        let status = match self.str("status")? {
            "open" => HeadStatus::Open,
            "complete" => HeadStatus::Complete,
            "dropped" => HeadStatus::Dropped,
            "poisoned" => HeadStatus::Poisoned(DataflowError {
                at: self.finite("poisoned_at")?,
                message: self.text("poison_message")?,
            }),
            other => return Err(self.damaged("status", format!("unknown status {other:?}"))),
        };
        Ok(HeadRow {
            sink: self.parse("sink")?,
            upper: self.frontier("upper")?,
            fence: self.u64("fence")?,
            next_seq: self.u64("next_seq")?,
            status,
            released: self.frontier("released")?,
            expired: self.frontier("expired")?,
            revision: self.u64("revision")?,
        })
    }

    /// A row of `incarnations`.
    pub(crate) fn incarnation(&self) -> Result<IncarnationRow> {
        let state = self.state("closed")?;
        let last = match self.str_opt("last_outcome")? {
            None => None,
            Some(word) => Some(ResolvedOffer {
                description: self.description("last_lower", "last_upper")?,
                outcome: match word {
                    "accepted" => OutcomeKind::Accepted,
                    "trimmed" => OutcomeKind::Trimmed { from: self.frontier("last_from")? },
                    "dropped" => OutcomeKind::Dropped,
                    other => return Err(self.damaged("last_outcome", format!("unknown outcome {other:?}"))),
                },
            }),
        };
        Ok(IncarnationRow {
            id: self.parse("id")?,
            sink: self.parse("sink")?,
            replica: self.parse("replica")?,
            launch: self.parse("launch")?,
            as_of: self.finite("as_of")?,
            resolved: self.frontier("resolved")?,
            state,
            last,
            opened: self.time("opened")?,
            lease_until: self.time("lease_until")?,
        })
    }

    /// Whether an incarnation may write, from the reason of its closing.
    pub(crate) fn state(&self, column: &'static str) -> Result<IncarnationState> {
        Ok(match self.text_opt(column)? {
            None => IncarnationState::Open,
            Some(reason) => IncarnationState::Closed { reason },
        })
    }

    /// The commit that is recorded on an incarnation, if there is one.
    pub(crate) fn committed(&self) -> Result<Committed> {
        Ok(Committed {
            revision: self.u64("commit_revision")?,
            seq: self.u64_opt("commit_seq")?,
            upper: self.frontier("commit_upper")?,
            fence: self.u64("commit_fence")?,
        })
    }

    /// A row of `batches`, without its parts and runs.
    pub(crate) fn batch(&self) -> Result<BatchRow> {
        let row = BatchRow {
            id: self.parse("id")?,
            seq: self.u64("seq")?,
            lower: self.frontier("lower")?,
            upper: self.frontier("upper")?,
            extent: self.frontier("extent")?,
            offered: self.description("offered_lower", "offered_upper")?,
            incarnation: self.parse("incarnation")?,
            facts: self.facts("facts")?,
            parts: Vec::new(),
            inline: Vec::new(),
            accepted: self.time("accepted")?,
        };
        if row.lower >= row.upper || row.upper > row.extent {
            let BatchRow { lower, upper, extent, .. } = row;
            return Err(self.damaged("upper", format!("{lower} < {upper} <= {extent} does not hold")));
        }
        Ok(row)
    }

    /// A row of `parts`, with the `seq` of its batch.
    pub(crate) fn part(&self) -> Result<(u64, PartRow)> {
        let key: PartKey = self.parse("key")?;
        let frame = self.blob("descriptor")?;
        let descriptor = Wire::from_wire(frame)
            .map_err(|error: stash_types::wire::WireError| self.damaged("descriptor", error))?;
        Ok((self.u64("seq")?, PartRow { name: key.name, descriptor }))
    }

    /// A row of `inline_runs`, with the `seq` of its batch.
    pub(crate) fn inline(&self) -> Result<(u64, InlineRun)> {
        let group = self.u64("run_group")?;
        let run = InlineRun {
            group: u32::try_from(group)
                .map_err(|_| self.damaged("run_group", format!("{group} is too large")))?,
            payload: Bytes::from(self.bytes("payload")?),
            digest: Digest(self.array("digest")?),
            facts: self.facts("facts")?,
            schema: SchemaFingerprint(Digest(self.array("schema")?)),
        };
        // I22: bytes that are not what was written are reported, never handed on as rows.
        if Digest::of(&run.payload) != run.digest {
            return Err(self.damaged("payload", "the bytes do not have the digest they were written with"));
        }
        Ok((self.u64("seq")?, run))
    }

    /// A row of `consumers`.
    pub(crate) fn consumer(&self) -> Result<ConsumerRow> {
        Ok(ConsumerRow {
            name: self.parse("name")?,
            acked: self.frontier("acked")?,
            session: self.parse("session")?,
            seen: self.time("seen")?,
        })
    }

    /// A deletion reason, if the column holds one.
    pub(crate) fn reason_opt(&self, column: &'static str) -> Result<Option<DeletionReason>> {
        Ok(Some(match self.str_opt(column)? {
            None => return Ok(None),
            Some("dropped") => DeletionReason::Dropped,
            Some("trimmed") => DeletionReason::Trimmed,
            Some("released") => DeletionReason::Released,
            Some("expired") => DeletionReason::Expired,
            Some("sink-dropped") => DeletionReason::SinkDropped,
            Some("surrendered") => DeletionReason::Surrendered,
            Some("swept") => DeletionReason::Swept,
            Some(other) => return Err(self.damaged(column, format!("unknown reason {other:?}"))),
        }))
    }

    /// A row of `deletions`.
    pub(crate) fn deletion(&self) -> Result<DeletionRow> {
        Ok(DeletionRow {
            key: self.parse("key")?,
            sink: self.parse("sink")?,
            reason: self.reason_opt("reason")?.ok_or_else(|| self.damaged("reason", "is missing"))?,
            queued: self.time("queued")?,
            attempts: self.u64("attempts")?,
        })
    }

    /// A row of `history`.
    pub(crate) fn history(&self) -> Result<HistoryRow> {
        Ok(HistoryRow {
            at: self.time("at")?,
            sink: self.parse("sink")?,
            incarnation: self.parse_opt("incarnation")?,
            key: self.parse_opt("key")?,
            event: self.text("event")?,
            detail: self.text("detail")?,
        })
    }
}
