//! Typed ids. Each prints as one letter and its UUID, and parses from exactly that form.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not an id of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {kind} id: expected {letter:?} and a lower-case hyphenated UUID")]
pub struct IdError {
    /// The text that was given, cut to 80 characters.
    pub text: String,
    /// What it was to name, with its article.
    pub kind: &'static str,
    /// The letter such ids begin with.
    pub letter: char,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $letter:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// The id with this UUID.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The bare UUID.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0.as_hyphenated())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let parsed = text
                    .strip_prefix($letter)
                    .filter(|rest| rest.len() == 36)
                    .and_then(|rest| Uuid::try_parse(rest).ok())
                    .map(Self);
                match parsed {
                    // SUBTLE: one id has one spelling, else one blob could be named by two keys.
                    Some(id) if id.to_string() == text => Ok(id),
                    _ => Err(IdError {
                        text: text.chars().take(80).collect(),
                        kind: $kind,
                        letter: $letter,
                    }),
                }
            }
        }
    };
}

id!(
    /// The identity of a catalog, drawn once when it is created.
    CatalogId, 'c', "a catalog"
);
id!(
    /// The identity of a sink, drawn when it is declared; its name is only a label.
    SinkId, 'k', "a sink"
);
id!(
    /// The blob namespace of a sink: derived, never drawn.
    ShardId, 's', "a shard"
);
id!(
    /// One rendering of one sink on a replica: a UUID v7, never reused, in every key it writes.
    IncarnationId, 'i', "an incarnation"
);
id!(
    /// One accepted batch.
    BatchId, 'b', "a batch"
);
id!(
    /// What the processes of one launch of a replica share; used for one grant.
    LaunchToken, 'l', "a launch"
);
id!(
    /// One session of a consumer; a newer one fences the older.
    SessionId, 'e', "a session"
);
id!(
    /// One catalog transaction, so that a lost reply can be read back.
    CommitId, 'm', "a commit"
);

impl ShardId {
    /// The shard of `sink` in `catalog`: UUID v5 of the two ids, so that a listing can be attributed and
    /// no two sinks share a namespace.
    pub fn derive(catalog: CatalogId, sink: SinkId) -> ShardId {
        ShardId(Uuid::new_v5(&catalog.uuid(), sink.uuid().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_exactly_one_spelling() {
        let id = SinkId::from_uuid(Uuid::from_u128(0xABCDEF));
        let text = id.to_string();
        assert_eq!(text.parse(), Ok(id));
        for bad in [text.to_uppercase(), text.replace('k', "s"), text.replace('-', ""), format!("{text} ")] {
            assert!(bad.parse::<SinkId>().is_err(), "{bad} must not parse");
        }
    }

    #[test]
    fn shards_are_derived_from_catalog_and_sink() {
        let catalog = |n| CatalogId::from_uuid(Uuid::from_u128(n));
        let sink = SinkId::from_uuid(Uuid::from_u128(7));
        assert_eq!(ShardId::derive(catalog(1), sink), ShardId::derive(catalog(1), sink));
        assert_ne!(ShardId::derive(catalog(1), sink), ShardId::derive(catalog(2), sink));
        assert_eq!(ShardId::derive(catalog(1), sink).uuid().get_version_num(), 5);
    }
}
