//! Blob stores: keys and bytes, never shards.
//!
//! [`BlobStore`] is the boundary: few operations, each with a typed outcome that says whether the effect
//! surely did not happen ([`BlobError::Determinate`]) or may have ([`BlobError::Indeterminate`]). The type,
//! never the message, decides whether a retry is safe.
//!
//! [`LocalStore`] keeps durable files, [`ObjectBlobs`] drives any `object_store` (memory now). Whatever
//! implements the boundary runs the [`suite`].

mod local;
mod marker;
mod object;
mod observer;
#[cfg(feature = "s3")]
pub mod s3;
mod shown;
mod store;
pub mod suite;
mod verdict;

pub use local::LocalStore;
pub use marker::{ClaimError, FORMAT, StashMarker, check_claim, claim, read_marker};
pub use object::ObjectBlobs;
pub use observer::{NoObserver, Request, RequestEnd, RequestObserver, RequestOp};
pub use shown::shown_url;
pub use store::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome, look_by_listing};
