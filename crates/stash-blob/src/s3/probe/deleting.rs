//! Deletes: of what is absent, and of a thousand keys by one request.

use std::collections::BTreeSet;

use futures::future::try_join_all;

use super::{finding::Check, site::Site, step::Found};
use crate::s3::failed::Failed;

/// The most keys that one request may name.
const KEYS: usize = 1000;
/// As many of them are there.
const PRESENT: usize = 8;

/// Single deletes, then a bulk delete of a thousand keys of which a few are there.
pub(super) async fn deleting(site: &Site, found: &mut Found<'_>) {
    match site.delete("never-put").await {
        Ok(()) => found.yes(Check::DeleteAbsent, ""),
        // "Not found" is an answer that tells what is the case.
        Err(failed) if failed.code() == "NoSuchKey" => found.yes(Check::DeleteAbsent, failed.short()),
        Err(failed) => found.failed(Check::DeleteAbsent, &failed),
    }
    if let Err(failed) = bulk(site, found).await {
        found.failed(Check::BulkDelete, &failed);
    }
}

async fn bulk(site: &Site, found: &mut Found<'_>) -> Result<(), Failed> {
    let names: Vec<String> = (0..KEYS).map(|number| format!("bulk/{number:04}")).collect();
    let present = names.get(..PRESENT).unwrap_or_default();
    try_join_all(present.iter().map(|name| site.put(name, &b"x"[..]))).await?;
    let mut answer = site.delete_bulk(&names, false).await;
    match &answer {
        Ok(_) => found.yes(Check::BulkWithoutMd5, ""),
        Err(failed) if matches!(failed.status(), Some(400..=499)) && !failed.is_denied() => {
            let refused = failed.short();
            answer = site.delete_bulk(&names, true).await;
            match &answer {
                Ok(_) => found.no(Check::BulkWithoutMd5, refused),
                Err(_) => found.unknown(Check::BulkWithoutMd5, "there is no bulk delete"),
            }
        }
        Err(failed) => found.failed(Check::BulkWithoutMd5, failed),
    }
    let answer = answer?;
    let mut gone = 0;
    for name in present {
        gone += usize::from(site.head(name).await?.is_none());
    }
    found.of(Check::BulkDelete, gone == PRESENT, format!("{gone} of {PRESENT} that were there are gone"));
    let keys: BTreeSet<String> = names.iter().map(|name| site.key(name)).collect();
    let deleted = answer.deleted().iter().filter_map(|one| one.key());
    let refused = answer.errors().iter().filter_map(|one| one.key());
    let named: BTreeSet<&str> = deleted.chain(refused).filter(|&key| keys.contains(key)).collect();
    found.of(Check::BulkPerKey, named.len() == KEYS, format!("{} of {KEYS} named", named.len()));
    match answer.errors().first() {
        None => found.yes(Check::BulkAbsent, ""),
        Some(error) => {
            let said = error.code().or(error.message()).unwrap_or("an error");
            found.no(Check::BulkAbsent, format!("{said} for {} keys", answer.errors().len()));
        }
    }
    Ok(())
}
