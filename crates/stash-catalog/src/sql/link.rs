//! Connections as an operation sees them: statements with bound values in, rows out.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use stash_types::{
    BatchId, CommitId, ConsumerName, Digest, Frontier, IncarnationId, LaunchToken, PartKey, ReplicaName,
    SchemaFingerprint, SessionId, SinkId, SinkName, Timestamp,
};

use super::decode::Columns;

/// One bound value. Which database has it bound is not its business.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    Int(Option<i64>),
    Text(Option<String>),
    Blob(Option<Vec<u8>>),
}

/// Bound values, in order.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::sql::link::Arg::from($value)),*] };
}
pub(crate) use args;

/// A row that was read.
pub(crate) type Row = Box<dyn Columns>;

/// Where statements go: a connection, or a transaction on one.
#[async_trait]
pub(crate) trait Link: Send {
    /// Runs one statement to its end and returns its rows.
    async fn fetch(&mut self, sql: &'static str, args: Vec<Arg>) -> sqlx::Result<Vec<Row>>;
    /// Makes the transaction durable. One that is dropped instead is rolled back at once.
    async fn commit(self: Box<Self>) -> std::result::Result<(), Uncommitted>;
}

impl fmt::Debug for dyn Link + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// A commit that was not answered with success.
#[derive(Debug)]
pub(crate) enum Uncommitted {
    /// Nothing became durable.
    Surely(sqlx::Error),
    /// It may be durable.
    Perhaps(sqlx::Error, &'static str),
}

/// A connection while it is held.
#[async_trait]
pub(crate) trait Held: Send {
    /// Statements each by itself.
    fn each(&mut self) -> Box<dyn Link + '_>;
    /// A transaction that reads one snapshot; it ends when it is dropped.
    async fn snapshot(&mut self) -> sqlx::Result<Box<dyn Link + '_>>;
    /// A transaction that writes; nothing of it remains unless it is committed.
    async fn begin(&mut self) -> sqlx::Result<Box<dyn Link + '_>>;
}

/// A count or a moment as a database holds it. What is beyond `i64` stays at its largest value.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl From<i64> for Arg {
    fn from(value: i64) -> Arg {
        Arg::Int(Some(value))
    }
}

impl From<u64> for Arg {
    fn from(value: u64) -> Arg {
        int(value).into()
    }
}

impl From<Option<u64>> for Arg {
    fn from(value: Option<u64>) -> Arg {
        Arg::Int(value.map(int))
    }
}

impl From<bool> for Arg {
    fn from(value: bool) -> Arg {
        i64::from(value).into()
    }
}

impl From<Timestamp> for Arg {
    fn from(value: Timestamp) -> Arg {
        value.0.into()
    }
}

impl From<&str> for Arg {
    fn from(value: &str) -> Arg {
        Arg::Text(Some(value.to_owned()))
    }
}

impl From<String> for Arg {
    fn from(value: String) -> Arg {
        Arg::Text(Some(value))
    }
}

impl From<Option<&str>> for Arg {
    fn from(value: Option<&str>) -> Arg {
        Arg::Text(value.map(str::to_owned))
    }
}

impl From<Frontier> for Arg {
    fn from(value: Frontier) -> Arg {
        value.to_be_bytes().to_vec().into()
    }
}

impl From<Option<Frontier>> for Arg {
    fn from(value: Option<Frontier>) -> Arg {
        Arg::Blob(value.map(|frontier| frontier.to_be_bytes().to_vec()))
    }
}

impl From<Vec<u8>> for Arg {
    fn from(value: Vec<u8>) -> Arg {
        Arg::Blob(Some(value))
    }
}

impl From<&Bytes> for Arg {
    fn from(value: &Bytes) -> Arg {
        value.to_vec().into()
    }
}

impl From<Digest> for Arg {
    fn from(value: Digest) -> Arg {
        value.0.to_vec().into()
    }
}

impl From<SchemaFingerprint> for Arg {
    fn from(value: SchemaFingerprint) -> Arg {
        value.0.into()
    }
}

/// Ids, names and keys are stored in their one spelling.
macro_rules! spelled {
    ($($value:ty),*) => {$(
        impl From<$value> for Arg {
            fn from(value: $value) -> Arg {
                Arg::Text(Some(value.to_string()))
            }
        }
        impl From<Option<$value>> for Arg {
            fn from(value: Option<$value>) -> Arg {
                Arg::Text(value.map(|value| value.to_string()))
            }
        }
    )*};
}
spelled!(
    BatchId,
    CommitId,
    IncarnationId,
    LaunchToken,
    PartKey,
    SessionId,
    SinkId,
    &ConsumerName,
    &ReplicaName,
    &SinkName
);
