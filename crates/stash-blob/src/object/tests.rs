//! The suite over memory, and a store that answers as real ones do on their bad days.

use std::sync::atomic::{AtomicUsize, Ordering};

use object_store::{
    CopyOptions, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutResult,
};

use super::*;
use crate::suite::Subject;

mod in_memory {
    use super::*;
    crate::blob_suite!(Subject::new(Arc::new(ObjectBlobs::memory())));
}

mod below_a_prefix {
    use super::*;
    crate::blob_suite!({
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        // A neighbour whose name begins like ours must never show.
        store.put(&Path::from("some/prefix2/x"), "x".into()).await.expect("a PUT");
        Subject::new(Arc::new(ObjectBlobs::new(store, Path::from("some/prefix"), "memory")))
    });
}

/// What the store beneath answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    Generic,
    Denied,
    Conflict,
    ShortBody,
    LongBody,
    /// Of a bulk delete: the second key fails and the answers come in reverse.
    OneOfMany,
    /// One answer for all keys.
    OneForAll,
    /// Listings that are to begin somewhere come in reverse.
    Backwards,
    /// Nothing is wrong.
    Good,
}

#[derive(Debug)]
struct BadDay {
    inner: InMemory,
    bad: Bad,
    /// Entries that were listed.
    listed: Arc<AtomicUsize>,
}

impl fmt::Display for BadDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.bad)
    }
}

impl BadDay {
    fn error(&self, path: &Path) -> Option<Error> {
        let (path, source) = (path.to_string(), "bad day".into());
        match self.bad {
            Bad::Generic => Some(Error::Generic { store: "bad", source }),
            Bad::Denied => Some(Error::PermissionDenied { path, source }),
            Bad::Conflict => Some(Error::AlreadyExists { path, source }),
            Bad::ShortBody | Bad::LongBody | Bad::OneOfMany | Bad::OneForAll | Bad::Backwards | Bad::Good => {
                None
            }
        }
    }
}

type Answer<T> = object_store::Result<T>;

