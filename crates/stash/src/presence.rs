//! Which of some objects are in the store, told by listing the folders of their incarnations.
//!
//! Whoever audits and sweeps lists anyway, and needs no permission to read what others wrote: asking for one object is
//! reading it, for a store's permissions and for its customer keys. A folder is listed once for all keys of it, so that
//! many keys of one rendering cost a page a thousand rather than a request each.
//!
//! No entry that existed during the whole call is left out, and keys are written once: a key that is not found is gone, or
//! was never there.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use stash_blob::BlobEntryKind;
use stash_types::{BlobPrefix, PartKey};

use crate::{Result, Stash};

/// What the store shows of some keys.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    objects: BTreeMap<PartKey, u64>,
    uploads: BTreeSet<(PartKey, String)>,
}

impl Presence {
    /// Looks for `keys`: for their objects, and for uploads that are to become them.
    pub(crate) async fn of(stash: &Stash, keys: &BTreeSet<PartKey>) -> Result<Presence> {
        let folders: BTreeSet<_> = keys.iter().map(|key| (key.shard, key.name.incarnation)).collect();
        let mut found = Presence::default();
        for (shard, incarnation) in folders {
            let mut listing = stash.store().list(BlobPrefix::Incarnation(shard, incarnation));
            while let Some(entry) = listing.next().await {
                let entry = entry?;
                match entry.kind {
                    BlobEntryKind::Object(key) => {
                        if let Some(key) = key.part_key().filter(|key| keys.contains(key)) {
                            found.objects.insert(key, entry.len);
                        }
                    }
                    BlobEntryKind::Upload { key, token } => {
                        if let Some(key) = key.part_key().filter(|key| keys.contains(key)) {
                            found.uploads.insert((key, token));
                        }
                    }
                    BlobEntryKind::Foreign(_) => {}
                }
            }
        }
        Ok(found)
    }

    /// The length of the object under `key`, if it is there.
    pub(crate) fn len_of(&self, key: &PartKey) -> Option<u64> {
        self.objects.get(key).copied()
    }

    /// Whether this upload of `key` is there.
    pub(crate) fn has_upload(&self, key: PartKey, token: &str) -> bool {
        self.uploads.contains(&(key, token.to_owned()))
    }
}
