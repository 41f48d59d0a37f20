//! Durable local files.
//!
//! A key is a path below the root. A PUT writes a temp file beside its final name, syncs it, *links* it
//! under the key (a link never replaces anything, so the PUT is create-only by construction), removes the
//! temp name and syncs every folder up to the root. After `Ok` the object survives a power loss, as far as
//! the disk keeps what it acknowledged.
//!
//! What each crash leaves:
//!
//! | the process dies | a listing shows |
//! |---|---|
//! | before the temp | nothing; empty folders, which go when the store is opened next |
//! | before the link | the temp, as [`BlobEntryKind::Upload`](crate::BlobEntryKind::Upload) of its key |
//! | between the link and the removal of the temp | the object and the upload, two names of one file |
//! | after that | the object |
//!
//! - *Cancelling* a call does not stop it: the system calls run on the blocking pool and finish there, so
//!   the effect is whole or was cleaned up, just unknown to the caller.
//! - *Exists* is answered only after the folders were synced: the one who made the object may have died
//!   before it did, or be this caller's own earlier try.
//! - *Symbolic links* are followed nowhere below the root; one in a key's path is an error that names it.
//! - *Empty folders* go with their last object ([`folder`]); so a key is no folder and a folder no key.
//! - Deletes are durable, with one sync of each folder for a whole call.
//!
//! It does not lock: any number of processes of one machine may use one root. It is not meant for network
//! file systems, which answer a repeated link differently.

mod failure;
mod folder;
mod temp;
mod walk;

use std::{
    collections::BTreeMap, fmt, fs::File, io::Write, ops::Range, os::unix::fs::FileExt, path::Path, sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream, stream::BoxStream};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, linkat, openat, unlinkat},
    io::{Errno, retry_on_intr},
};
use stash_types::{BlobKey, BlobPrefix, fault};

use self::{
    failure::{Failure, errno_of},
    folder::{Chain, Root, TRIES_MAX},
    walk::Walk,
};
use crate::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome, store::look_by_listing};

/// Durable files below one folder of a local disk; see the module for what that promises.
#[derive(Clone)]
pub struct LocalStore {
    files: Arc<Files>,
}

struct Files {
    root: Root,
}

/// The points of a PUT or delete at which tests stop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    MakeFolder,
    MakeTemp,
    Write,
    SyncFile,
    Link,
    RemoveTemp,
    SyncFolder,
}

impl LocalStore {
    /// Opens the store at `root`, creating the folder when absent.
    ///
    /// Blocks for a few system calls. Errors are `Determinate` and name the path.
    pub fn open(root: &Path) -> Result<LocalStore, BlobError> {
        let path = root;
        let root =
            Root::open(root).map_err(|failure| failure.determinate("open", &root.display().to_string()))?;
        remove_overtaken_temps(path);
        remove_empty_folders(path, &root);
        Ok(LocalStore { files: Arc::new(Files { root }) })
    }

    /// Opens the store at `root` only to look at it: neither is the folder created nor anything cleared away.
    pub fn open_to_look(root: &Path) -> Result<LocalStore, BlobError> {
        let (op, key) = ("open", root.display().to_string());
        if !root.is_dir() {
            let what = "there is no such folder".to_owned();
            return Err(BlobError::Determinate { op, key, what, retry: false, source: None });
        }
        let root = Root::open(root).map_err(|failure| failure.determinate(op, &key))?;
        Ok(LocalStore { files: Arc::new(Files { root }) })
    }

    /// Runs `work` on the blocking pool; `None` if it panicked or the runtime is shutting down.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> T + Send + 'static,
    ) -> Option<T> {
        let files = Arc::clone(&self.files);
        tokio::task::spawn_blocking(move || work(&files)).await.ok()
    }
}

/// Removes temps at the top of the store whose object stands: a process died, or lost the race, while it
/// created the object. They lie in no shard, so that no sweep of a sink would ever find them.
fn remove_overtaken_temps(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let upload = name.to_str().and_then(|name| temp::parse_temp("", name));
        if let Some((key, _)) = upload
            && root.join(key.as_str()).is_file()
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            tracing::warn!(?name, %error, "a temp file stays behind; a listing shows it");
        }
    }
}