#[async_trait]
impl ObjectStore for BadDay {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Answer<PutResult> {
        match self.error(path) {
            Some(error) => Err(error),
            None => self.inner.put_opts(path, payload, options).await,
        }
    }
    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Answer<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Answer<GetResult> {
        if let (Some(error), false) = (self.error(path), self.bad == Bad::Conflict) {
            return Err(error);
        }
        let answer = self.inner.get_opts(path, options).await?;
        let spoil = match self.bad {
            Bad::ShortBody => |bytes: Bytes| bytes.slice(1..),
            Bad::LongBody => |bytes: Bytes| Bytes::from([&bytes[..], b"more"].concat()),
            _ => return Ok(answer),
        };
        let (meta, range, attributes) =
            (answer.meta.clone(), answer.range.clone(), answer.attributes.clone());
        let extensions = answer.extensions.clone();
        let payload = GetResultPayload::Stream(answer.into_stream().map_ok(spoil).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }
    fn delete_stream(&self, paths: BoxStream<'static, Answer<Path>>) -> BoxStream<'static, Answer<Path>> {
        let bad = self.bad;
        let failed = || Error::Generic { store: "bad", source: "slow down".into() };
        let answers = async move {
            let mut paths: Vec<_> = paths.collect().await;
            if bad == Bad::OneOfMany {
                paths[1] = Err(failed());
                paths.reverse();
            } else {
                paths = vec![Err(failed())];
            }
            stream::iter(paths)
        };
        stream::once(answers).flatten().boxed()
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Answer<ObjectMeta>> {
        let listed = Arc::clone(&self.listed);
        let count = move |_: &Answer<ObjectMeta>| {
            listed.fetch_add(1, Ordering::Relaxed);
        };
        self.inner.list(prefix).inspect(count).boxed()
    }
    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Answer<ObjectMeta>> {
        let (listed, backwards) = (Arc::clone(&self.listed), self.bad == Bad::Backwards);
        let entries = self.inner.list_with_offset(prefix, offset);
        let entries = async move {
            let mut entries: Vec<_> = entries.collect().await;
            if backwards {
                entries.reverse();
            }
            stream::iter(entries)
        };
        let count = move |_: &Answer<ObjectMeta>| {
            listed.fetch_add(1, Ordering::Relaxed);
        };
        stream::once(entries).flatten().inspect(count).boxed()
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Answer<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Answer<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

async fn on_a(bad: Bad) -> ObjectBlobs {
    let inner = InMemory::new();
    inner.put(&Path::from("there"), "0123456789".into()).await.expect("a PUT");
    ObjectBlobs::new(Arc::new(BadDay { inner, bad, listed: Arc::default() }), Path::default(), "bad day")
}

fn key(text: &str) -> BlobKey {
    text.parse().expect("a key")
}

#[tokio::test]
async fn a_write_is_determinate_only_where_the_store_refused_it_by_name() {
    let put = on_a(Bad::Generic).await.put_new(&key("new"), vec![]).await;
    assert!(matches!(put, Err(BlobError::Indeterminate { .. })), "{put:?}");
    let put = on_a(Bad::Denied).await.put_new(&key("new"), vec![]).await;
    assert!(matches!(put, Err(BlobError::Denied { .. })), "{put:?}");
}

#[tokio::test]
async fn a_conflict_proves_a_taken_key_only_where_an_object_is_shown() {
    let store = on_a(Bad::Conflict).await;
    assert_eq!(store.put_new(&key("there"), vec![]).await.expect("taken"), PutOutcome::Exists);
    let put = store.put_new(&key("new"), vec![]).await;
    assert!(matches!(put, Err(BlobError::Indeterminate { .. })), "{put:?}");
}

#[tokio::test]
async fn a_read_that_fails_for_a_while_says_retry() {
    let store = on_a(Bad::Generic).await;
    for read in [store.get(&key("there"), 100).await, store.get_range(&key("there"), 0..3).await] {
        assert!(matches!(read, Err(BlobError::Determinate { retry: true, .. })), "{read:?}");
    }
    assert!(matches!(store.head(&key("there")).await, Err(BlobError::Determinate { retry: true, .. })));
    let read = on_a(Bad::Denied).await.get(&key("there"), 100).await;
    assert!(matches!(read, Err(BlobError::Denied { .. })), "{read:?}");
}

#[tokio::test]
async fn a_body_of_another_length_is_an_error() {
    for bad in [Bad::ShortBody, Bad::LongBody] {
        let store = on_a(bad).await;
        for read in [store.get(&key("there"), 100).await, store.get_range(&key("there"), 2..5).await] {
            assert!(matches!(read, Err(BlobError::Determinate { retry: true, .. })), "{bad:?}: {read:?}");
        }
    }
}

#[tokio::test]
async fn a_bulk_delete_answers_for_each_key_by_name() {
    let keys = ["a", "b", "c"].map(key);
    let deleted = on_a(Bad::OneOfMany).await.delete(&keys).await;
    let answers: Vec<_> = deleted.iter().map(|deleted| (&deleted.key, deleted.outcome.is_ok())).collect();
    assert_eq!(answers, [(&keys[0], true), (&keys[1], false), (&keys[2], true)]);
    assert!(matches!(&deleted[1].outcome, Err(BlobError::Indeterminate { key, .. }) if key == "b"));
    for deleted in on_a(Bad::OneForAll).await.delete(&keys).await {
        assert!(matches!(deleted.outcome, Err(BlobError::Indeterminate { .. })), "{deleted:?}");
    }
}

#[tokio::test]
async fn an_object_that_is_no_key_is_foreign() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    store.put(&Path::from("p/not a key"), "x".into()).await.expect("a PUT");
    let blobs = ObjectBlobs::new(store, Path::from("p"), "memory");
    let listing: Vec<_> = blobs.list(BlobPrefix::All).try_collect().await.expect("a listing");
    assert_eq!(listing, [BlobEntry { kind: BlobEntryKind::Foreign("not a key".into()), len: 1 }]);
}

/// What a second look at 3 of 3,000 parts in one folder found, and how many entries were listed for it.
async fn second_look(bad: Bad) -> (Vec<Option<u64>>, usize) {
    let (inner, listed) = (InMemory::new(), Arc::<AtomicUsize>::default());
    let name = |n: usize| {
        let (shard, incarnation) =
            ("s00000000-0000-5000-8000-000000000001", "i00000000-0000-7000-8000-000000000001");
        format!("{shard}/{incarnation}/{:016x}-{:016x}-0-{n}.parquet", 1, 2)
    };
    for n in 0..3000 {
        inner.put(&Path::from(name(n)), "0123456789".into()).await.expect("a PUT");
    }
    let store = Arc::new(BadDay { inner, bad, listed: Arc::clone(&listed) });
    let store = ObjectBlobs::new(store, Path::default(), "bad day");
    let asked = [1500, 1502, 1501].map(|n| BlobEntryKind::Object(key(&name(n))));
    let lens = store.look_again(&asked).await.expect("a second look");
    (lens, listed.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_second_look_lists_what_it_looks_for_and_not_the_folder() {
    let (lens, listed) = second_look(Bad::Good).await;
    assert_eq!(lens, [Some(10); 3]);
    assert!(listed < 20, "{listed} entries were listed for three");
}

#[tokio::test]
async fn a_second_look_does_not_believe_in_an_order_that_is_not_there() {
    assert_eq!(second_look(Bad::Backwards).await.0, [Some(10); 3]);
}
