//! What became of a key, for people who found it in a bucket.

use serde::Serialize;
use stash_batch::{BatchReader, verdict};
use stash_blob::BlobEntryKind;
use stash_catalog::{BatchRow, HistoryFilter, HistoryRow, IncarnationRow, SinkRow};
use stash_chain::{Verdict, Why, invariants};
use stash_types::{BlobKey, BlobPrefix, Frontier, PartKey, ShardId, SinkId};

use crate::{Class, Error, Result, Sink, Stash, Stranger, Violation, classify::Walk};

/// Who owns a key now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The chain: this batch references it.
    Referenced {
        /// The batch's place in the chain.
        seq: u64,
    },
    /// The deletion queue.
    Queued {
        /// Why it is to be deleted.
        reason: String,
    },
    /// An open incarnation: it may still be offered.
    BeingWritten,
    /// Nobody: the next sweep queues it.
    Garbage {
        /// Why no row will reference it.
        why: String,
    },
    /// Nobody any longer: it is not in the store, and the catalog's history tells what it knows.
    Gone,
    /// This catalog knows no such incarnation of the sink.
    Foreign,
}

/// All that can be told of a key.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The key.
    pub key: String,
    /// The sink it belongs to, by its shard.
    pub sink: String,
    /// The sink's id.
    pub sink_id: String,
    /// Whether the sink was dropped.
    pub sink_dropped: bool,
    /// The first time it may hold.
    pub lower: String,
    /// The first time it does not hold.
    pub upper: String,
    /// The rendering that wrote it.
    pub incarnation: Option<IncarnationRow>,
    /// The process of the replica that wrote it.
    pub process: u32,
    /// Its number within (incarnation, process).
    pub n: u64,
    /// Its bytes in the store, if it is there.
    pub store_bytes: Option<u64>,
    /// The bytes it was accepted with, if a batch references it; other bytes in the store were put there from outside.
    pub accepted_bytes: Option<u64>,
    /// Who owns it.
    pub fate: Fate,
    /// What was recorded of it, oldest first.
    pub history: Vec<HistoryRow>,
}

impl Stash {
    /// The sink whose blobs lie under `shard`, dropped ones included.
    pub async fn sink_of_shard(&self, shard: ShardId) -> Result<SinkRow> {
        let sinks = self.sinks(true).await?;
        sinks.into_iter().find(|sink| sink.shard == shard).ok_or_else(|| Error::InvalidUsage {
            what: format!(
                "no sink of catalog {} has shard {shard}: the key is of another stash",
                self.catalog_id()
            ),
        })
    }

    /// Tells everything about a part's key: which sink, times, rendering and process wrote it, who owns it,
    /// what became of it.
    pub async fn explain(&self, key: PartKey) -> Result<Explanation> {
        let sink = self.sink_of_shard(key.shard).await?;
        let id = sink.spec.id;
        let object = BlobEntryKind::Object(BlobKey::from(key));
        let store_bytes = self.store().look_again(&[object]).await?.pop().flatten();
        let states = self.catalog().key_states(id, &[key]).await?;
        let fate = match states.first() {
            None => Fate::Foreign,
            Some(state) => match verdict(state) {
                Verdict::Referenced => Fate::Referenced { seq: state.referenced_by.unwrap_or_default() },
                Verdict::Queued => Fate::Queued {
                    reason: state.queued.map(|reason| format!("{reason:?}")).unwrap_or_default(),
                },
                _ if store_bytes.is_none() => Fate::Gone,
                Verdict::BeingWritten => Fate::BeingWritten,
                Verdict::Garbage(Why::Closed) => {
                    Fate::Garbage { why: "its incarnation is closed".to_owned() }
                }
                Verdict::Garbage(Why::Resolved) => {
                    Fate::Garbage { why: "its description is resolved and did not keep it".to_owned() }
                }
                Verdict::Foreign => Fate::Foreign,
            },
        };
        let accepted_bytes = match fate {
            Fate::Referenced { seq } => self.accepted_bytes(id, key, seq).await?,
            _ => None,
        };
        let incarnations = self.catalog().incarnations(id, true).await?;
        let filter = HistoryFilter { sink: Some(id), key: Some(key), ..HistoryFilter::default() };
        Ok(Explanation {
            key: key.to_string(),
            sink: sink.spec.name.to_string(),
            sink_id: id.to_string(),
            sink_dropped: sink.dropped.is_some(),
            lower: key.name.description.lower().to_string(),
            upper: key.name.description.upper().to_string(),
            incarnation: incarnations.into_iter().find(|row| row.id == key.name.incarnation),
            process: key.name.process,
            n: key.name.n,
            store_bytes,
            accepted_bytes,
            fate,
            history: self.catalog().history(filter).await?,
        })
    }