/// Removes folders that hold nothing, two levels deep: a process died between making them and its first file. No
/// listing shows a folder, so nobody else would ever find them.
fn remove_empty_folders(path: &Path, root: &Root) {
    let folders_in = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        // A name that no key can have is somebody else's.
        let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.parse::<BlobKey>().is_ok()).collect()
    };
    let is_empty = |path: &Path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let mut empty = Vec::new();
    for outer in folders_in(path) {
        let inner = folders_in(&path.join(&outer)).into_iter().map(|inner| format!("{outer}/{inner}"));
        empty.extend(inner.chain([outer.clone()]).filter(|folder| is_empty(&path.join(folder))));
    }
    for folder in empty {
        // A writer that is about to use it makes it again.
        let pruned = root.descend(&folder).and_then(|chain| match chain.whole {
            true => chain.sync_and_prune(),
            false => Ok(()),
        });
        if let Err(failure) = pruned {
            tracing::warn!(folder, errno = %failure.errno, "an empty folder stays behind");
        }
    }
}

impl fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalStore").field(&self.files.root.path("")).finish()
    }
}

#[async_trait]
impl BlobStore for LocalStore {
    fn location(&self) -> String {
        let path = self.files.root.path("").display().to_string();
        path.trim_end_matches('/').to_owned()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let owned = key.clone();
        let put = self.blocking(move |files| files.put(&owned, &chunks)).await;
        put.unwrap_or_else(|| Err(stopped_writing("put", key.as_str())))
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        let owned = key.clone();
        let read = self.blocking(move |files| files.read(&owned, Want::Range(range))).await;
        read.unwrap_or_else(|| Err(stopped_reading("get", key.as_str())))
    }

    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        let owned = key.clone();
        let read = self.blocking(move |files| files.read(&owned, Want::Whole { len_max })).await;
        read.unwrap_or_else(|| Err(stopped_reading("get", key.as_str())))
    }

    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        let owned = key.clone();
        let head = self.blocking(move |files| files.head(&owned)).await;
        head.unwrap_or_else(|| Err(stopped_reading("head", key.as_str())))
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        let owned = keys.to_vec();
        let outcomes = self.blocking(move |files| files.delete(&owned)).await;
        let outcomes = outcomes
            .unwrap_or_else(|| keys.iter().map(|key| Err(stopped_writing("delete", key.as_str()))).collect());
        keys.iter().zip(outcomes).map(|(key, outcome)| Deleted { key: key.clone(), outcome }).collect()
    }

    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        let (owned, owned_token) = (key.clone(), token.to_owned());
        let abort = self.blocking(move |files| files.abort(&owned, &owned_token)).await;
        abort.unwrap_or_else(|| Err(stopped_writing("abort upload", key.as_str())))
    }

    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        let folder = prefix.to_string();
        let name = if folder.is_empty() { "/".to_owned() } else { folder.clone() };
        let batches = stream::unfold(Some(Walk::new(folder)), move |walk| {
            let (store, name) = (self.clone(), name.clone());
            async move {
                let mut walk = walk?;
                let step = store.blocking(move |files| (walk.step(&files.root), walk)).await;
                match step {
                    Some((Ok(Some(batch)), walk)) => Some((batch.into_iter().map(Ok).collect(), Some(walk))),
                    Some((Ok(None), _)) => None,
                    Some((Err(failure), _)) => Some((vec![Err(failure.determinate("list", &name))], None)),
                    None => Some((vec![Err(stopped_reading("list", &name))], None)),
                }
            }
        });
        // Who reads in chunks asks once more at the end.
        batches.flat_map(|batch: Vec<_>| stream::iter(batch)).fuse().boxed()
    }

    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        if entries.iter().any(|kind| kind.key().is_none()) {
            return look_by_listing(|folder| self.list(folder), entries).await;
        }
        let owned = entries.to_vec();
        let lens = self.blocking(move |files| owned.iter().map(|kind| files.len_of(kind)).collect()).await;
        lens.unwrap_or_else(|| Err(stopped_reading("look again", &self.location())))
    }
}

/// What to read of an object.
enum Want {
    Range(Range<u64>),
    Whole { len_max: u64 },
}

