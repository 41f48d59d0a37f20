//! Taking away what a probe made.

use std::collections::BTreeSet;

use futures::{StreamExt, stream};

use super::site::Site;
use crate::s3::{failed::Failed, quiet::Quietly};

/// Deletes at a time.
const AT_ONCE: usize = 16;
/// How often the folder is looked at: a store whose listings lag shows the rest later.
const LOOKS_MAX: usize = 3;
/// After so many requests in a row without an answer the store is taken for gone.
const LOST_MAX: usize = 4;

impl Site {
    /// Takes away all that was made here, with its versions. Gives the keys that could not be taken away, and why.
    pub(super) async fn clear(&self, versioned: bool) -> Vec<String> {
        let mut left = Vec::new();
        for (name, id) in self.open_uploads() {
            match self.abort(&name, &id).await {
                Ok(()) => self.completed(&name, &id),
                Err(failed) => left.push(format!("{} (upload {id}): {}", self.key(&name), failed.short())),
            }
        }
        let mut names = self.written();
        for look in 0..LOOKS_MAX {
            left.retain(|line| line.contains(" (upload "));
            left.extend(self.delete_all(&names).await);
            match self.list("", None, None).await {
                Ok(pages) => names = pages.into_iter().flatten().collect(),
                // Who may not list has deleted what it wrote.
                Err(_) => break,
            }
            if names.is_empty() {
                break;
            }
            if look + 1 == LOOKS_MAX {
                left.extend(names.iter().map(|name| format!("{}: it is still listed", self.key(name))));
            }
        }
        if versioned {
            left.extend(self.clear_versions().await);
        }
        left.sort();
        left.dedup();
        left
    }

    /// Deletes `names`; gives what could not be deleted.
    async fn delete_all(&self, names: &BTreeSet<String>) -> Vec<String> {
        let mut left = Vec::new();
        let mut lost = 0;
        let deletions = names.iter().map(|name| async move { (name, self.delete(name).await) });
        let mut answers = stream::iter(deletions).buffer_unordered(AT_ONCE);
        let mut answered = BTreeSet::new();
        while let Some((name, answer)) = answers.next().await {
            answered.insert(name);
            match answer {
                Ok(()) => lost = 0,
                Err(failed) if failed.status() == Some(404) => lost = 0,
                Err(failed) => {
                    lost += usize::from(matches!(failed, Failed::Lost(_)));
                    left.push(format!("{}: {}", self.key(name), failed.short()));
                }
            }
            if lost >= LOST_MAX {
                break;
            }
        }
        let untried = names.iter().filter(|name| !answered.contains(name));
        left.extend(untried.map(|name| format!("{}: the store does not answer", self.key(name))));
        left
    }

    /// Deletes every version below the folder; gives what could not be deleted.
    async fn clear_versions(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for _ in 0..LOOKS_MAX {
            let versions = match self.versions().await {
                Ok(versions) => versions,
                Err(failed) => {
                    return vec![format!(
                        "{}: its versions cannot be listed: {}",
                        self.key(""),
                        failed.short()
                    )];
                }
            };
            if versions.is_empty() {
                return Vec::new();
            }
            let deletions = versions.iter().map(|(key, id)| async move {
                let (client, bucket) = self.steady();
                let answer =
                    client.delete_object().bucket(bucket).key(key).version_id(id).send().quietly().await;
                answer
                    .map(drop)
                    .map_err(|error| format!("{key} (version {id}): {}", Failed::from(error).short()))
            });
            let answers: Vec<_> = stream::iter(deletions).buffer_unordered(AT_ONCE).collect().await;
            failures = answers.into_iter().filter_map(Result::err).collect();
        }
        match self.versions().await {
            Ok(versions) if versions.is_empty() => Vec::new(),
            _ if failures.is_empty() => vec![format!("{}: versions of what was deleted", self.key(""))],
            _ => failures,
        }
    }

    /// A page of the versions and delete markers below the folder; what is deleted makes room for the next.
    async fn versions(&self) -> Result<Vec<(String, String)>, Failed> {
        let (client, bucket) = self.steady();
        let list = client.list_object_versions().bucket(bucket).prefix(self.key("")).send().quietly().await?;
        let versions = list.versions().iter().map(|one| (one.key(), one.version_id()));
        let markers = list.delete_markers().iter().map(|one| (one.key(), one.version_id()));
        let all = versions.chain(markers).filter_map(|(key, id)| Some((key?.to_owned(), id?.to_owned())));
        Ok(all.collect())
    }
}