    /// The bytes that the batch `seq` says a part has; `None` when the batch was unlinked meanwhile.
    async fn accepted_bytes(&self, sink: SinkId, key: PartKey, seq: u64) -> Result<Option<u64>> {
        /// Batches whose times may meet those of a part are few: one, and what was trimmed against it.
        const ROWS_A_READ: u32 = 10;
        let mut from = key.name.description.lower();
        loop {
            let slice = self.catalog().chain(sink, from, ROWS_A_READ).await?;
            if let Some(batch) = slice.batches.iter().find(|batch| batch.seq == seq) {
                let part = batch.parts.iter().find(|part| part.name == key.name);
                return Ok(part.map(|part| part.descriptor.len));
            }
            match slice.batches.last() {
                Some(last) if last.seq < seq && last.extent > from => from = last.extent,
                _ => return Ok(None),
            }
        }
    }
}

impl Stash {
    /// Reads one part by its key: all its updates, also those a trim left out of the batch, each byte checked
    /// against the digests in the catalog. `None` when no row references it, so that nothing tells what its
    /// bytes should be; [`Stash::explain`] tells what became of it.
    pub async fn read_part(&self, key: PartKey) -> Result<Option<BatchReader>> {
        let sink = Sink::of_row(self, self.sink_of_shard(key.shard).await?)?;
        let mut batches = sink.batches().await?.into_iter();
        let Some(mut batch) = batches.find(|batch| batch.parts.iter().any(|part| part.name == key.name))
        else {
            return Ok(None);
        };
        batch.parts.retain(|part| part.name == key.name);
        batch.inline.clear();
        // As it was written, before any trim.
        let offered = batch.offered;
        (batch.lower, batch.upper, batch.extent) = (offered.lower(), offered.upper(), offered.upper());
        Ok(Some(sink.reader(batch, offered.lower())))
    }

    /// What lies in the prefix and belongs to no sink that is still declared (I17): things Stash did not write,
    /// shards this catalog does not know, and what dropped sinks left behind.
    pub async fn strays(&self) -> Result<Vec<Violation>> {
        let mut strays = Vec::new();
        let mut walk = Walk::open(self, BlobPrefix::All).looking_twice();
        while let Some(chunk) = walk.next().await? {
            for judged in chunk {
                let sink = match judged.sink {
                    Some(id) => Some(self.catalog().sink(id).await?),
                    None => None,
                };
                // What lies in the folder of a sink that is not dropped, its own verification tells.
                if sink.as_ref().is_some_and(|sink| sink.dropped.is_none()) {
                    continue;
                }
                let (name, sink) = (judged.name(), sink.map(|sink| sink.spec.name.to_string()));
                let what = match (judged.class, sink) {
                    (Class::Own | Class::Queued(_) | Class::Gone | Class::Uploading, _) => continue,
                    (Class::Foreign(Stranger::UnknownShard), _) => {
                        format!("{name} is of a shard this catalog does not know")
                    }
                    (Class::Foreign(Stranger::NotOfStash), None) => {
                        format!("{name} was not written by Stash")
                    }
                    (Class::Foreign(_), Some(sink)) => {
                        format!("{name} is in the folder of sink {sink}, which was dropped")
                    }
                    (_, Some(sink)) => {
                        format!(
                            "{name} is left of sink {sink}, which was dropped; sweep it, or drop it once more"
                        )
                    }
                    (_, None) => format!("{name} was left over"),
                };
                strays.push(Violation::of(invariants::Invariant::I17, what));
            }
        }
        Ok(strays)
    }
}

impl Sink {
    /// The linked batches of the chain, in order.
    pub async fn batches(&self) -> Result<Vec<BatchRow>> {
        /// Rows that are read from the catalog at once.
        const ROWS_A_READ: u32 = 1000;
        let mut all: Vec<BatchRow> = Vec::new();
        let mut from = Frontier::MIN;
        loop {
            let slice = self.stash().catalog().chain(self.id(), from, ROWS_A_READ).await?;
            let last = slice.batches.last().map(|batch| batch.extent);
            all.extend(slice.batches);
            match last {
                Some(extent) if extent > from && extent < slice.head.upper => from = extent,
                _ => return Ok(all),
            }
        }
    }

    /// What was recorded of the sink, oldest first.
    pub async fn history(&self, limit: u32) -> Result<Vec<HistoryRow>> {
        let filter = HistoryFilter { sink: Some(self.id()), limit, ..HistoryFilter::default() };
        Ok(self.stash().catalog().history(filter).await?)
    }
}
