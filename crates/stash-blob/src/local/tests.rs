//! What only local files can show: what a dead process leaves, what a full disk does, links and folders.

use std::{
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::PathBuf,
    process::Command,
    sync::Mutex,
};

use futures::{FutureExt, TryStreamExt};
use tempfile::TempDir;

use super::*;
use crate::{BlobEntryKind, suite::Subject};

/// Disturbs a PUT or delete at a step.
#[derive(Default)]
pub(super) struct Probe(Mutex<Option<Disturb>>);

type Disturb = Box<dyn FnMut(Step) -> Result<(), Errno> + Send>;

#[derive(Clone, Copy)]
enum Stop {
    /// The disk refuses.
    Refuse(Errno),
    /// The process dies.
    Die,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probe")
    }
}

impl Probe {
    pub(super) fn pass(&self, step: Step) -> Result<(), Errno> {
        let mut disturb = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        disturb.as_mut().map_or(Ok(()), |disturb| disturb(step))
    }
}

const STEPS: [Step; 7] = [
    Step::MakeFolder,
    Step::MakeTemp,
    Step::Write,
    Step::SyncFile,
    Step::Link,
    Step::RemoveTemp,
    Step::SyncFolder,
];

fn fresh() -> (TempDir, LocalStore) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = LocalStore::open(folder.path()).expect("a store");
    (folder, store)
}

/// Another process's view of the same files, disturbed at each step.
fn disturbed(folder: &Path, disturb: impl FnMut(Step) -> Result<(), Errno> + Send + 'static) -> LocalStore {
    let store = LocalStore::open(folder).expect("a store");
    *store.files.root.probe.0.lock().expect("unpoisoned") = Some(Box::new(disturb));
    store
}

/// Another process's view of the same files, which stops at `step`.
fn stopping(folder: &Path, step: Step, stop: Stop) -> LocalStore {
    disturbed(folder, move |at| match stop {
        Stop::Refuse(errno) if at == step => Err(errno),
        // Unwinds past all clean-up and without a message: what a kill leaves on the disk.
        Stop::Die if at == step => std::panic::resume_unwind(Box::new("died")),
        _ => Ok(()),
    })
}

fn key(n: u32) -> BlobKey {
    key_in("s00000000-0000-5000-8000-000000000001/i00000000-0000-7000-8000-000000000001", n)
}

fn key_in(folder: &str, n: u32) -> BlobKey {
    format!("{folder}/0000000000000001-0000000000000002-0-{n}.parquet").parse().expect("a key")
}

fn chunk(text: &'static str) -> Vec<Bytes> {
    vec![Bytes::from_static(text.as_bytes())]
}

async fn listing(store: &LocalStore) -> Vec<BlobEntryKind> {
    let entries: Vec<BlobEntry> = store.list(BlobPrefix::All).try_collect().await.expect("a listing");
    entries.into_iter().map(|entry| entry.kind).collect()
}

