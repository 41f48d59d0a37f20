//! What every store must do, one behaviour each.
//!
//! Test code that other crates run too: it asserts, and panics where a store fails it. A backend names how
//! to make a [`Subject`] (an empty store, and how to leave an upload unpublished where it has such) and
//! calls [`blob_suite!`](crate::blob_suite), which makes one test of each behaviour:
//!
//! ```
//! mod memory {
//!     use std::sync::Arc;
//!     use stash_blob::{ObjectBlobs, suite::Subject};
//!
//!     stash_blob::blob_suite!(Subject::new(Arc::new(ObjectBlobs::memory())));
//! }
//! ```
//!
//! A behaviour that needs a capability the subject lacks says so on standard error; [`uploads_are_checked`]
//! tells a backend's own test whether it was run.
//!
//! Every behaviour ends *at rest*: it deletes what it made, and the listing must then be empty.

use std::{any::Any, collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures::{TryStreamExt, future::BoxFuture};
use stash_types::{BlobKey, BlobPrefix, IncarnationId, ShardId};
use tokio::task::JoinSet;

use crate::{BlobEntry, BlobEntryKind, BlobError, BlobStore, PutOutcome};

/// Leaves an unpublished upload of the key, of the given bytes, as a process does that dies in the middle
/// of a PUT; returns its token.
pub type LeaveUpload = Box<dyn Fn(BlobKey, Bytes) -> BoxFuture<'static, String> + Send + Sync>;

/// A store under test.
pub struct Subject {
    /// The store; empty.
    pub store: Arc<dyn BlobStore>,
    leave_upload: Option<LeaveUpload>,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Subject {
    /// A subject whose store shows no unpublished uploads.
    pub fn new(store: Arc<dyn BlobStore>) -> Subject {
        Subject { store, leave_upload: None, _keep: Box::new(()) }
    }

    /// The same subject, whose store shows uploads that `leave` leaves.
    pub fn with_uploads(self, leave: LeaveUpload) -> Subject {
        Subject { leave_upload: Some(leave), ..self }
    }

    /// The same subject, which keeps `guard` (its folder, say) until the test is over.
    pub fn keeping(self, guard: impl Any + Send + Sync) -> Subject {
        Subject { _keep: Box::new(guard), ..self }
    }

    async fn put(&self, key: &BlobKey, bytes: &'static str) -> PutOutcome {
        self.store.put_new(key, vec![Bytes::from_static(bytes.as_bytes())]).await.expect("a PUT")
    }

    async fn bytes(&self, key: &BlobKey) -> Bytes {
        self.store.get(key, 64 << 20).await.expect("a GET")
    }

    async fn listing(&self, prefix: BlobPrefix) -> Vec<BlobEntry> {
        self.store.list(prefix).try_collect().await.expect("a listing")
    }

    async fn objects(&self, prefix: BlobPrefix) -> BTreeSet<String> {
        let listing = self.listing(prefix).await;
        let count = listing.len();
        let keys: BTreeSet<_> = listing
            .into_iter()
            .map(|entry| match entry.kind {
                BlobEntryKind::Object(key) => key.to_string(),
                other => panic!("only objects were put, yet the listing shows {other:?}"),
            })
            .collect();
        assert_eq!(keys.len(), count, "a listing names each object once");
        keys
    }

    async fn delete_all(&self, keys: &[BlobKey]) {
        for deleted in self.store.delete(keys).await {
            deleted.outcome.expect("a delete");
        }
        assert_eq!(self.listing(BlobPrefix::All).await, [], "nothing is left");
    }
}

/// Declares the behaviours once: the macro makes tests of them, [`BEHAVIOURS`] lists them.
#[doc(hidden)]
#[macro_export]
macro_rules! blob_behaviours {
    ($then:ident $($args:tt)*) => {
        $crate::$then! { [$($args)*]
            a_second_put_of_a_key_changes_nothing
            of_many_racing_puts_exactly_one_creates
            ranges_are_exact
            ranges_past_the_end_are_errors
            an_absent_key_is_not_found
            an_empty_object_is_an_object
            chunks_are_joined_in_order
            whole_reads_are_refused_above_their_limit
            heads_tell_length_and_absence
            deletes_are_idempotent_and_answer_per_key
            a_deleted_key_is_gone_from_every_view
            listings_show_their_prefix_and_nothing_else
            keys_keep_all_their_characters
            large_objects_come_back_whole
            a_listing_of_many_objects_leaves_none_out
            unpublished_uploads_are_listed_and_abortable
            a_second_look_tells_what_is_still_there
        }
    };
}

/// Makes a test of each behaviour of [`suite`](crate::suite). The argument is an expression for a fresh
/// [`Subject`](crate::suite::Subject), evaluated for each test; it may await.
///
/// The calling crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! blob_suite {
    ($subject:expr) => {
        $crate::blob_behaviours! { __blob_suite_tests $subject }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __blob_suite_tests {
    ([$subject:expr] $($name:ident)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $crate::suite::$name(&$subject).await;
        }
    )* };
}

/// One behaviour: it panics where the store fails it.
pub type Behaviour = for<'a> fn(&'a Subject) -> BoxFuture<'a, ()>;

