//! The linear handle of blobs: forwarded, split, disarmed or discarded, never copied.

use std::{mem, sync::Arc};

use stash_catalog::PartRow;
use stash_types::{Description, IncarnationId, PartDescriptor, PartKey, PartName, ShardId, SinkId, fault};

use crate::ledger::Ledger;

/// Parts in the store that belong to whoever holds this.
///
/// - Every part is in this process's ledger while the handle lives.
/// - Dropping it gives the parts up: the deleter deletes them as soon as no row can come to reference them.
///   [`OwnedParts::discard`] says so.
#[must_use = "dropping owned parts deletes their blobs; forward, disarm or discard them"]
#[derive(Debug)]
pub struct OwnedParts {
    ledger: Arc<Ledger>,
    sink: SinkId,
    shard: ShardId,
    incarnation: IncarnationId,
    description: Description,
    parts: Vec<PartDescriptor>,
}

impl OwnedParts {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        sink: SinkId,
        shard: ShardId,
        incarnation: IncarnationId,
        description: Description,
        parts: Vec<PartDescriptor>,
    ) -> OwnedParts {
        let owned = OwnedParts { ledger, sink, shard, incarnation, description, parts };
        owned.keys().for_each(|key| owned.ledger.enter(sink, key));
        owned
    }

    /// What is said of the parts.
    pub fn parts(&self) -> &[PartDescriptor] {
        &self.parts
    }

    /// How many parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// The bytes of their objects.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.len))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The parts' whole keys, under the owner's own shard.
    pub fn keys(&self) -> impl Iterator<Item = PartKey> + '_ {
        self.parts.iter().map(|part| self.name(part).under(self.shard))
    }

    /// The name of a part of this handle.
    pub fn name(&self, part: &PartDescriptor) -> PartName {
        PartName {
            incarnation: self.incarnation,
            description: self.description,
            process: part.process,
            n: part.n,
        }
    }

    /// The parts with their names.
    pub fn named_parts(&self) -> Vec<PartRow> {
        self.parts.iter().map(|part| PartRow { name: self.name(part), descriptor: part.clone() }).collect()
    }

    /// Two handles: of the parts that `first` picks, and of the others.
    pub fn split(mut self, first: impl Fn(&PartDescriptor) -> bool) -> (OwnedParts, OwnedParts) {
        let (picked, others) = mem::take(&mut self.parts).into_iter().partition(first);
        let OwnedParts { ref ledger, sink, shard, incarnation, description, .. } = self;
        let half =
            |parts| OwnedParts { ledger: Arc::clone(ledger), sink, shard, incarnation, description, parts };
        (half(picked), half(others))
    }

    /// Takes the parts of another handle of the same description into this one.
    pub(crate) fn absorb(&mut self, mut other: OwnedParts) {
        debug_assert_eq!(
            (self.shard, self.incarnation, self.description),
            (other.shard, other.incarnation, other.description),
            "parts of one description join"
        );
        self.parts.append(&mut other.parts);
    }

    /// The descriptors, for a channel that serializes; the receiver arms them again.
    ///
    /// From then on the catalog decides: this process forgets a part once a row references it, and deletes it once
    /// none can, since its frame was lost or refused. So the ledger holds only what is on its way.
    pub fn disarm(mut self) -> Vec<PartDescriptor> {
        let keys: Vec<PartKey> = self.keys().collect();
        self.ledger.surrender(keys);
        fault::place("batch.disarmed");
        mem::take(&mut self.parts)
    }

    /// Somebody else owns the parts for certain: the chain or the deletion queue.
    pub fn settle(mut self) {
        let keys: Vec<PartKey> = self.keys().collect();
        self.ledger.settle(&keys);
        self.parts.clear();
    }

    /// Gives the parts up for deletion.
    pub fn discard(self) {
        drop(self);
    }
}

impl Drop for OwnedParts {
    fn drop(&mut self) {
        if !self.parts.is_empty() {
            let keys: Vec<PartKey> = self.keys().collect();
            self.ledger.surrender(keys);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod tests {
    use stash_catalog::testing::SeededIds;
    use stash_types::{CatalogId, Digest, IdSource, RunFacts, SchemaFingerprint};

    use super::*;
    use crate::process::tests::description;

    /// A part of 70 bytes with 5 updates at times 3 to 8.
    pub(crate) fn part(n: u64) -> PartDescriptor {
        let digest = Digest::of(b"");
        let (update_count, diff_sum, min_time, max_time, uncompressed_bytes) = (5, 5, 3, 8, 100);
        PartDescriptor {
            process: 0,
            n,
            group: 0,
            run: 0,
            ordinal: 0,
            len: 70,
            tail_len: 70,
            tail_digest: digest,
            digest,
            facts: RunFacts { update_count, diff_sum, min_time, max_time, uncompressed_bytes },
            piece_bytes: 100,
            schema: SchemaFingerprint(digest),
        }
    }

    #[test]
    fn a_handle_tells_what_it_owns_and_who_ends_with_it() {
        let ids = SeededIds::new(1);
        let ledger = Arc::new(Ledger::default());
        let sink = SinkId::from_uuid(ids.random());
        let shard = ShardId::derive(CatalogId::from_uuid(ids.random()), sink);
        let incarnation = IncarnationId::from_uuid(ids.ordered());
        let description = description(3, 9);
        let owning =
            |parts| OwnedParts::new(Arc::clone(&ledger), sink, shard, incarnation, description, parts);
        let key = |n| PartName { incarnation, description, process: 0, n }.under(shard);
        let given_up = || ledger.given_up().remove(&sink).unwrap_or_default();

        let mut owned = owning(vec![part(1), part(2)]);
        owned.absorb(owning(vec![part(3)]));
        assert_eq!((owned.len(), owned.bytes(), owned.is_empty()), (3, 210, false));
        assert_eq!(owned.parts(), [part(1), part(2), part(3)]);
        assert_eq!(owned.keys().collect::<Vec<_>>(), [key(1), key(2), key(3)]);
        let named = owned.named_parts();
        assert_eq!(
            named.iter().map(|row| row.name.under(shard)).collect::<Vec<_>>(),
            [key(1), key(2), key(3)]
        );
        assert_eq!((ledger.len(), given_up()), (3, vec![]), "what was taken in is owned still");

        let (first, rest) = owned.split(|part| part.n == 1);
        assert_eq!((first.len(), rest.len(), given_up()), (1, 2, vec![]));
        first.settle();
        assert_eq!((ledger.len(), given_up()), (2, vec![]), "somebody else has it for certain");
        let (second, third) = rest.split(|part| part.n == 2);
        assert_eq!(second.disarm(), [part(2)]);
        assert_eq!(given_up(), [key(2)], "the catalog is asked of what is on its way");
        third.discard();
        assert_eq!(given_up(), [key(2), key(3)]);
        assert!(owning(vec![]).is_empty());
    }
}
