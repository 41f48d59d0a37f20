//! The simulated store: objects that all processes share, and each process's own way to them.
//!
//! - A PUT that is on its way shows in listings as an unpublished upload. One that died on its way stays there until it
//!   is aborted; one whose upload was aborted never lands.
//! - A listing leaves out some of what was created while it ran, and shows some of what was deleted; what was there
//!   the whole time it always shows.
//! - Checked at the moment of each effect: I15 (no referenced key is deleted), I19 (a key is not written twice: the same
//!   upload, tried again, has the same writer and the same bytes), I23 (a process writes below the shard of the sink
//!   that it renders, and a delete takes keys of a known shard).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use stash_blob::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome};
use stash_types::{BlobKey, BlobPrefix, Digest, PartKey};

use crate::chance::{Concern, count};
use crate::life::Life;
use crate::world::{Call, Carried, World, lock, pause};

/// What the store holds.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<BlobKey, Stored>,
    uploads: BTreeMap<(BlobKey, u64), u64>,
    written: BTreeMap<BlobKey, (Digest, String)>,
    next_upload: u64,
}

#[derive(Clone, Debug)]
struct Stored {
    bytes: Bytes,
    digest: Digest,
}

impl StoreState {
    /// The keys of all parts, with their digests.
    pub(crate) fn parts(&self) -> BTreeMap<PartKey, Digest> {
        let state = lock(&self.state);
        state.objects.iter().filter_map(|(key, stored)| Some((key.part_key()?, stored.digest))).collect()
    }

    /// The digest of an object.
    pub(crate) fn digest(&self, key: &BlobKey) -> Option<Digest> {
        lock(&self.state).objects.get(key).map(|stored| stored.digest)
    }

    /// The names of unpublished uploads.
    pub(crate) fn uploads(&self) -> Vec<String> {
        lock(&self.state).uploads.keys().map(|(key, token)| format!("{key} (upload {token})")).collect()
    }

    /// All names but those of parts.
    pub(crate) fn others(&self) -> BTreeSet<String> {
        let state = lock(&self.state);
        state.objects.keys().filter(|key| key.part_key().is_none()).map(ToString::to_string).collect()
    }

    fn begin_upload(&self, key: &BlobKey, len: u64) -> u64 {
        let mut state = lock(&self.state);
        let token = state.next_upload;
        state.next_upload += 1;
        state.uploads.insert((key.clone(), token), len);
        token
    }

    fn end_upload(&self, key: &BlobKey, token: u64) -> bool {
        lock(&self.state).uploads.remove(&(key.clone(), token)).is_some()
    }
}

/// What a PUT came to at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Landed {
    Created,
    Exists,
    /// Its upload was aborted meanwhile.
    Aborted,
}

/// The way of one process to the store.
#[derive(Debug)]
pub(crate) struct StoreLink {
    world: Arc<World>,
    life: Arc<Life>,
}

/// An upload that is on its way. Left behind by a dead process, it stays.
struct Upload {
    key: BlobKey,
    token: u64,
}

impl StoreLink {
    /// The way of this process.
    pub(crate) fn new(world: &Arc<World>, life: &Arc<Life>) -> StoreLink {
        StoreLink { world: Arc::clone(world), life: Arc::clone(life) }
    }

    fn refused(&self, op: &'static str, key: impl ToString) -> BlobError {
        let what = "the simulated store refused".to_owned();
        BlobError::Determinate { op, key: key.to_string(), what, retry: true, source: None }
    }

    fn unknown(&self, op: &'static str, key: impl ToString) -> BlobError {
        let what = "the simulated store did not answer".to_owned();
        BlobError::Indeterminate { op, key: key.to_string(), what, source: None }
    }

    async fn read<T: Send + 'static>(
        &self,
        op: &'static str,
        key: &BlobKey,
        read: impl FnOnce(&State) -> Result<T, BlobError> + Send + 'static,
    ) -> Result<T, BlobError> {
        let world = Arc::clone(&self.world);
        let effect = async move { read(&lock(&world.store.state)) };
        match self.world.carry(&self.life, Call::Store(op), short(key), effect).await {
            Carried::Done(answer) => answer,
            Carried::Refused | Carried::Unknown | Carried::Late => Err(self.refused(op, key)),
        }
    }
}

/// A key without what is the same in all of them.
pub(crate) fn short(key: &BlobKey) -> String {
    match key.part_key() {
        Some(part) => short_part(&part),
        None => key.to_string(),
    }
}

