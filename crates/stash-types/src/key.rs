//! Keys of blobs. A listing alone tells of every object which sink, which times, which rendering and
//! which process it belongs to:
//! `<shard>/<incarnation>/<lower>-<upper>-<process>-<n>.parquet`, bounds as 16 hex digits.
//!
//! A [`PartName`] reaches no store: only a shard makes it a [`PartKey`], and only whole keys become
//! [`BlobKey`]s. No free string becomes a path.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Description, Frontier, IncarnationId, ShardId};

/// A text that is no key, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: {why}")]
pub struct KeyError {
    /// The text that was given, cut to 200 characters.
    pub text: String,
    /// What it was to be.
    pub kind: &'static str,
    /// What is wrong with it.
    pub why: String,
}

fn refuse<T>(kind: &'static str, text: &str, why: impl Into<String>) -> Result<T, KeyError> {
    Err(KeyError { text: text.chars().take(200).collect(), kind, why: why.into() })
}

/// A part within its sink, without the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartName {
    /// The rendering that wrote it.
    pub incarnation: IncarnationId,
    /// The description it was written for: its original bounds, whatever a trim made of the batch.
    pub description: Description,
    /// The process of the replica that wrote it.
    pub process: u32,
    /// Its number within (incarnation, process); never resets.
    pub n: u64,
}

impl PartName {
    /// Completes the key under `shard`.
    pub const fn under(self, shard: ShardId) -> PartKey {
        PartKey { shard, name: self }
    }
}

/// A part's whole key below the stash's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartKey {
    /// The sink's blob namespace.
    pub shard: ShardId,
    /// The part within it.
    pub name: PartName,
}

impl fmt::Display for PartKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartKey { shard, name: PartName { incarnation, description, process, n } } = self;
        let (lower, upper) = (description.lower().as_u64(), description.upper().as_u64());
        write!(f, "{shard}/{incarnation}/{lower:016x}-{upper:016x}-{process}-{n}.parquet")
    }
}

impl FromStr for PartKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PartKey, KeyError> {
        match parse_part_key(text) {
            // SUBTLE: only the one canonical spelling is a key, so that a reference and a listing agree.
            Some(key) if key.to_string() == text => Ok(key),
            _ => refuse(
                "part key",
                text,
                "expected <shard>/<incarnation>/<lower>-<upper>-<process>-<n>.parquet",
            ),
        }
    }
}

fn parse_part_key(text: &str) -> Option<PartKey> {
    let mut folders = text.split('/');
    let (shard, incarnation, file) = (folders.next()?, folders.next()?, folders.next()?);
    if folders.next().is_some() {
        return None;
    }
    let mut fields = file.strip_suffix(".parquet")?.split('-');
    let bound = |hex: &str| u64::from_str_radix(hex, 16).ok().map(Frontier::at);
    let (lower, upper) = (bound(fields.next()?)?, bound(fields.next()?)?);
    let (process, n) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    if fields.next().is_some() {
        return None;
    }
    Some(PartKey {
        shard: shard.parse().ok()?,
        name: PartName {
            incarnation: incarnation.parse().ok()?,
            description: Description::new(lower, upper)?,
            process,
            n,
        },
    })
}

/// Any object's key below the stash's prefix, as a store sees it: segments of `[A-Za-z0-9._-]` joined by
/// `/`, none of them empty or beginning with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlobKey(String);

impl BlobKey {
    /// The object that names the catalog and the format of the prefix.
    pub fn stash_json() -> BlobKey {
        BlobKey("stash.json".to_owned())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part key this is, if it is one.
    pub fn part_key(&self) -> Option<PartKey> {
        self.0.parse().ok()
    }
}

impl FromStr for BlobKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<BlobKey, KeyError> {
        if text.len() > 1024 {
            return refuse("blob key", text, "longer than 1024 bytes");
        }
        for segment in text.split('/') {
            if segment.is_empty() || segment.starts_with('.') {
                return refuse("blob key", text, "has a segment that is empty or begins with a dot");
            }
            if let Some(bad) = segment.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
                return refuse("blob key", text, format!("holds {bad:?}"));
            }
        }
        Ok(BlobKey(text.to_owned()))
    }
}

impl TryFrom<String> for BlobKey {
    type Error = KeyError;
    fn try_from(text: String) -> Result<BlobKey, KeyError> {
        text.parse()
    }
}

impl From<BlobKey> for String {
    fn from(key: BlobKey) -> String {
        key.0
    }
}

impl From<PartKey> for BlobKey {
    fn from(key: PartKey) -> BlobKey {
        BlobKey(key.to_string())
    }
}

impl fmt::Display for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A folder of keys to list: everything, a shard, or one incarnation of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlobPrefix {
    /// Everything below the stash's prefix.
    All,
    /// One sink's blobs.
    Shard(ShardId),
    /// One rendering's blobs.
    Incarnation(ShardId, IncarnationId),
}

impl fmt::Display for BlobPrefix {
    /// The folder, with its closing slash; nothing for everything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlobPrefix::All => Ok(()),
            BlobPrefix::Shard(shard) => write!(f, "{shard}/"),
            BlobPrefix::Incarnation(shard, incarnation) => write!(f, "{shard}/{incarnation}/"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn key() -> PartKey {
        let description = Description::new(Frontier::at(10), Frontier::EMPTY).expect("not empty");
        let incarnation = IncarnationId::from_uuid(Uuid::from_u128(2));
        PartName { incarnation, description, process: 3, n: 41 }.under(ShardId::from_uuid(Uuid::from_u128(1)))
    }

    #[test]
    fn a_part_key_roundtrips_and_tells_everything() {
        let text = key().to_string();
        assert!(text.ends_with("/000000000000000a-ffffffffffffffff-3-41.parquet"), "{text}");
        assert_eq!(text.parse(), Ok(key()));
        assert_eq!(BlobKey::from(key()).part_key(), Some(key()));
    }

    #[test]
    fn other_spellings_of_a_key_are_refused() {
        let text = key().to_string();
        for bad in [
            text.replace("-3-41", "-03-41"),
            text.replace("-3-41", "-3-+41"),
            text.replace("000a", "000A"),
            text.replace(".parquet", ""),
            format!("/{text}"),
            format!("x/{text}"),
        ] {
            assert!(bad.parse::<PartKey>().is_err(), "{bad} must not parse");
        }
    }

    #[test]
    fn no_free_string_becomes_a_path() {
        for bad in ["", "/etc/passwd", "a/../b", "a//b", ".hidden", "a b", "a\\b", "a/"] {
            assert!(bad.parse::<BlobKey>().is_err(), "{bad} must not parse");
        }
    }
}