impl Files {
    fn put(&self, key: &BlobKey, chunks: &[Bytes]) -> Result<PutOutcome, BlobError> {
        let surely_not = |failure: Failure| failure.determinate("put", key.as_str());
        let (folder, file) = split(key);
        let (chain, mut temp) = match self.begin(folder, file).map_err(surely_not)? {
            Begun::Temp(chain, temp) => (chain, temp),
            Begun::Taken(chain) => {
                chain.sync().map_err(surely_not)?;
                return Ok(PutOutcome::Exists);
            }
        };
        match self.fill_and_link(&chain, file, &mut temp, chunks) {
            Ok(true) => {
                self.remove_temp(&chain, &temp.name);
                self.sync(&chain).map_err(|failure| failure.indeterminate("put", key.as_str()))?;
                fault::place("blob.put_synced");
                Ok(PutOutcome::Created)
            }
            Ok(false) => {
                self.remove_temp(&chain, &temp.name);
                chain.sync().map_err(surely_not)?;
                Ok(PutOutcome::Exists)
            }
            Err(undone) => {
                self.remove_temp(&chain, &temp.name);
                if let Err(left) = chain.sync_and_prune() {
                    tracing::warn!(at = %left.at.display(), errno = %left.errno, "clean-up after a failed PUT");
                }
                Err(undone.error("put", key))
            }
        }
    }

