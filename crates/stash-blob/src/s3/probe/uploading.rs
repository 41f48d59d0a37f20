//! Multipart uploads.

use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use futures::future::try_join_all;

use super::{finding::Check, site::Site, step::Found};
use crate::s3::{failed::Failed, quiet::Quietly};

const MIB: usize = 1 << 20;
/// Parts that differ in size, and parts that do not. A part that is not the last has 5 MiB at least.
const UNEQUAL: &[usize] = &[6 * MIB, 5 * MIB, 1024];
const EQUAL: &[usize] = &[5 * MIB, 5 * MIB, 1024];
/// The most parts that an upload may have, as S3 documents it.
const PARTS_MAX: i32 = 10_000;

/// Uploads with unequal parts, with equal ones where that fails; then one that is aborted.
pub(super) async fn uploading(site: &Site, found: &mut Found<'_>) {
    match upload(site, "parts", UNEQUAL).await {
        Ok(()) => {
            found.yes(Check::MultipartUnequal, "");
            found.yes(Check::Multipart, "parts of 6 MiB, 5 MiB, 1 KiB");
        }
        Err(unequal) if matches!(unequal, Failed::Refused { .. }) && !unequal.is_denied() => {
            match upload(site, "parts", EQUAL).await {
                Ok(()) => {
                    found.failed(Check::MultipartUnequal, &unequal);
                    found.yes(Check::Multipart, "parts of 5 MiB, 5 MiB, 1 KiB");
                }
                Err(equal) => found.failed(Check::Multipart, &equal),
            }
        }
        Err(failed) => found.failed(Check::Multipart, &failed),
    }
    if site.is_over() {
        return;
    }
    if let Err((check, failed)) = aborting(site, found).await {
        found.failed(check, &failed);
    }
    if let Err(failed) = create_only(site, found).await {
        found.failed(Check::MultipartCreate, &failed);
    }
}

/// Uploads parts of these sizes, and reads back the bytes on both sides of each seam.
async fn upload(site: &Site, name: &str, sizes: &[usize]) -> Result<(), Failed> {
    let id = site.begin(name).await?;
    let numbered = || (1_i32..).zip(1_u8..).zip(sizes);
    let parts = numbered().map(|((number, fill), &size)| {
        let body = Bytes::from(vec![fill; size]);
        let id = &id;
        async move { Ok::<_, Failed>((number, site.part(name, id, number, body).await?)) }
    });
    let parts = try_join_all(parts).await?;
    complete(site, name, &id, parts, false).await?;
    site.completed(name, &id);
    let mut end = 0;
    for ((_, fill), &size) in numbered() {
        end += size;
        let got = site.fetch(name, Some(&format!("bytes={}-{end}", end - 1))).await?;
        let next = usize::from(end < sizes.iter().sum());
        let wanted: Vec<u8> = [fill, fill + 1].into_iter().take(1 + next).collect();
        if got.body != wanted {
            return Err(Failed::Lost("the object is not its parts in order".to_owned()));
        }
    }
    Ok(())
}

async fn complete(
    site: &Site,
    name: &str,
    id: &str,
    parts: Vec<(i32, Option<String>)>,
    create: bool,
) -> Result<(), Failed> {
    let parts = parts
        .into_iter()
        .map(|(number, tag)| CompletedPart::builder().part_number(number).set_e_tag(tag).build());
    let parts = CompletedMultipartUpload::builder().set_parts(Some(parts.collect())).build();
    let (client, bucket) = site.once();
    let complete = client.complete_multipart_upload().bucket(bucket).key(site.key(name)).upload_id(id);
    let complete = complete.multipart_upload(parts).set_if_none_match(create.then(|| "*".to_owned()));
    complete.send().quietly().await?;
    Ok(())
}

/// An upload is begun, looked for, asked for its last part, aborted, and looked for again.
async fn aborting(site: &Site, found: &mut Found<'_>) -> Result<(), (Check, Failed)> {
    let name = "aborted";
    let id = site.begin(name).await.map_err(|failed| (Check::MultipartListed, failed))?;
    match site.uploads_of(name).await {
        Ok(ids) => found.of(Check::MultipartListed, ids.contains(&id), ""),
        Err(failed) => found.failed(Check::MultipartListed, &failed),
    }
    let last = site.part(name, &id, PARTS_MAX, Bytes::from_static(b"x")).await;
    let beyond = site.part(name, &id, PARTS_MAX + 1, Bytes::from_static(b"x")).await;
    match (last, beyond) {
        (Ok(_), Ok(_)) => found.yes(Check::MultipartCount, "part 10,001 is taken as well"),
        (Ok(_), Err(failed)) => found.yes(Check::MultipartCount, format!("part 10,001: {}", failed.short())),
        (Err(failed), _) => found.failed(Check::MultipartCount, &failed),
    }
    let aborted = |failed| (Check::MultipartAborted, failed);
    site.abort(name, &id).await.map_err(aborted)?;
    site.completed(name, &id);
    let shown = site.uploads_of(name).await.map_err(aborted)?.contains(&id);
    let made = site.head(name).await.map_err(aborted)?.is_some();
    found.of(Check::MultipartAborted, !shown && !made, if shown { "it is still listed" } else { "" });
    Ok(())
}

/// An upload is completed onto a key that is taken, and asks for it to be free.
async fn create_only(site: &Site, found: &mut Found<'_>) -> Result<(), Failed> {
    let name = "taken";
    site.put(name, &b"first"[..]).await?;
    let id = site.begin(name).await?;
    let tag = site.part(name, &id, 1, Bytes::from_static(b"second")).await?;
    match complete(site, name, &id, vec![(1, tag)], true).await {
        Ok(()) => {
            site.completed(name, &id);
            found.no(Check::MultipartCreate, "the object was replaced");
        }
        Err(failed) if matches!(failed.status(), Some(409 | 412)) => {
            found.yes(Check::MultipartCreate, failed.short());
        }
        Err(failed) => return Err(failed),
    }
    Ok(())
}
