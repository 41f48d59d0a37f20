//! The rules of `stash-chain`, as this crate asks for them.
//!
//! They are those rules and nothing else, unless the feature `faults` is on: then a test can break one of them
//! ([`stash_types::fault::Mutant`]), here, where it is asked for, so that the rules themselves stay as they are.

use stash_batch::OwnedParts;
#[cfg(not(feature = "faults"))]
use stash_chain::ShareMerge;
use stash_chain::{Refused, Reported};
#[cfg(not(feature = "faults"))]
use stash_types::ShareMessage;

#[cfg(feature = "faults")]
mod broken;

#[cfg(feature = "faults")]
pub(crate) use broken::{Kept, believe, decide, grant, keeps, read_before, read_hold, report};
#[cfg(not(feature = "faults"))]
pub(crate) use stash_chain::{decide, grant, keeps, read_hold};

type Merged = Result<Reported<OwnedParts>, Refused<OwnedParts>>;

/// Gives a share to the merge.
#[cfg(not(feature = "faults"))]
pub(crate) fn report(merge: &mut ShareMerge<OwnedParts>, share: ShareMessage<OwnedParts>) -> Merged {
    merge.report(share)
}