#[doc(hidden)]
#[macro_export]
macro_rules! __blob_suite_list {
    ([] $($name:ident)*) => { &[$((stringify!($name), |subject| Box::pin($name(subject)))),*] };
}

/// All behaviours by name, for runners that are no `cargo test` (a store probe, say). Each wants an empty
/// store and leaves it empty.
pub const BEHAVIOURS: &[(&str, Behaviour)] = crate::blob_behaviours!(__blob_suite_list);

/// Whether [`unpublished_uploads_are_listed_and_abortable`] checks anything for this subject.
pub fn uploads_are_checked(subject: &Subject) -> bool {
    subject.leave_upload.is_some()
}

fn shard(n: u64) -> ShardId {
    format!("s00000000-0000-5000-8000-{n:012}").parse().expect("a shard id")
}

fn incarnation(n: u64) -> IncarnationId {
    format!("i00000000-0000-7000-8000-{n:012}").parse().expect("an incarnation id")
}

fn part(shard_n: u64, incarnation_n: u64, n: u64) -> BlobKey {
    let name = format!("{:016x}-{:016x}-0-{n}.parquet", 1, 2);
    format!("{}/{}/{name}", shard(shard_n), incarnation(incarnation_n)).parse().expect("a key")
}

/// A PUT of a taken key says so and leaves the object as it was.
pub async fn a_second_put_of_a_key_changes_nothing(subject: &Subject) {
    let key = part(1, 1, 0);
    assert_eq!(subject.put(&key, "first").await, PutOutcome::Created);
    assert_eq!(subject.put(&key, "second and longer").await, PutOutcome::Exists);
    assert_eq!(subject.bytes(&key).await, "first");
    subject.delete_all(&[key]).await;
}

/// Of 32 concurrent PUTs of one key one creates it, and the object is that one's.
pub async fn of_many_racing_puts_exactly_one_creates(subject: &Subject) {
    let key = part(1, 1, 0);
    let mut racers = JoinSet::new();
    for n in 0..32_u8 {
        let (store, key) = (Arc::clone(&subject.store), key.clone());
        racers.spawn(async move { (n, store.put_new(&key, vec![Bytes::from(vec![n; 1000])]).await) });
    }
    let mut created = Vec::new();
    for (n, outcome) in racers.join_all().await {
        match outcome.expect("a PUT") {
            PutOutcome::Created => created.push(n),
            PutOutcome::Exists => {}
        }
    }
    let [winner] = created[..] else { panic!("created by {created:?}") };
    assert_eq!(subject.bytes(&key).await, vec![winner; 1000]);
    subject.delete_all(&[key]).await;
}

/// A range gives exactly its bytes, the empty one included.
pub async fn ranges_are_exact(subject: &Subject) {
    let key = part(1, 1, 0);
    subject.put(&key, "0123456789").await;
    for (range, expected) in [(0..10, "0123456789"), (3..7, "3456"), (9..10, "9"), (4..4, ""), (10..10, "")] {
        let bytes = subject.store.get_range(&key, range.clone()).await;
        assert_eq!(bytes.expect("a range"), expected, "{range:?}");
    }
    subject.delete_all(&[key]).await;
}