    /// Opens the key's folder and a fresh temp file in it.
    fn begin<'a>(&'a self, folder: &'a str, file: &str) -> Result<Begun<'a>, Failure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES_MAX {
            let chain = self.root.create(folder)?;
            fault::place("blob.folders_made");
            match chain.stat(file)? {
                None => {}
                Some((FileType::RegularFile, _)) => return Ok(Begun::Taken(chain)),
                Some((kind, _)) => return Err(chain.failure(file, "creating", not_a_file(kind))),
            }
            self.root.probe(Step::MakeTemp).map_err(|errno| chain.failure("", "creating", errno))?;
            let name = temp::temp_name(file, &temp::next_token());
            match retry_on_intr(|| openat(chain.fd(), name.as_str(), flags, Mode::from_raw_mode(0o666))) {
                Ok(fd) => {
                    fault::place("blob.temp_created");
                    return Ok(Begun::Temp(chain, Temp { name, file: File::from(fd) }));
                }
                // EXIST: the temp of a dead process that had our number. NOENT: a delete removed the
                // folder since it was opened; see `folder`.
                Err(Errno::EXIST | Errno::NOENT) => {}
                Err(errno) => return Err(chain.failure(&name, "creating", errno)),
            }
        }
        Err(Failure { at: self.root.path(folder), doing: "creating a file in", errno: Errno::AGAIN })
    }

    /// Writes the temp file and links it under its key; `false` if the key is taken.
    fn fill_and_link(
        &self,
        chain: &Chain<'_>,
        file: &str,
        temp: &mut Temp,
        chunks: &[Bytes],
    ) -> Result<bool, Undone> {
        let name = temp.name.as_str();
        let surely = |doing, errno| Undone::Surely(chain.failure(name, doing, errno));
        self.root.probe(Step::Write).map_err(|errno| surely("writing", errno))?;
        for chunk in chunks {
            temp.file.write_all(chunk).map_err(|error| surely("writing", errno_of(&error)))?;
            fault::place("blob.chunk_written");
        }
        self.root.probe(Step::SyncFile).map_err(|errno| surely("syncing", errno))?;
        temp.file.sync_all().map_err(|error| surely("syncing", errno_of(&error)))?;
        fault::place("blob.temp_synced");
        let linked = self
            .root
            .probe(Step::Link)
            .and_then(|()| linkat(chain.fd(), name, chain.fd(), file, AtFlags::empty()));
        match linked {
            Ok(()) => {
                fault::place("blob.linked");
                Ok(true)
            }
            Err(Errno::EXIST) => match chain.stat(file).map_err(Undone::Surely)? {
                Some((kind, _)) if kind != FileType::RegularFile => {
                    Err(Undone::Surely(chain.failure(file, "publishing", not_a_file(kind))))
                }
                _ => Ok(false),
            },
            // NOENT among them: somebody aborted this very upload, having judged its writer dead.
            Err(errno) => Err(Undone::of(chain.failure(name, "publishing", errno))),
        }
    }

    fn remove_temp(&self, chain: &Chain<'_>, name: &str) {
        let removed =
            self.root.probe(Step::RemoveTemp).and_then(|()| unlinkat(chain.fd(), name, AtFlags::empty()));
        match removed {
            Ok(()) | Err(Errno::NOENT) => fault::place("blob.temp_removed"),
            Err(errno) => tracing::warn!(name, %errno, "a temp file stays behind; a listing shows it"),
        }
    }

    fn sync(&self, chain: &Chain<'_>) -> Result<(), Failure> {
        self.root.probe(Step::SyncFolder).map_err(|errno| chain.failure("", "syncing", errno))?;
        chain.sync()
    }

    fn open_file(&self, op: &'static str, key: &BlobKey) -> Result<File, BlobError> {
        let (folder, name) = split(key);
        let fail = |failure: Failure| failure.determinate(op, key.as_str());
        let chain = self.root.descend(folder).map_err(fail)?;
        let absent = || BlobError::NotFound { op, key: key.to_string() };
        if !chain.whole {
            return Err(absent());
        }
        // NONBLOCK: opening a pipe somebody put here must not hang.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match retry_on_intr(|| openat(chain.fd(), name, flags, Mode::empty())) {
            Ok(fd) => Ok(File::from(fd)),
            Err(Errno::NOENT) => Err(absent()),
            Err(errno) => Err(fail(chain.failure(name, "opening", errno))),
        }
    }

    fn read(&self, key: &BlobKey, want: Want) -> Result<Bytes, BlobError> {
        let file = self.open_file("get", key)?;
        let at = || self.root.path(key.as_str());
        let fail = |error: std::io::Error| {
            Failure { at: at(), doing: "reading", errno: errno_of(&error) }.determinate("get", key.as_str())
        };
        let refuse = |what: String| BlobError::Determinate {
            op: "get",
            key: key.to_string(),
            what,
            retry: false,
            source: None,
        };
        let metadata = file.metadata().map_err(fail)?;
        if !metadata.is_file() {
            return Err(refuse(format!("{} is no regular file: move it away", at().display())));
        }
        let range = match want {
            Want::Whole { len_max } if metadata.len() > len_max => {
                return Err(refuse(format!(
                    "it has {} bytes, more than the {len_max} allowed",
                    metadata.len()
                )));
            }
            Want::Whole { .. } => 0..metadata.len(),
            Want::Range(range) => range,
        };
        if range.start > range.end || range.end > metadata.len() {
            let what = format!("bytes {}..{} of an object of {}", range.start, range.end, metadata.len());
            return Err(refuse(what));
        }
        let mut bytes = Vec::new();
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        if bytes.try_reserve_exact(len).is_err() {
            return Err(refuse(format!("no memory for {len} bytes: read smaller ranges")));
        }
        bytes.resize(len, 0);
        file.read_exact_at(&mut bytes, range.start).map_err(fail)?;
        Ok(bytes.into())
    }

    fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        self.stat(key, split(key).1).map_err(|failure| failure.determinate("head", key.as_str()))
    }

    /// The length of an object or upload that a listing showed. What has another thing in its place, as a folder or a
    /// link, is not there: a listing shows that as what it is.
    fn len_of(&self, kind: &BlobEntryKind) -> Result<Option<u64>, BlobError> {
        let (key, stat) = match kind {
            BlobEntryKind::Object(key) => (key, self.stat(key, split(key).1)),
            BlobEntryKind::Upload { key, token } if temp::is_token(token) => {
                (key, self.stat(key, &temp::temp_name(split(key).1, token)))
            }
            // No listing of this store shows such an upload, and what is foreign has no path of ours.
            BlobEntryKind::Upload { .. } | BlobEntryKind::Foreign(_) => return Ok(None),
        };
        match stat {
            Err(Failure { errno: Errno::ISDIR | Errno::NOTDIR | Errno::LOOP | Errno::NOSTR, .. }) => Ok(None),
            stat => stat.map_err(|failure| failure.determinate("look again", key.as_str())),
        }
    }

    /// The length of the regular file of this name in the folder of `key`, if there is one.
    fn stat(&self, key: &BlobKey, file: &str) -> Result<Option<u64>, Failure> {
        let chain = self.root.descend(split(key).0)?;
        if !chain.whole {
            return Ok(None);
        }
        match chain.stat(file)? {
            None => Ok(None),
            Some((FileType::RegularFile, len)) => Ok(Some(len)),
            Some((kind, _)) => Err(chain.failure(file, "looking at", not_a_file(kind))),
        }
    }

    fn delete(&self, keys: &[BlobKey]) -> Vec<Result<bool, BlobError>> {
        let mut folders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, key) in keys.iter().enumerate() {
            folders.entry(split(key).0).or_default().push(index);
        }
        let mut outcomes: Vec<(usize, Result<bool, BlobError>)> = Vec::with_capacity(keys.len());
        for (folder, indexes) in folders {
            let files: Vec<&BlobKey> = indexes.iter().filter_map(|&index| keys.get(index)).collect();
            let names: Vec<&str> = files.iter().map(|key| split(key).1).collect();
            let results =
                self.remove(folder, &names).into_iter().zip(files).map(|(result, key)| match result {
                    Ok(there) => Ok(there),
                    Err(undone) => Err(undone.error("delete", key)),
                });
            outcomes.extend(indexes.iter().copied().zip(results));
        }
        outcomes.sort_by_key(|(index, _)| *index);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn abort(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        if !temp::is_token(token) {
            return Err(BlobError::Determinate {
                op: "abort upload",
                key: key.to_string(),
                what: format!("{token:?} is no upload's token: pass the one a listing showed"),
                retry: false,
                source: None,
            });
        }
        let (folder, file) = split(key);
        let name = temp::temp_name(file, token);
        for result in self.remove(folder, &[&name]) {
            result.map_err(|undone| undone.error("abort upload", key))?;
        }
        Ok(())
    }

    /// Removes `names` from `folder` with one sync, and the folder too once it is empty. One result per
    /// name: whether it was there.
    fn remove(&self, folder: &str, names: &[&str]) -> Vec<Result<bool, Undone>> {
        let all = |at: &Failure, wrap: fn(Failure) -> Undone| -> Vec<Result<bool, Undone>> {
            let copy = || Failure { at: at.at.clone(), doing: at.doing, errno: at.errno };
            names.iter().map(|_| Err(wrap(copy()))).collect()
        };
        let chain = match self.root.descend(folder) {
            Ok(chain) => chain,
            Err(failure) => return all(&failure, Undone::Surely),
        };
        if !chain.whole {
            // SUBTLE: whoever removed the folder synced it first, so what was in it is durably gone.
            return names.iter().map(|_| Ok(false)).collect();
        }
        let mut results: Vec<Result<bool, Undone>> = Vec::with_capacity(names.len());
        for name in names {
            results.push(match unlinkat(chain.fd(), *name, AtFlags::empty()) {
                Ok(()) => Ok(true),
                Err(Errno::NOENT) => Ok(false),
                Err(errno) => Err(Undone::of(chain.failure(name, "deleting", errno))),
            });
        }
        fault::place("blob.unlinked");
        // SUBTLE: also when nothing was there: an earlier try may have unlinked and failed to sync.
        let synced = self
            .root
            .probe(Step::SyncFolder)
            .map_err(|errno| chain.failure("", "syncing", errno))
            .and_then(|()| chain.sync_and_prune());
        match synced {
            Ok(()) => results,
            Err(failure) => all(&failure, Undone::Perhaps),
        }
    }
}

