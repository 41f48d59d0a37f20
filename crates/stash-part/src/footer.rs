//! What a part's footer says beside Parquet's own metadata: keys that begin with `stash.`.
//!
//! `stash.row_groups` lists, for each row group, where its segment ends, its counts and its BLAKE3. The
//! first segment begins at byte 0, each other one where the one before ends, and the tail follows the last:
//! there is no byte that no digest covers.

use serde::{Deserialize, Serialize};
use stash_types::{Description, Digest, Frontier, RunFacts, SchemaFingerprint, SinkId};

use crate::encode::PartMeta;
use crate::error::PartError;
use crate::order::ORDER_VERSION;

/// The version of the part format this build writes and reads.
pub const FORMAT_VERSION: u32 = 1;
/// Who wrote it, in the words of the Parquet footer; fixed, since parts are compared byte by byte.
pub(crate) const CREATED_BY: &str = "stash part format 1";
/// The largest tail that is written or read: 32 MiB.
pub(crate) const TAIL_BYTES_MAX: u64 = 32 << 20;

/// What the footer declares of one row group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowGroupFacts {
    /// Where its segment ends in the object.
    pub end: u64,
    pub rows: u64,
    pub min_time: u64,
    pub max_time: u64,
    /// Bytes of its columns in memory.
    pub bytes: u64,
    #[serde(with = "hex")]
    pub digest: Digest,
}

/// What the footer declares of the part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FooterFacts {
    pub meta: PartMeta,
    pub facts: RunFacts,
    pub schema: SchemaFingerprint,
    pub row_groups: Vec<RowGroupFacts>,
}

impl FooterFacts {
    /// Keys and values in the order they are written.
    pub(crate) fn to_metadata(&self) -> Vec<(String, String)> {
        let FooterFacts { meta, facts, schema, row_groups } = self;
        let PartMeta { sink, description, group, run, ordinal } = meta;
        let RunFacts { update_count, diff_sum, min_time, max_time, uncompressed_bytes } = facts;
        let row_groups = row_groups.iter().map(|row_group| serde_json::json!(row_group)).collect();
        [
            ("format", FORMAT_VERSION.to_string()),
            ("order", ORDER_VERSION.to_string()),
            ("schema", schema.to_string()),
            ("sink", sink.to_string()),
            ("lower", description.lower().as_u64().to_string()),
            ("upper", description.upper().as_u64().to_string()),
            ("since", description.since().as_u64().to_string()),
            ("group", group.to_string()),
            ("run", run.to_string()),
            ("ordinal", ordinal.to_string()),
            ("update_count", update_count.to_string()),
            ("diff_sum", diff_sum.to_string()),
            ("min_time", min_time.to_string()),
            ("max_time", max_time.to_string()),
            ("uncompressed_bytes", uncompressed_bytes.to_string()),
            ("row_groups", serde_json::Value::Array(row_groups).to_string()),
        ]
        .map(|(key, value)| (format!("stash.{key}"), value))
        .into()
    }

    /// Reads them back; `get` looks up a key. Versions come first: another format may have other keys.
    pub(crate) fn from_metadata<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<FooterFacts, PartError> {
        let text = |key: &str| {
            get(&format!("stash.{key}"))
                .ok_or_else(|| PartError::corrupt(format!("the footer has no stash.{key}")))
        };
        version("format", text("format")?, FORMAT_VERSION)?;
        version("order", text("order")?, ORDER_VERSION)?;
        let number = |key: &'static str| parse::<u64>(key, text(key)?);
        let small = |key: &'static str| parse::<u32>(key, text(key)?);
        let at = |key| number(key).map(Frontier::at);
        let (lower, upper, since) = (at("lower")?, at("upper")?, at("since")?);
        let description =
            Description::new(lower, upper).filter(|description| description.since() == since).ok_or_else(
                || PartError::corrupt("the footer's description covers no time, or has a since"),
            )?;
        let row_groups = text("row_groups")?;
        let row_groups = serde_json::from_str(row_groups)
            .map_err(|error| PartError::corrupt(format!("stash.row_groups: {error}")))?;
        Ok(FooterFacts {
            meta: PartMeta {
                sink: parse::<SinkId>("sink", text("sink")?)?,
                description,
                group: small("group")?,
                run: small("run")?,
                ordinal: small("ordinal")?,
            },
            facts: RunFacts {
                update_count: number("update_count")?,
                diff_sum: parse("diff_sum", text("diff_sum")?)?,
                min_time: number("min_time")?,
                max_time: number("max_time")?,
                uncompressed_bytes: number("uncompressed_bytes")?,
            },
            schema: SchemaFingerprint(
                hex::parse(text("schema")?)
                    .ok_or_else(|| PartError::corrupt("stash.schema is not a digest"))?,
            ),
            row_groups,
        })
    }
}

fn version(what: &'static str, text: &str, known: u32) -> Result<(), PartError> {
    if text == known.to_string() {
        return Ok(());
    }
    Err(PartError::Version { what, found: text.chars().take(40).collect(), known })
}

fn parse<T: std::str::FromStr>(key: &'static str, text: &str) -> Result<T, PartError> {
    text.parse().map_err(|_| {
        let text: String = text.chars().take(80).collect();
        PartError::corrupt(format!("stash.{key} is {text:?}"))
    })
}

/// Digests as 64 lower-case hex digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use stash_types::Digest;

    pub fn serialize<S: Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(digest)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom("not a digest"))
    }

    pub fn parse(text: &str) -> Option<Digest> {
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Digest(digest))
    }
}