/// A range the object does not cover is refused for good; it is never cut short.
pub async fn ranges_past_the_end_are_errors(subject: &Subject) {
    let key = part(1, 1, 0);
    subject.put(&key, "0123456789").await;
    let reversed = std::ops::Range { start: 5, end: 3 };
    for range in [0..11, 9..12, 10..11, 11..11, 20..30, 0..u64::MAX, reversed] {
        let answer = subject.store.get_range(&key, range.clone()).await;
        assert!(matches!(answer, Err(BlobError::Determinate { retry: false, .. })), "{range:?}: {answer:?}");
    }
    subject.delete_all(&[key]).await;
}

/// Reads of an absent key say `NotFound`, by type, whether or not its folder is there.
pub async fn an_absent_key_is_not_found(subject: &Subject) {
    let (neighbour, absent) = (part(1, 1, 0), part(1, 1, 1));
    for _ in 0..2 {
        for answer in [
            subject.store.get(&absent, 10).await,
            subject.store.get_range(&absent, 0..1).await,
            subject.store.get_range(&absent, 0..0).await,
        ] {
            assert!(matches!(answer, Err(BlobError::NotFound { .. })), "{answer:?}");
        }
        subject.put(&neighbour, "here").await;
    }
    subject.delete_all(&[neighbour]).await;
}

/// An object of no bytes exists, reads as empty and takes its key.
pub async fn an_empty_object_is_an_object(subject: &Subject) {
    let (no_chunks, empty_chunk) = (part(1, 1, 0), part(1, 1, 1));
    assert_eq!(subject.store.put_new(&no_chunks, vec![]).await.expect("a PUT"), PutOutcome::Created);
    assert_eq!(subject.put(&empty_chunk, "").await, PutOutcome::Created);
    for key in [&no_chunks, &empty_chunk] {
        assert_eq!(subject.store.head(key).await.expect("a HEAD"), Some(0));
        assert_eq!(subject.bytes(key).await, "");
        assert_eq!(subject.put(key, "later").await, PutOutcome::Exists);
    }
    assert_eq!(subject.objects(BlobPrefix::All).await.len(), 2);
    subject.delete_all(&[no_chunks, empty_chunk]).await;
}

/// Chunks follow one another in the object as they were given.
pub async fn chunks_are_joined_in_order(subject: &Subject) {
    let key = part(1, 1, 0);
    let chunks = ["one ", "", "two ", "three"].map(|chunk| Bytes::from_static(chunk.as_bytes()));
    subject.store.put_new(&key, chunks.to_vec()).await.expect("a PUT");
    assert_eq!(subject.bytes(&key).await, "one two three");
    assert_eq!(subject.store.get_range(&key, 2..6).await.expect("a range"), "e tw");
    subject.delete_all(&[key]).await;
}

/// `get` returns an object of exactly its limit and refuses a longer one for good.
pub async fn whole_reads_are_refused_above_their_limit(subject: &Subject) {
    let key = part(1, 1, 0);
    subject.put(&key, "0123456789").await;
    assert_eq!(subject.store.get(&key, 10).await.expect("at the limit"), "0123456789");
    let answer = subject.store.get(&key, 9).await;
    assert!(matches!(answer, Err(BlobError::Determinate { retry: false, .. })), "{answer:?}");
    subject.delete_all(&[key]).await;
}

/// `head` gives the length, or `None` for an absent key.
pub async fn heads_tell_length_and_absence(subject: &Subject) {
    let key = part(1, 1, 0);
    assert_eq!(subject.store.head(&key).await.expect("a HEAD"), None);
    subject.put(&key, "0123456789").await;
    assert_eq!(subject.store.head(&key).await.expect("a HEAD"), Some(10));
    subject.delete_all(&[key]).await;
}

/// Absent keys delete without error, and each key has its own answer, in the order given.
pub async fn deletes_are_idempotent_and_answer_per_key(subject: &Subject) {
    let keys = [part(1, 2, 0), part(1, 1, 0), part(2, 1, 0), part(1, 1, 1)];
    subject.put(&keys[0], "a").await;
    subject.put(&keys[3], "b").await;
    for round in 0..2 {
        let deleted = subject.store.delete(&keys).await;
        assert_eq!(deleted.iter().map(|d| &d.key).collect::<Vec<_>>(), keys.iter().collect::<Vec<_>>());
        for (index, answer) in deleted.into_iter().enumerate() {
            let was_there = answer.outcome.expect("a delete");
            if round == 0 && [0, 3].contains(&index) {
                assert!(was_there, "key {index} was there");
            }
        }
    }
    assert!(subject.store.delete(&[]).await.is_empty());
    subject.delete_all(&[]).await;
}

