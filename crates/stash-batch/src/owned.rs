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
