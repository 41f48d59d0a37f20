//! Whether the bucket can be used at all; what is seen of a write and of a delete; ranges.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{finding::Check, site::Site, step::Found};
use crate::s3::failed::Failed;

/// How often a small object is put, read and deleted.
const TRIALS: usize = 8;
/// The size of a small object.
const SMALL: usize = 1024;
/// The length of the object that ranges are read of.
const RANGED: u8 = 200;

/// How long small PUTs and GETs took.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) puts: Vec<Duration>,
    pub(super) gets: Vec<Duration>,
}

/// One object goes through its life. `false`: nothing else can be tried.
pub(super) async fn reach(site: &Site, found: &mut Found<'_>) -> bool {
    let name = "reach";
    let steps = async {
        let said = |op: &'static str| move |failed: Failed| (op, failed);
        site.put(name, &b"stash"[..]).await.map_err(said("PUT"))?;
        site.get(name).await.map_err(said("GET"))?;
        site.head(name).await.map_err(said("HEAD"))?;
        site.list("", Some(1), None).await.map_err(said("LIST"))?;
        site.delete(name).await.map_err(said("DELETE"))
    };
    match steps.await {
        Ok(()) => {
            found.yes(Check::Reach, "");
            true
        }
        Err((op, failed)) => {
            let what = if failed.is_no_bucket() {
                format!("there is no bucket {}", site.config().bucket)
            } else {
                format!("{op}: {failed}")
            };
            match failed {
                Failed::Refused { .. } => found.no(Check::Reach, what),
                Failed::NotSent(_) | Failed::Lost(_) | Failed::Strange(_) => {
                    found.unknown(Check::Reach, what)
                }
            }
            false
        }
    }
}

/// Small objects are put, read, listed, deleted, and looked for.
pub(super) async fn seen_at_once(site: &Site, found: &mut Found<'_>, times: &mut Times) {
    let mut missed = [0_usize; 4];
    let mut trials = 0;
    for trial in 0..TRIALS {
        if site.is_over() {
            break;
        }
        match life(site, &format!("seen/{trial}"), times).await {
            Ok(seen) => {
                trials += 1;
                missed.iter_mut().zip(seen).for_each(|(missed, seen)| *missed += usize::from(!seen));
            }
            Err((check, failed)) => found.failed(check, &failed),
        }
    }
    if trials == 0 {
        return;
    }
    let checks =
        [Check::ReadAfterWrite, Check::ListAfterWrite, Check::ReadAfterDelete, Check::ListAfterDelete];
    for (check, missed) in checks.into_iter().zip(missed) {
        let detail = if missed == 0 {
            format!("{trials} tries")
        } else {
            format!("not in {missed} of {trials} tries")
        };
        found.of(check, missed == 0, detail);
    }
}

/// Whether each step of one object was seen at once. Looked for before it is put, since what is not there may be
/// remembered.
async fn life(site: &Site, name: &str, times: &mut Times) -> Result<[bool; 4], (Check, Failed)> {
    let body = Bytes::from(vec![b'x'; SMALL]);
    let in_check = |check| move |failed| (check, failed);
    let reading = in_check(Check::ReadAfterWrite);
    site.head(name).await.map_err(reading)?;
    let began = Instant::now();
    site.put(name, body.clone()).await.map_err(reading)?;
    times.puts.push(began.elapsed());
    let began = Instant::now();
    let read = site.get(name).await.map_err(reading)? == Some(body);
    times.gets.push(began.elapsed());
    let listed = listed(site, name).await.map_err(in_check(Check::ListAfterWrite))?;
    site.delete(name).await.map_err(in_check(Check::ReadAfterDelete))?;
    let gone = site.get(name).await.map_err(in_check(Check::ReadAfterDelete))?.is_none();
    let gone = gone && site.head(name).await.map_err(in_check(Check::ReadAfterDelete))?.is_none();
    let unlisted = !self::listed(site, name).await.map_err(in_check(Check::ListAfterDelete))?;
    Ok([read, listed, gone, unlisted])
}

async fn listed(site: &Site, name: &str) -> Result<bool, Failed> {
    Ok(site.list(name, None, None).await?.into_iter().flatten().any(|listed| listed == name))
}

/// Ranges of an object whose every byte is another.
pub(super) async fn ranges(site: &Site, found: &mut Found<'_>) {
    let (name, body) = ("ranged", (0..RANGED).collect::<Vec<u8>>());
    if let Err(failed) = site.put(name, body.clone()).await {
        return found.failed(Check::RangeExact, &failed);
    }
    let whole = usize::from(RANGED);
    let wanted = body.get(50..60).unwrap_or_default();
    match site.fetch(name, Some("bytes=50-59")).await {
        Ok(got) => {
            let exact = got.body == wanted && got.range.as_deref() == Some("bytes 50-59/200");
            let said = got.range.unwrap_or_else(|| "no Content-Range".to_owned());
            found.of(Check::RangeExact, exact, format!("{} bytes, {said}", got.body.len()));
        }
        Err(failed) => found.failed(Check::RangeExact, &failed),
    }
    match site.fetch(name, Some("bytes=-10")).await {
        Ok(got) => {
            let wanted = body.get(whole - 10..).unwrap_or_default();
            found.of(Check::RangeSuffix, got.body == wanted, format!("{} bytes", got.body.len()));
        }
        Err(failed) => found.failed(Check::RangeSuffix, &failed),
    }
    match site.fetch(name, Some("bytes=200-209")).await {
        Ok(got) => found.no(Check::RangeBeyond, format!("answered with {} bytes", got.body.len())),
        Err(failed) if failed.status() == Some(416) => found.yes(Check::RangeBeyond, failed.short()),
        Err(failed) => found.failed(Check::RangeBeyond, &failed),
    }
}
