//! An open stash for the length of one command.

use stash::{OpenOptions, Sink, SinkName, Stash, StashConfig};

use crate::failure::{self, Refusal};

/// What a command opens the stash for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To look. Nothing is changed: what is queued for deletion stays, too.
    Look,
    /// To change what is there.
    Change,
    /// To change what is there, or to create it.
    Create,
}

impl Purpose {
    /// That of a command that changes something when it is told to.
    pub fn of(commit: bool) -> Purpose {
        if commit { Purpose::Change } else { Purpose::Look }
    }
}

/// The URL that `text` means: a path that begins with `/` or `.` names a folder, anything else is kept as it is.
pub fn url_of(text: String) -> String {
    if !text.starts_with(['/', '.']) {
        return text;
    }
    let url = std::path::absolute(&text).ok().and_then(|path| url::Url::from_file_path(path).ok());
    url.map_or(text, String::from)
}

/// Where the stash is, as the command line or the environment says.
#[derive(Clone, Default)]
pub struct Address {
    /// The URL of the blobs, and of the catalog too where it lies with them.
    pub stash: Option<String>,
    /// The URL of the catalog; it may hold a password.
    pub catalog: Option<String>,
    /// Whether nothing is listed when it is written to: for credentials that may not list.
    pub no_sweep: bool,
}

impl Address {
    /// How to open it; nothing there is created.
    pub fn options(&self) -> Result<OpenOptions, Refusal> {
        let url = self.stash.as_ref().ok_or_else(|| {
            Refusal::usage(
                "no stash is named: set STASH_URL or pass --stash, such as --stash file:///tmp/stash",
            )
        })?;
        let config = StashConfig { sweep_at_open: !self.no_sweep, ..StashConfig::default() };
        let options = OpenOptions::new(url).create(false).config(config);
        Ok(match &self.catalog {
            Some(catalog) => options.catalog(catalog),
            None => options,
        })
    }
}

/// Opens the stash, runs `work` on it and closes it, whatever became of the work.
pub async fn with_stash<T>(
    at: &Address,
    purpose: Purpose,
    work: impl AsyncFnOnce(&Stash) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let options = at.options()?;
    let options = match purpose {
        Purpose::Look => options.look(),
        Purpose::Change => options,
        Purpose::Create => options.create(true),
    };
    let stash = options.open().await?;
    let done = work(&stash).await;
    let closed = stash.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

/// The same with one of its sinks.
pub async fn with_sink<T>(
    at: &Address,
    purpose: Purpose,
    name: &SinkName,
    work: impl AsyncFnOnce(&Sink) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_stash(at, purpose, async |stash| {
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
