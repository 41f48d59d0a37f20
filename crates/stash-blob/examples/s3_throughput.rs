//! Bytes a second, up and down, against the plain `object_store` client on the same server, in one run:
//!
//! ```text
//! cargo run --release -p stash-blob --example s3_throughput -- [PARTS] [MIB_EACH] [ROUNDS]
//! ```
//!
//! Each round sends PARTS parts up and reads them back in ranges of 8 MiB, four requests at a time, once by each of the
//! two, in turns. The server is a radosgw of its own on the loopback, which has the same cores. What counts is the
//! ratio; medians are of the rounds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, aws::AmazonS3Builder, path::Path};
use stash_blob::{
    BlobStore, PutOutcome,
    s3::{S3Config, S3Keys, S3Store},
};
use stash_testkit::servers::{S3Server, radosgw};
use stash_types::{BlobKey, Description, Frontier, IncarnationId, PartName, ShardId};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Requests at a time.
const REQUESTS: usize = 4;
/// Bytes of a ranged GET.
const RANGE: u64 = 8 << 20;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let parts = words.next().transpose()?.unwrap_or(16);
    let mib = words.next().transpose()?.unwrap_or(32);
    let rounds = words.next().transpose()?.unwrap_or(7);
    let Some(server) = radosgw().await else { return Ok(()) };
    let bucket = server.new_bucket("throughput").await;
    let (ours, plain) = (ours(server, &bucket).await?, plain(server, &bucket)?);
    let part = Bytes::from(noise(usize::try_from(mib << 20)?));

    let mut times = [const { Vec::new() }; 4];
    for round in 0..rounds {
        // Who goes first changes, so that neither always finds the server as the other left it.
        for turn in [round % 2, 1 - round % 2] {
            let (up, down) = match turn {
                0 => ours_once(&ours, round, parts, &part).await?,
                _ => plain_once(&plain, round, parts, &part).await?,
            };
            for (of, took) in [(turn * 2, up), (turn * 2 + 1, down)] {
                if let Some(times) = times.get_mut(usize::try_from(of)?) {
                    times.push(took);
                }
            }
        }
    }
    let [ours_up, ours_down, plain_up, plain_down] = times.map(median);
    let rate = |took: Duration| (parts * mib) as f64 / took.as_secs_f64();
    for (what, ours, plain) in [("up", ours_up, plain_up), ("down", ours_down, plain_down)] {
        println!(
            "{what:>5}: stash {:.0} MiB/s, object_store {:.0} MiB/s, ratio {:.2}",
            rate(ours),
            rate(plain),
            plain.as_secs_f64() / ours.as_secs_f64()
        );
    }
    Ok(())
}

async fn ours(server: &S3Server, bucket: &str) -> Outcome<Arc<S3Store>> {
    let mut config = S3Config::from_url(&format!(
        "s3://{bucket}/ours?endpoint={}&region={}",
        server.endpoint(),
        server.region()
    ))?;
    config.keys = Some(S3Keys::new(server.access_key(), server.secret_key()));
    Ok(Arc::new(S3Store::open(config).await?))
}

fn plain(server: &S3Server, bucket: &str) -> Outcome<Arc<dyn ObjectStore>> {
    let store = AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_bucket_name(bucket)
        .with_region(server.region())
        .with_access_key_id(server.access_key())
        .with_secret_access_key(server.secret_key())
        .build()?;
    Ok(Arc::new(store))
}

fn ranges(len: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    (0..len).step_by(RANGE as usize).map(move |from| from..len.min(from + RANGE))
}

async fn ours_once(
    store: &Arc<S3Store>,
    round: u64,
    parts: u64,
    part: &Bytes,
) -> Outcome<(Duration, Duration)> {
    let keys: Vec<BlobKey> = (0..parts).map(|n| key(round, n)).collect();
    let began = Instant::now();
    stream::iter(&keys)
        .map(|key| async move {
            match store.put_new(key, vec![part.clone()]).await? {
                PutOutcome::Created => Ok(()),
                PutOutcome::Exists => Err("a fresh key was taken".into()),
            }
        })
        .buffer_unordered(REQUESTS)
        .try_collect::<()>()
        .await
        .map_err(|error: Box<dyn std::error::Error>| error)?;
    let up = began.elapsed();
    let began = Instant::now();
    let read: usize =
        stream::iter(keys.iter().flat_map(|key| ranges(part.len() as u64).map(move |range| (key, range))))
            .map(|(key, range)| async move { store.get_range(key, range).await.map(|bytes| bytes.len()) })
            .buffer_unordered(REQUESTS)
            .try_fold(0, |sum, len| async move { Ok(sum + len) })
            .await?;
    let down = began.elapsed();
    assert_eq!(read as u64, parts * part.len() as u64, "everything came back");
    for deleted in store.delete(&keys).await {
        deleted.outcome?;
    }
    Ok((up, down))
}

async fn plain_once(
    store: &Arc<dyn ObjectStore>,
    round: u64,
    parts: u64,
    part: &Bytes,
) -> Outcome<(Duration, Duration)> {
    let paths: Vec<Path> = (0..parts).map(|n| Path::from(format!("plain/{}", key(round, n)))).collect();
    let began = Instant::now();
    stream::iter(&paths)
        .map(|path| async move { store.put(path, PutPayload::from_bytes(part.clone())).await.map(drop) })
        .buffer_unordered(REQUESTS)
        .try_collect::<()>()
        .await?;
    let up = began.elapsed();
    let began = Instant::now();
    let read: usize =
        stream::iter(paths.iter().flat_map(|path| ranges(part.len() as u64).map(move |range| (path, range))))
            .map(|(path, range)| async move { store.get_range(path, range).await.map(|bytes| bytes.len()) })
            .buffer_unordered(REQUESTS)
            .try_fold(0, |sum, len| async move { Ok(sum + len) })
            .await?;
    let down = began.elapsed();
    assert_eq!(read as u64, parts * part.len() as u64, "everything came back");
    for path in &paths {
        store.delete(path).await?;
    }
    Ok((up, down))
}

fn key(round: u64, n: u64) -> BlobKey {
    let incarnation = IncarnationId::from_uuid(Uuid::from_u64_pair(0x7000, 0x8000_0000_0000_0000 | round));
    let description =
        Description::new(Frontier::at(round), Frontier::at(round + 1)).unwrap_or_else(|| unreachable!());
    let name = PartName { incarnation, description, process: 0, n };
    BlobKey::from(name.under(ShardId::from_uuid(Uuid::from_u64_pair(1, 0x8000_0000_0000_0000))))
}

/// Bytes that do not compress: SplitMix64 (Steele, Lea, Flood 2014).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
