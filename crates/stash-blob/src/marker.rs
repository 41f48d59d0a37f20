//! `stash.json`: which catalog a prefix belongs to, and in which format.
//!
//! Created once by a create-only PUT and compared at every open. Two catalogs on one prefix would each
//! take the other's blobs for garbage, so the second one is refused before it can list anything.
//!
//! The object is small JSON that people may read: `{"format":1,"catalog":"c…"}`. Readers look at `format`
//! alone first: what else a newer format holds is not theirs to judge.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stash_types::{BlobKey, CatalogId};

use crate::{BlobError, BlobStore};

/// The format of keys and parts that this build writes, and the newest it reads.
pub const FORMAT: u32 = 1;

/// More bytes than a marker of any format has.
const MARKER_BYTES_MAX: u64 = 64 << 10;

/// What `stash.json` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StashMarker {
    /// The format of keys and parts below the prefix; 1 or more.
    pub format: u32,
    /// The only catalog that may own blobs below the prefix.
    pub catalog: CatalogId,
}

/// Why a prefix cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClaimError {
    /// The prefix belongs to another catalog.
    #[error(
        "{location} belongs to catalog {theirs}, not to {ours}: give each catalog a prefix of its own, \
         or connect to the catalog it belongs to"
    )]
    OtherCatalog {
        /// Where the store is.
        location: String,
        /// The catalog that asked.
        ours: CatalogId,
        /// The catalog that owns the prefix.
        theirs: CatalogId,
    },
    /// The prefix is in a newer format.
    #[error("{location} has format {format}; this build knows up to {known}: upgrade it")]
    NewerFormat {
        /// Where the store is.
        location: String,
        /// The format found.
        format: u64,
        /// The newest format this claim knows.
        known: u32,
    },
    /// `stash.json` is not a marker.
    #[error(
        "{location} holds a stash.json that Stash did not write ({why}): use another prefix, \
         or put back the file that was there"
    )]
    Garbage {
        /// Where the store is.
        location: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store failed.
    #[error("claiming {location}: the store failed")]
    Store {
        /// Where the store is.
        location: String,
        /// The store's own error.
        #[source]
        source: BlobError,
    },
}

/// The form at rest. The id stands as it prints, so that people can compare it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    catalog: String,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u64,
}

impl StashMarker {
    fn to_json(self) -> String {
        format!("{{\"format\":{},\"catalog\":\"{}\"}}\n", self.format, self.catalog)
    }
}

/// Makes the prefix of `store` belong to `marker.catalog`, or checks that it does already.
///
/// Looks before it writes, so that whoever may only read can open a prefix that is claimed. A claim whose
/// outcome is unknown is read back; when that fails too, the error is the store's and claiming again is
/// safe.
///
/// Whoever may not list is told "denied" of a marker that is not there yet (S3 does so), so a look that was denied proves
/// nothing: the create-only PUT finds out.
pub async fn claim(store: &dyn BlobStore, marker: &StashMarker) -> Result<(), ClaimError> {
    match read_marker(store, marker.format).await {
        Ok(Some(found)) => return compare(store, marker, found),
        Ok(None) | Err(ClaimError::Store { source: BlobError::Denied { .. }, .. }) => {}
        Err(error) => return Err(error),
    }
    let json = Bytes::from(marker.to_json());
    // SUBTLE: "exists" may be our own first try, or a rival's: only the bytes tell whose prefix it is.
    // A rival that opens the store may also sweep our try away once its own stands.
    let put = store.put_new(&BlobKey::stash_json(), vec![json]).await;
    match (read_marker(store, marker.format).await?, put) {
        (Some(found), _) => compare(store, marker, found),
        (None, Err(source)) => Err(ClaimError::Store { location: store.location(), source }),
        (None, Ok(_)) => {
            let why = "it vanished while it was being claimed".to_owned();
            Err(ClaimError::Garbage { location: store.location(), why })
        }
    }
}

/// Refuses a prefix that belongs to another catalog. One that nobody claimed stays so.
pub async fn check_claim(store: &dyn BlobStore, marker: &StashMarker) -> Result<(), ClaimError> {
    match read_marker(store, marker.format).await? {
        Some(found) => compare(store, marker, found),
        None => Ok(()),
    }
}