/// The same for a part.
pub(crate) fn short_part(key: &PartKey) -> String {
    let name = key.name;
    format!("{}/{}/{}-{}", short_id(name.incarnation), name.description, name.process, name.n)
}

/// The beginning and the end of an id: the ids of a run differ there.
pub(crate) fn short_id(id: impl ToString) -> String {
    let id = id.to_string();
    let head: String = id.chars().take(1).collect();
    let bare: String = id.chars().skip(1).filter(|c| *c != '-').take(12).collect();
    format!("{head}{}", bare.trim_start_matches('0'))
}

fn land(world: &World, who: &str, upload: &Upload, bytes: Bytes) -> Landed {
    let Upload { key, token, .. } = upload;
    let digest = Digest::of(&bytes);
    if !world.store.end_upload(key, *token) {
        return Landed::Aborted;
    }
    let checked = {
        let mut state = lock(&world.store.state);
        if state.objects.contains_key(key) {
            return Landed::Exists;
        }
        // The same upload may land late, after it was tried again and its object deleted: it has the same writer and
        // the same bytes. Whoever else comes under the key has written it twice.
        let before = state.written.insert(key.clone(), (digest, who.to_owned()));
        state.objects.insert(key.clone(), Stored { bytes, digest });
        let again = before.filter(|before| *before != (digest, who.to_owned()) && key.part_key().is_some());
        stash_chain::invariants::i19_fresh_keys([Some(key), again.map(|_| key)].into_iter().flatten())
    };
    world.check(who, checked);
    Landed::Created
}

#[async_trait]
impl BlobStore for StoreLink {
    fn location(&self) -> String {
        "sim://store".to_owned()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let bytes: Bytes = chunks.concat().into();
        self.world.watch.put(&self.world, self.life.name(), key);
        let token = self.world.store.begin_upload(key, count(bytes.len()));
        let upload = Upload { key: key.clone(), token };
        let (world, who) = (Arc::clone(&self.world), self.life.name().to_owned());
        let effect = async move {
            let landed = land(&world, &who, &upload, bytes);
            world.say(&who, format!("put {} {landed:?}", short(&upload.key)));
            landed
        };
        let carried = self.world.carry(&self.life, Call::Put, short(key), effect).await;
        if !matches!(carried, Carried::Late) {
            // Who lives clears away what its PUT left. The upload of a dead one stays, and so does one on its way.
            self.world.store.end_upload(key, token);
        }
        match carried {
            Carried::Done(Landed::Created) => Ok(PutOutcome::Created),
            Carried::Done(Landed::Exists) => Ok(PutOutcome::Exists),
            Carried::Done(Landed::Aborted) | Carried::Unknown | Carried::Late => {
                Err(self.unknown("put", key))
            }
            Carried::Refused => Err(self.refused("put", key)),
        }
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        let wanted = key.clone();
        self.read("get", key, move |state| slice(state, &wanted, Some(range))).await
    }

    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        let wanted = key.clone();
        let bytes = self.read("get", key, move |state| slice(state, &wanted, None)).await?;
        if count(bytes.len()) > len_max {
            let what = format!("has {} bytes, at most {len_max} were wanted", bytes.len());
            let key = key.to_string();
            return Err(BlobError::Determinate { op: "get", key, what, retry: false, source: None });
        }
        Ok(bytes)
    }

    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        let wanted = key.clone();
        let len = move |state: &State| Ok(state.objects.get(&wanted).map(|stored| count(stored.bytes.len())));
        self.read("head", key, len).await
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        let (world, who, wanted) = (Arc::clone(&self.world), self.life.name().to_owned(), keys.to_vec());
        let effect = async move {
            let mut answers = Vec::new();
            for key in wanted {
                // Per key, as stores do: some of a bulk delete fail, some of these happened.
                let fails =
                    world.is_faulty() && world.chance(Concern::Store).per_mille(world.schedule.rates.refused);
                let happens = !fails || world.chance(Concern::Store).per_mille(500);
                let mut there = false;
                if happens {
                    there = lock(&world.store.state).objects.remove(&key).is_some();
                    if there {
                        world.say(&who, format!("deleted {}", short(&key)));
                    }
                    world.watch.deleted(&world, &who, &key).await;
                }
                if fails {
                    world.fault(&who, "delete fails", short(&key));
                }
                answers.push((key, fails, there));
            }
            answers
        };
        let carried =
            self.world.carry(&self.life, Call::Store("delete"), format!("{} keys", keys.len()), effect);
        match carried.await {
            Carried::Done(answers) => answers
                .into_iter()
                .map(|(key, fails, there)| {
                    let outcome = if fails { Err(self.unknown("delete", &key)) } else { Ok(there) };
                    Deleted { key, outcome }
                })
                .collect(),
            Carried::Refused => self.all_fail(keys, |key| self.refused("delete", key)),
            Carried::Unknown | Carried::Late => self.all_fail(keys, |key| self.unknown("delete", key)),
        }
    }

    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        let (world, wanted) = (Arc::clone(&self.world), key.clone());
        let (who, token) = (self.life.name().to_owned(), token.parse().unwrap_or(u64::MAX));
        let effect = async move {
            if world.store.end_upload(&wanted, token) {
                world.say(&who, format!("aborted upload {token} of {}", short(&wanted)));
            }
        };
        match self.world.carry(&self.life, Call::Store("abort upload"), short(key), effect).await {
            Carried::Done(()) => Ok(()),
            Carried::Refused => Err(self.refused("abort upload", key)),
            Carried::Unknown | Carried::Late => Err(self.unknown("abort upload", key)),
        }
    }

    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        let listing = async move {
            let (world, life) = (Arc::clone(&self.world), Arc::clone(&self.life));
            let effect = async move { (listed(&world, life.name(), prefix).await, life) };
            match self.world.carry(&self.life, Call::Store("list"), "", effect).await {
                Carried::Done((entries, life)) => {
                    self.world.watch.listed(life.name(), &entries);
                    entries.into_iter().map(Ok).collect()
                }
                Carried::Refused | Carried::Unknown | Carried::Late => {
                    vec![Err(self.refused("list", prefix))]
                }
            }
        };
        stream::once(listing).flat_map(stream::iter).boxed()
    }
}

