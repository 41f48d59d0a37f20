//! An open stash for the length of one command.

use stash::{OpenOptions, Sink, SinkName, Stash};

use crate::failure::{self, Refusal};

/// Whether a command may create the stash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is created.
    Create,
    /// That is an error.
    Refuse,
}

/// The URL that `text` means: a path that begins with `/` or `.` names a folder, anything else is kept as it is.
pub fn url_of(text: String) -> String {
    if !text.starts_with(['/', '.']) {
        return text;
    }
    let url = std::path::absolute(&text).ok().and_then(|path| url::Url::from_file_path(path).ok());
    url.map_or(text, String::from)
}

/// The file that makes a folder a stash.
const CATALOG_FILE: &str = "catalog.sqlite";

/// Whether something is at `url` that can be opened, or whose opening says why not.
pub fn is_there(url: &str) -> bool {
    let folder = url::Url::parse(url).ok().filter(|url| url.scheme() == "file");
    let folder = folder.and_then(|url| url.to_file_path().ok());
    folder.is_some_and(|folder| folder.join(CATALOG_FILE).try_exists().unwrap_or(true))
}

/// Opens the stash at `url`, runs `work` on it and closes it, whatever became of the work.
pub async fn with_stash<T>(
    url: &Option<String>,
    missing: Missing,
    work: impl AsyncFnOnce(&Stash) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let url = url.as_ref().ok_or_else(|| {
        Refusal::usage("no stash is named: set STASH_URL or pass --stash, such as --stash file:///tmp/stash")
    })?;
    let stash = OpenOptions::new(url).create(missing == Missing::Create).open().await?;
    let done = work(&stash).await;
    let closed = stash.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

/// Opens the stash only to look, at one sink.
pub async fn with_sink<T>(
    url: &Option<String>,
    name: &SinkName,
    work: impl AsyncFnOnce(&Sink) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_stash(url, Missing::Refuse, async |stash| {
        let sink = stash.sink(name.as_str()).await?;
        work(&sink).await.map_err(|error| failure::named(error, &sink))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_short_for_the_url_of_its_folder() {
        assert_eq!(url_of("/srv/a stash".into()), "file:///srv/a%20stash");
        assert!(url_of("./stash".into()).starts_with("file:///"));
        for kept in ["file:///srv/x", "memory://", "stash", "s3://bucket"] {
            assert_eq!(url_of(kept.into()), kept);
        }
    }
}
