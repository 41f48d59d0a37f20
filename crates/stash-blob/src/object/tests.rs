//! The suite over memory, and a store that answers as real ones do on their bad days.

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

/// What the store below answers.
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
}

#[derive(Debug)]
struct BadDay {
    inner: InMemory,
    bad: Bad,
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
            Bad::ShortBody | Bad::LongBody | Bad::OneOfMany | Bad::OneForAll => None,
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
        self.inner.list(prefix)
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
    ObjectBlobs::new(Arc::new(BadDay { inner, bad }), Path::default(), "bad day")
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