/// A deleted key reads as absent everywhere; its neighbour stays.
pub async fn a_deleted_key_is_gone_from_every_view(subject: &Subject) {
    let (gone, kept) = (part(1, 1, 0), part(1, 1, 1));
    subject.put(&gone, "gone").await;
    subject.put(&kept, "kept").await;
    for deleted in subject.store.delete(std::slice::from_ref(&gone)).await {
        deleted.outcome.expect("a delete");
    }
    assert_eq!(subject.store.head(&gone).await.expect("a HEAD"), None);
    assert!(matches!(subject.store.get(&gone, 10).await, Err(BlobError::NotFound { .. })));
    assert_eq!(subject.objects(BlobPrefix::All).await, BTreeSet::from([kept.to_string()]));
    assert_eq!(subject.bytes(&kept).await, "kept");
    subject.delete_all(&[kept]).await;
}

/// Each prefix lists all objects below it, with their lengths, and no other shard's or incarnation's.
pub async fn listings_show_their_prefix_and_nothing_else(subject: &Subject) {
    let keys = [part(1, 1, 0), part(1, 1, 1), part(1, 2, 0), part(2, 1, 0), BlobKey::stash_json()];
    for key in &keys {
        subject.put(key, "twelve bytes").await;
    }
    let names = |wanted: &[usize]| wanted.iter().map(|&n| keys[n].to_string()).collect::<BTreeSet<_>>();
    assert_eq!(subject.objects(BlobPrefix::All).await, names(&[0, 1, 2, 3, 4]));
    assert_eq!(subject.objects(BlobPrefix::Shard(shard(1))).await, names(&[0, 1, 2]));
    assert_eq!(subject.objects(BlobPrefix::Incarnation(shard(1), incarnation(1))).await, names(&[0, 1]));
    assert_eq!(subject.objects(BlobPrefix::Incarnation(shard(2), incarnation(2))).await, names(&[]));
    assert_eq!(subject.objects(BlobPrefix::Shard(shard(3))).await, names(&[]));
    assert!(subject.listing(BlobPrefix::All).await.iter().all(|entry| entry.len == 12));
    subject.delete_all(&keys).await;
}

/// Every character a key may hold survives PUT, GET, listing and delete; keys that differ in case differ.
pub async fn keys_keep_all_their_characters(subject: &Subject) {
    let texts = [
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "abcdefghijklmnopqrstuvwxyz",
        "0123456789._-/deep/er/x.y_z-.tmp",
        "dots..inside/-begins-with-a-dash",
        "_/~-free",
        "a/b/c/d/e/f/g/h",
    ];
    let keys: Vec<BlobKey> = texts.iter().filter_map(|text| text.parse().ok()).collect();
    assert_eq!(keys.len(), texts.len() - 1, "a tilde is no character of a key");
    for key in &keys {
        assert_eq!(subject.put(key, "x").await, PutOutcome::Created, "{key}");
    }
    let expected = keys.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(subject.objects(BlobPrefix::All).await, expected);
    for key in &keys {
        assert_eq!(subject.bytes(key).await, "x", "{key}");
    }
    subject.delete_all(&keys).await;
}

/// 20 MB in uneven chunks come back byte for byte, whole and by range.
pub async fn large_objects_come_back_whole(subject: &Subject) {
    let key = part(1, 1, 0);
    let len = 20_000_003;
    let pattern: Vec<u8> = (0_u32..65_521).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let bytes = Bytes::from(pattern.iter().copied().cycle().take(len).collect::<Vec<u8>>());
    let chunks = (0..len).step_by(3_000_017).map(|at| bytes.slice(at..len.min(at + 3_000_017))).collect();
    subject.store.put_new(&key, chunks).await.expect("a PUT");
    assert!(subject.bytes(&key).await == bytes, "the object differs");
    let middle = subject.store.get_range(&key, 9_000_001..17_000_002).await.expect("a range");
    assert!(middle == bytes.slice(9_000_001..17_000_002), "the range differs");
    subject.delete_all(&[key]).await;
}