/// What the marker of `store` says, or `None` where nothing has claimed the prefix. `known` is the newest
/// format the caller can read, [`FORMAT`] as a rule.
pub async fn read_marker(store: &dyn BlobStore, known: u32) -> Result<Option<StashMarker>, ClaimError> {
    let location = store.location();
    match store.get(&BlobKey::stash_json(), MARKER_BYTES_MAX).await {
        Ok(bytes) => parse(location, &bytes, known).map(Some),
        Err(BlobError::NotFound { .. }) => Ok(None),
        Err(source) => Err(ClaimError::Store { location, source }),
    }
}

fn parse(location: String, bytes: &[u8], known: u32) -> Result<StashMarker, ClaimError> {
    let FormatOnly { format } = match serde_json::from_slice(bytes) {
        Ok(format) => format,
        Err(error) => return Err(ClaimError::Garbage { location, why: error.to_string() }),
    };
    if format > u64::from(known) {
        return Err(ClaimError::NewerFormat { location, format, known });
    }
    let stored: Stored = match serde_json::from_slice(bytes) {
        Ok(stored) => stored,
        Err(error) => return Err(ClaimError::Garbage { location, why: error.to_string() }),
    };
    let Stored { format, catalog } = stored;
    match catalog.parse() {
        Ok(catalog) if format > 0 => Ok(StashMarker { format, catalog }),
        Ok(_) => Err(ClaimError::Garbage { location, why: "format 0".to_owned() }),
        Err(error) => Err(ClaimError::Garbage { location, why: error.to_string() }),
    }
}

fn compare(store: &dyn BlobStore, ours: &StashMarker, found: StashMarker) -> Result<(), ClaimError> {
    let StashMarker { format: _, catalog: theirs } = found;
    if theirs == ours.catalog {
        return Ok(());
    }
    Err(ClaimError::OtherCatalog { location: store.location(), ours: ours.catalog, theirs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectBlobs;

    fn catalog(n: u32) -> CatalogId {
        format!("c00000000-0000-4000-8000-{n:012}").parse().expect("an id")
    }

    fn marker(n: u32) -> StashMarker {
        StashMarker { format: FORMAT, catalog: catalog(n) }
    }

    async fn holding(text: &'static str) -> ObjectBlobs {
        let store = ObjectBlobs::memory();
        store.put_new(&BlobKey::stash_json(), vec![Bytes::from_static(text.as_bytes())]).await.expect("put");
        store
    }

    #[tokio::test]
    async fn a_claimed_prefix_opens_again_for_the_same_catalog_only() {
        let store = ObjectBlobs::memory();
        claim(&store, &marker(1)).await.expect("the first claim");
        claim(&store, &marker(1)).await.expect("the same catalog again");
        let error = claim(&store, &marker(2)).await.expect_err("another catalog").to_string();
        assert!(error.contains(&catalog(1).to_string()), "{error}");
        assert!(error.contains(&catalog(2).to_string()), "{error}");
        assert_eq!(read_marker(&store, FORMAT).await.expect("readable"), Some(marker(1)));
    }

    #[tokio::test]
    async fn of_two_catalogs_that_race_for_a_prefix_exactly_one_wins() {
        for _ in 0..50 {
            let store = ObjectBlobs::memory();
            let (one, two) = (marker(1), marker(2));
            let (a, b) = tokio::join!(claim(&store, &one), claim(&store, &two));
            assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
        }
    }

    #[tokio::test]
    async fn a_newer_format_is_refused_whatever_else_it_holds() {
        let store = holding(r#"{"format":2,"catalogs":["x"]}"#).await;
        let error = claim(&store, &marker(1)).await.expect_err("newer");
        assert!(matches!(error, ClaimError::NewerFormat { format: 2, known: FORMAT, .. }), "{error}");
    }

    #[tokio::test]
    async fn garbage_is_named_and_left_alone() {
        for text in ["", "{}", "hello", r#"{"format":1,"catalog":"x"}"#, r#"{"format":1}"#] {
            let store = holding(text).await;
            let error = claim(&store, &marker(1)).await.expect_err(text);
            assert!(matches!(error, ClaimError::Garbage { .. }), "{text}: {error}");
            let kept = store.get(&BlobKey::stash_json(), 100).await.expect("kept");
            assert_eq!(kept, text.as_bytes());
        }
        let zero = format!(r#"{{"format":0,"catalog":"{}"}}"#, catalog(1));
        assert!(parse("here".into(), zero.as_bytes(), FORMAT).is_err());
    }

    #[test]
    fn what_a_claim_writes_it_reads() {
        let json = marker(7).to_json();
        assert_eq!(parse("here".into(), json.as_bytes(), FORMAT).expect("parses"), marker(7));
    }
}