enum Begun<'a> {
    /// The folders, and a temp file that pins them.
    Temp(Chain<'a>, Temp),
    /// There is an object under the key.
    Taken(Chain<'a>),
}

struct Temp {
    name: String,
    file: File,
}

/// A change that was refused.
enum Undone {
    /// It surely did not happen.
    Surely(Failure),
    /// It may have.
    Perhaps(Failure),
}

impl Undone {
    /// SUBTLE: a disk that reports an error in the middle of a change of a folder may have made it.
    fn of(failure: Failure) -> Undone {
        if failure.errno == Errno::IO { Undone::Perhaps(failure) } else { Undone::Surely(failure) }
    }

    fn error(self, op: &'static str, key: &BlobKey) -> BlobError {
        match self {
            Undone::Surely(failure) => failure.determinate(op, key.as_str()),
            Undone::Perhaps(failure) => failure.indeterminate(op, key.as_str()),
        }
    }
}

/// A key's folder (no closing slash, empty for the root) and file name.
fn split(key: &BlobKey) -> (&str, &str) {
    key.as_str().rsplit_once('/').unwrap_or(("", key.as_str()))
}

fn not_a_file(kind: FileType) -> Errno {
    match kind {
        FileType::Directory => Errno::ISDIR,
        FileType::Symlink => Errno::LOOP,
        _ => Errno::NOSTR,
    }
}

fn stopped_writing(op: &'static str, key: &str) -> BlobError {
    let what = "the work was stopped by a panic or by the end of the runtime".to_owned();
    BlobError::Indeterminate { op, key: key.to_owned(), what, source: None }
}

fn stopped_reading(op: &'static str, key: &str) -> BlobError {
    let what = "the work was stopped by a panic or by the end of the runtime".to_owned();
    BlobError::Determinate { op, key: key.to_owned(), what, retry: false, source: None }
}

#[cfg(test)]
mod tests;