/// A listing pages through more objects than one page of any store holds, and leaves none out.
pub async fn a_listing_of_many_objects_leaves_none_out(subject: &Subject) {
    let keys: Vec<BlobKey> = (0..1100).map(|n| part(1, n % 3, n)).collect();
    let mut puts = JoinSet::new();
    for some in keys.chunks(70) {
        let (store, some) = (Arc::clone(&subject.store), some.to_vec());
        puts.spawn(async move {
            for key in some {
                store.put_new(&key, vec![]).await.expect("a PUT");
            }
        });
    }
    puts.join_all().await;
    let expected = keys.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert!(subject.objects(BlobPrefix::All).await == expected);
    subject.delete_all(&keys).await;
}

/// An upload that was never published is listed under its key, takes no key, and can be abandoned.
pub async fn unpublished_uploads_are_listed_and_abortable(subject: &Subject) {
    let Some(leave) = &subject.leave_upload else {
        eprintln!("SKIPPED: {} shows no unpublished uploads", subject.store.location());
        return;
    };
    let key = part(1, 1, 0);
    let token = leave(key.clone(), Bytes::from_static(b"half")).await;
    let upload = BlobEntryKind::Upload { key: key.clone(), token: token.clone() };
    let listing = subject.listing(BlobPrefix::Incarnation(shard(1), incarnation(1))).await;
    assert_eq!(listing.iter().map(|entry| &entry.kind).collect::<Vec<_>>(), [&upload]);
    assert_eq!(subject.store.head(&key).await.expect("a HEAD"), None, "an upload is no object");
    assert_eq!(subject.put(&key, "whole").await, PutOutcome::Created, "an upload takes no key");
    let other = BlobEntryKind::Upload { key: key.clone(), token: "0-0".to_owned() };
    let upload = listing.into_iter().next().expect("the upload");
    let again = || async { subject.store.look_again(&[other.clone(), upload.kind.clone()]).await };
    assert_eq!(again().await.expect("a second look"), [None, Some(upload.len)]);
    for _ in 0..2 {
        subject.store.abort_upload(&key, &token).await.expect("an abort, and again");
    }
    assert_eq!(again().await.expect("a third"), [None, None]);
    assert_eq!(subject.bytes(&key).await, "whole", "an abort leaves the object alone");
    subject.delete_all(&[key]).await;
}

/// Of what listings showed, a second look tells the lengths of what is there and that the rest is gone: in the order asked,
/// also of an entry that was asked about twice, whatever lies between and beside.
pub async fn a_second_look_tells_what_is_still_there(subject: &Subject) {
    let keys: Vec<BlobKey> =
        (0..40).map(|n| part(1 + n / 20, 1 + n / 10 % 2, n)).chain([BlobKey::stash_json()]).collect();
    for key in &keys {
        subject.put(key, "twelve bytes").await;
    }
    let (gone, kept): (Vec<_>, Vec<_>) = keys.iter().cloned().enumerate().partition(|(n, _)| n % 3 == 1);
    let bare = |keys: Vec<(usize, BlobKey)>| keys.into_iter().map(|(_, key)| key).collect::<Vec<_>>();
    let (gone, kept) = (bare(gone), bare(kept));
    for deleted in subject.store.delete(&gone).await {
        deleted.outcome.expect("a delete");
    }
    let never = part(7, 7, 7);
    let backwards = keys.iter().rev().chain([&never, &keys[0], &keys[1]]);
    let asked: Vec<BlobEntryKind> = backwards.cloned().map(BlobEntryKind::Object).collect();
    let expected: Vec<Option<u64>> = asked
        .iter()
        .map(|kind| matches!(kind, BlobEntryKind::Object(key) if kept.contains(key)).then_some(12))
        .collect();
    assert_eq!(subject.store.look_again(&asked).await.expect("a second look"), expected);
    assert_eq!(subject.store.look_again(&[]).await.expect("a look at nothing"), []);
    subject.delete_all(&kept).await;
}