impl StoreLink {
    fn all_fail(&self, keys: &[BlobKey], error: impl Fn(&BlobKey) -> BlobError) -> Vec<Deleted> {
        keys.iter().map(|key| Deleted { key: key.clone(), outcome: Err(error(key)) }).collect()
    }
}

fn slice(state: &State, key: &BlobKey, range: Option<Range<u64>>) -> Result<Bytes, BlobError> {
    let Some(Stored { bytes, .. }) = state.objects.get(key) else {
        return Err(BlobError::NotFound { op: "get", key: key.to_string() });
    };
    let Some(Range { start, end }) = range else { return Ok(bytes.clone()) };
    let bounds = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    match bounds.filter(|(start, end)| start <= end && *end <= bytes.len()) {
        Some((start, end)) => Ok(bytes.slice(start..end)),
        None => {
            let what = format!("has {} bytes, {start} to {end} were wanted", bytes.len());
            Err(BlobError::Determinate { op: "get", key: key.to_string(), what, retry: false, source: None })
        }
    }
}

/// A listing, page by page, while others go on.
async fn listed(world: &World, who: &str, prefix: BlobPrefix) -> Vec<BlobEntry> {
    /// Entries a page.
    const PAGE: usize = 5;
    let below = prefix.to_string();
    let snapshot = || {
        let state = lock(&world.store.state);
        let objects =
            state.objects.iter().filter(|(key, _)| key.as_str().starts_with(&below)).map(|(key, stored)| {
                BlobEntry { kind: BlobEntryKind::Object(key.clone()), len: count(stored.bytes.len()) }
            });
        let uploads = state.uploads.iter().filter(|((key, _), _)| key.as_str().starts_with(&below)).map(
            |((key, token), len)| BlobEntry {
                kind: BlobEntryKind::Upload { key: key.clone(), token: token.to_string() },
                len: *len,
            },
        );
        objects.chain(uploads).collect::<Vec<_>>()
    };
    let before = snapshot();
    if !world.is_faulty() {
        return before;
    }
    for _ in before.chunks(PAGE) {
        let takes = world.chance(Concern::Store).below(world.schedule.call_ms);
        pause(takes).await;
    }
    let after = snapshot();
    let mut entries = Vec::new();
    for entry in &before {
        if after.contains(entry) || world.chance(Concern::Store).per_mille(500) {
            entries.push(entry.clone());
        }
    }
    for entry in after {
        if !before.contains(&entry) {
            if world.chance(Concern::Store).per_mille(500) {
                entries.push(entry);
            } else {
                world.fault(who, "listing leaves out", format!("{:?}", entry.kind));
            }
        }
    }
    entries
}