fn entries_of(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

mod conforms {
    use super::*;

    fn subject() -> Subject {
        let (folder, store) = fresh();
        let path = folder.path().to_owned();
        let leave = move |key: BlobKey, bytes: Bytes| {
            let dying = stopping(&path, Step::Link, Stop::Die);
            async move {
                dying.put_new(&key, vec![bytes]).await.expect_err("dies");
                let shown = listing(&dying).await;
                let token = shown.into_iter().find_map(|kind| match kind {
                    BlobEntryKind::Upload { key: found, token } if found == key => Some(token),
                    _ => None,
                });
                token.expect("the upload is listed")
            }
            .boxed()
        };
        Subject::new(Arc::new(store)).with_uploads(Box::new(leave)).keeping(folder)
    }

    crate::blob_suite!(subject());

    #[tokio::test]
    async fn every_behaviour_is_listed_by_name() {
        assert!(crate::suite::uploads_are_checked(&subject()));
        for (name, behaviour) in crate::suite::BEHAVIOURS {
            if name.contains("upload") || name.contains("range") {
                behaviour(&subject()).await;
            }
        }
        assert!(crate::suite::BEHAVIOURS.len() >= 16);
    }
}

#[tokio::test]
async fn a_process_that_dies_in_a_put_leaves_what_a_listing_shows() {
    for step in STEPS {
        let (folder, store) = fresh();
        let put = stopping(folder.path(), step, Stop::Die).put_new(&key(1), chunk("whole")).await;
        assert!(matches!(put, Err(BlobError::Indeterminate { .. })), "{step:?}: {put:?}");
        let (mut objects, mut uploads) = (0, Vec::new());
        for kind in listing(&store).await {
            match kind {
                BlobEntryKind::Object(found) if found == key(1) => objects += 1,
                BlobEntryKind::Upload { key: found, token } if found == key(1) => uploads.push(token),
                other => panic!("{step:?}: {other:?}"),
            }
        }
        let expected =
            (usize::from(step > Step::Link), usize::from(step >= Step::Write && step < Step::SyncFolder));
        assert_eq!((objects, uploads.len()), expected, "{step:?}");
        let again = store.put_new(&key(1), chunk("other")).await.expect("a PUT after the crash");
        assert_eq!(again == PutOutcome::Exists, objects == 1, "{step:?}");
        let bytes = store.get(&key(1), 10).await.expect("the object");
        assert_eq!(bytes, if objects == 1 { "whole" } else { "other" }, "{step:?}: never torn");
        for token in uploads {
            store.abort_upload(&key(1), &token).await.expect("an abort");
        }
        assert_eq!(listing(&store).await, [BlobEntryKind::Object(key(1))], "{step:?}");
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_leaves_nothing() {
    for step in [Step::Write, Step::SyncFile, Step::Link] {
        let (folder, store) = fresh();
        let full = stopping(folder.path(), step, Stop::Refuse(Errno::NOSPC));
        let error = full.put_new(&key(1), chunk("x")).await.expect_err("full");
        assert!(matches!(error, BlobError::Determinate { retry: false, .. }), "{step:?}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("disk full") && text.contains(&*folder.path().to_string_lossy()), "{text}");
        assert_eq!(listing(&store).await, [], "{step:?}");
        assert_eq!(entries_of(folder.path()), [] as [PathBuf; 0], "{step:?}: the folders are gone too");
    }
}

#[tokio::test]
async fn a_disk_error_after_which_the_object_may_be_there_is_indeterminate() {
    for step in [Step::Link, Step::SyncFolder] {
        let (folder, store) = fresh();
        let failing = stopping(folder.path(), step, Stop::Refuse(Errno::IO));
        let put = failing.put_new(&key(1), chunk("x")).await;
        assert!(matches!(put, Err(BlobError::Indeterminate { .. })), "{step:?}: {put:?}");
        let again = store.put_new(&key(1), chunk("x")).await.expect("a PUT");
        assert_eq!(again == PutOutcome::Exists, step == Step::SyncFolder, "{step:?}");
    }
}

#[tokio::test]
async fn a_temp_that_cannot_be_removed_spoils_no_put_and_stays_listed() {
    let (folder, store) = fresh();
    let failing = stopping(folder.path(), Step::RemoveTemp, Stop::Refuse(Errno::PERM));
    assert_eq!(failing.put_new(&key(1), chunk("x")).await.expect("a PUT"), PutOutcome::Created);
    assert_eq!(listing(&store).await.len(), 2);
}

#[tokio::test]
async fn a_delete_that_cannot_be_made_durable_is_indeterminate_for_all_its_keys() {
    let (folder, store) = fresh();
    let keys = [key(1), key(2)];
    store.put_new(&keys[0], chunk("x")).await.expect("a PUT");
    let failing = stopping(folder.path(), Step::SyncFolder, Stop::Refuse(Errno::IO));
    for deleted in failing.delete(&keys).await {
        assert!(matches!(deleted.outcome, Err(BlobError::Indeterminate { .. })), "{deleted:?}");
    }
    for deleted in store.delete(&keys).await {
        assert!(matches!(deleted.outcome, Ok(false)), "{deleted:?}");
    }
}

#[tokio::test]
async fn a_real_full_disk_is_named_and_heals() {
    let Some((folder, _mounted)) = tiny_disk() else {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return;
    };
    let store = LocalStore::open(folder.path()).expect("a store");
    let big = vec![Bytes::from(vec![7; 300 << 10]); 3];
    let error = store.put_new(&key(1), big).await.expect_err("full");
    assert!(matches!(error, BlobError::Determinate { retry: false, .. }), "{error:?}");
    assert!(error.to_string().contains("disk full"), "{error}");
    assert_eq!(listing(&store).await, []);
    let fits = vec![Bytes::from(vec![7; 200 << 10])];
    assert_eq!(store.put_new(&key(1), fits).await.expect("space was given back"), PutOutcome::Created);
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, since the store's own descriptors close a moment later.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn tiny_disk() -> Option<(TempDir, Mounted)> {
    let folder = tempfile::tempdir().expect("a folder");
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(folder.path()).output();
    let mounted = mount.is_ok_and(|output| output.status.success());
    mounted.then(|| (Mounted(folder.path().to_owned()), folder)).map(|(mounted, folder)| (folder, mounted))
}

#[tokio::test]
async fn a_linked_folder_is_refused_by_every_operation() {
    let (folder, store) = fresh();
    let outside = tempfile::tempdir().expect("another folder");
    let (shard, _) =
        key(1).as_str().split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("folders");
    let inside = outside.path().join("i00000000-0000-7000-8000-000000000001");
    std::fs::create_dir(&inside).expect("a folder");
    let file = key(1).as_str().rsplit_once('/').map(|(_, file)| inside.join(file)).expect("a file name");
    std::fs::write(&file, "outside").expect("a file");
    symlink(outside.path(), folder.path().join(&shard)).expect("a link");

    let prefix = BlobPrefix::Shard(shard.parse().expect("a shard"));
    let errors = [
        store.put_new(&key(2), chunk("x")).await.map(drop),
        store.get(&key(1), 10).await.map(drop),
        store.head(&key(1)).await.map(drop),
        store.delete(&[key(1)]).await.remove(0).outcome.map(drop),
        store.abort_upload(&key(1), "1-1").await,
        store.list(prefix).try_collect::<Vec<_>>().await.map(drop),
    ];
    for error in errors {
        let error = error.expect_err("refused");
        assert!(matches!(error, BlobError::Determinate { retry: false, .. }), "{error:?}");
        assert!(error.to_string().contains(&*folder.path().join(&shard).to_string_lossy()), "{error}");
    }
    assert_eq!(entries_of(&inside), [file]);
    assert_eq!(listing(&store).await, [BlobEntryKind::Foreign(shard)]);
    let again = store.look_again(&[BlobEntryKind::Object(key(1))]).await.expect("looked");
    assert_eq!(again, [None], "no listing shows it");
}

#[tokio::test]
async fn what_has_another_thing_in_its_place_is_not_there_when_it_is_looked_for_again() {
    let (folder, store) = fresh();
    let keys: Vec<BlobKey> = (1..=5).map(key).collect();
    for one in &keys {
        store.put_new(one, chunk("x")).await.expect("a PUT");
    }
    let at = |n: usize| folder.path().join(keys[n].as_str());
    keys.iter().skip(1).enumerate().for_each(|(n, _)| std::fs::remove_file(at(n + 1)).expect("removed"));
    std::fs::create_dir(at(1)).expect("a folder");
    symlink(at(0), at(2)).expect("a link");
    mkfifo(&at(3));
    let objects: Vec<_> = keys.into_iter().map(BlobEntryKind::Object).collect();
    assert_eq!(store.look_again(&objects).await.expect("looked"), [Some(1), None, None, None, None]);
}

fn mkfifo(at: &std::path::Path) {
    let made = Command::new("mkfifo").arg(at).status().expect("mkfifo runs");
    assert!(made.success());
}

#[tokio::test]
async fn a_link_under_a_key_is_not_followed() {
    let (folder, store) = fresh();
    std::fs::write(folder.path().join("target"), "secret").expect("a file");
    symlink(folder.path().join("target"), folder.path().join("link")).expect("a link");
    let link: BlobKey = "link".parse().expect("a key");
    for result in [
        store.get(&link, 10).await.map(drop),
        store.head(&link).await.map(drop),
        store.put_new(&link, chunk("x")).await.map(drop),
    ] {
        let text = result.expect_err("refused").to_string();
        assert!(text.contains("symbolic link"), "{text}");
    }
    store.delete(&[link]).await.remove(0).outcome.expect("the link itself goes");
    assert_eq!(std::fs::read(folder.path().join("target")).expect("untouched"), b"secret");
}

#[tokio::test]
async fn a_file_in_place_of_a_folder_is_named() {
    let (folder, store) = fresh();
    let shard = key(1).as_str().split('/').next().map(|shard| folder.path().join(shard)).expect("a shard");
    std::fs::write(&shard, "in the way").expect("a file");
    for error in [store.get(&key(1), 10).await.map(drop), store.put_new(&key(1), chunk("x")).await.map(drop)]
    {
        let text = error.expect_err("refused").to_string();
        assert!(text.contains(&*shard.to_string_lossy()) && text.contains("folder must be"), "{text}");
    }
    let error = LocalStore::open(&shard).expect_err("a file is no root").to_string();
    assert!(error.contains(&*shard.to_string_lossy()), "{error}");
}

#[tokio::test]
async fn what_stash_did_not_write_is_foreign() {
    let (folder, store) = fresh();
    std::fs::write(folder.path().join(".hidden"), "").expect("a file");
    std::fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"not-\xff-utf8")), "").expect("a file");
    std::fs::create_dir_all(folder.path().join("lost+found/below")).expect("a folder");
    std::fs::create_dir_all(folder.path().join("empty/folders")).expect("a folder");
    let mut names: Vec<_> = listing(&store)
        .await
        .into_iter()
        .map(|kind| match kind {
            BlobEntryKind::Foreign(name) => name,
            other => panic!("{other:?}"),
        })
        .collect();
    names.sort();
    assert_eq!(names, [".hidden", "lost+found/", "not-\u{fffd}-utf8"]);
}

#[tokio::test]
async fn a_foreign_folder_is_as_large_as_what_lies_below_it() {
    let (folder, store) = fresh();
    let foreign = folder.path().join(std::ffi::OsStr::from_bytes(b"k\xfe"));
    std::fs::create_dir_all(foreign.join("a/b")).expect("folders");
    for (file, text) in [("one", "1"), ("a/two", "22"), ("a/b/four", "4444")] {
        std::fs::write(foreign.join(file), text).expect("a file");
    }
    symlink(foreign.join("a/b/four"), foreign.join("link")).expect("a link");
    symlink(&foreign, foreign.join("a/circle")).expect("a link");
    let entries: Vec<_> = store.list(BlobPrefix::All).try_collect().await.expect("listed");
    assert_eq!(entries.iter().map(|entry| entry.len).collect::<Vec<_>>(), [7], "{entries:?}");
}

#[tokio::test]
async fn folders_go_with_their_last_object() {
    let (folder, store) = fresh();
    for n in [1, 2] {
        store.put_new(&key(n), chunk("x")).await.expect("a PUT");
    }
    store.delete(&[key(1)]).await.remove(0).outcome.expect("a delete");
    assert_eq!(entries_of(folder.path()).len(), 1);
    store.delete(&[key(2)]).await.remove(0).outcome.expect("a delete");
    assert_eq!(entries_of(folder.path()), [] as [PathBuf; 0]);
}

/// Removes the folder the moment before something is made in it, `times` times.
async fn put_while_folders_go(step: Step, times: usize) -> Result<PutOutcome, BlobError> {
    let (folder, store) = fresh();
    let shard = key(1).as_str().split('/').next().map(|shard| folder.path().join(shard)).expect("a shard");
    let incarnation = folder.path().join(key(1).as_str().rsplit_once('/').expect("folders").0);
    let mut left = times;
    let racing = disturbed(folder.path(), move |at| {
        if at == step && left > 0 && shard.exists() {
            left -= 1;
            let _ = std::fs::remove_dir(&incarnation);
            std::fs::remove_dir(&shard).expect("an empty shard folder");
        }
        Ok(())
    });
    let outcome = racing.put_new(&key(1), chunk("x")).await;
    assert_eq!(store.head(&key(1)).await.expect("a HEAD").is_some(), outcome.is_ok());
    outcome
}

#[tokio::test]
async fn a_put_makes_its_folders_anew_when_a_delete_removes_them() {
    for step in [Step::MakeFolder, Step::MakeTemp] {
        for times in [1, 5] {
            let outcome = put_while_folders_go(step, times).await;
            assert_eq!(outcome.expect("a PUT"), PutOutcome::Created, "{step:?}");
        }
        // And not for ever.
        let outcome = put_while_folders_go(step, usize::MAX).await;
        assert!(matches!(outcome, Err(BlobError::Determinate { retry: true, .. })), "{step:?}: {outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_and_deletes_that_make_and_remove_one_folder_lose_no_object() {
    let (folder, store) = fresh();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        // Two stores on one root stand for two processes.
        let store =
            if task % 2 == 0 { store.clone() } else { LocalStore::open(folder.path()).expect("a store") };
        tasks.spawn(async move {
            for round in 0..40 {
                let key = key(task * 1000 + round);
                assert_eq!(store.put_new(&key, chunk("x")).await.expect("a PUT"), PutOutcome::Created);
                assert_eq!(store.head(&key).await.expect("a HEAD"), Some(1), "lost {key}");
                let deleted = store.delete(std::slice::from_ref(&key)).await.remove(0);
                assert!(matches!(deleted.outcome, Ok(true)), "{deleted:?}");
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(entries_of(folder.path()), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn a_root_that_was_removed_is_an_error_and_not_an_absent_object() {
    let (folder, store) = fresh();
    std::fs::remove_dir(folder.path()).expect("removed");
    for error in [
        store.get(&key(1), 10).await.map(drop),
        store.head(&key(1)).await.map(drop),
        store.put_new(&key(1), chunk("x")).await.map(drop),
        store.delete(&[key(1)]).await.remove(0).outcome.map(drop),
        store.list(BlobPrefix::All).try_collect::<Vec<_>>().await.map(drop),
    ] {
        let error = error.expect_err("no root");
        assert!(matches!(error, BlobError::Determinate { .. }), "{error:?}");
        assert!(error.to_string().contains("no longer there"), "{error}");
    }
}

#[tokio::test]
async fn opening_creates_the_folder_and_opens_it_again() {
    let (folder, _) = fresh();
    let deep = folder.path().join("a/b/c");
    LocalStore::open(&deep).expect("created").put_new(&key(1), chunk("x")).await.expect("a PUT");
    let again = LocalStore::open(&deep).expect("opened");
    assert_eq!(listing(&again).await, [BlobEntryKind::Object(key(1))]);
    assert!(again.location().ends_with("/a/b/c"), "{}", again.location());
}

#[test]
fn a_cancelled_put_is_whole_or_absent() {
    let (folder, _) = fresh();
    for n in 0..20 {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let store = LocalStore::open(folder.path()).expect("a store");
            let key = key(n);
            let mut put = store.put_new(&key, vec![Bytes::from(vec![1; 100_000])]);
            // Begins the blocking work, which then runs on alone.
            let _ = futures::poll!(&mut put);
        });
        // Waits for the blocking work that was begun.
        drop(runtime);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = LocalStore::open(folder.path()).expect("a store");
        for kind in listing(&store).await {
            let BlobEntryKind::Object(key) = kind else { panic!("{kind:?}") };
            assert_eq!(store.head(&key).await.expect("a HEAD"), Some(100_000));
        }
    });
}

#[tokio::test]
async fn the_temp_of_a_dead_process_with_our_number_is_stepped_over() {
    let (folder, store) = fresh();
    let token = temp::next_token();
    let (pid, count) = token.split_once('-').expect("two numbers");
    let count: u64 = count.parse().expect("a number");
    let file = folder.path().join(key(1).as_str());
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
    let name = split(&key(1)).1.to_owned();
    for taken in count..count + 50 {
        let temp = file.with_file_name(temp::temp_name(&name, &format!("{pid}-{taken}")));
        std::fs::write(temp, "old").expect("a file");
    }
    assert_eq!(store.put_new(&key(1), chunk("new")).await.expect("a PUT"), PutOutcome::Created);
    assert_eq!(store.get(&key(1), 10).await.expect("the object"), "new");
    assert_eq!(listing(&store).await.len(), 51, "the old temps are still listed");
}

#[tokio::test]
async fn a_token_that_is_no_token_aborts_nothing() {
    let (_folder, store) = fresh();
    store.put_new(&key(1), chunk("x")).await.expect("a PUT");
    for token in ["", "../../x", "a/b", "1-1.tmp"] {
        let error = store.abort_upload(&key(1), token).await.expect_err(token);
        assert!(matches!(error, BlobError::Determinate { retry: false, .. }), "{error:?}");
    }
    assert_eq!(listing(&store).await, [BlobEntryKind::Object(key(1))]);
}

#[tokio::test]
async fn a_temp_at_the_top_goes_once_its_object_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let left = folder.path().join(".stash.json.4711-0.tmp");
    std::fs::write(&left, b"{}").expect("written");
    let store = LocalStore::open(folder.path()).expect("opened");
    assert!(left.exists(), "it may still be published");
    store.put_new(&BlobKey::stash_json(), vec![Bytes::from_static(b"{}")]).await.expect("put");
    LocalStore::open(folder.path()).expect("opened again");
    assert!(!left.exists(), "what it was to become stands");
}

#[test]
fn empty_folders_of_a_process_that_died_before_its_first_file_go_at_the_next_opening() {
    let (folder, store) = fresh();
    for made in ["shard/incarnation", "other/used", "lost+found"] {
        std::fs::create_dir_all(folder.path().join(made)).expect("folders");
    }
    std::fs::write(folder.path().join("other/used/part"), "x").expect("a part");
    drop(store);
    let _store = LocalStore::open(folder.path()).expect("opened again");
    assert!(!folder.path().join("shard").exists(), "the empty folders stayed");
    assert!(folder.path().join("other/used/part").exists(), "a part is gone");
    assert!(folder.path().join("lost+found").exists(), "somebody else's folder is gone");
}
