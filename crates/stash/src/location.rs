//! Where a stash is: two URLs, of its blobs and of its catalog, made into places that can be opened.
//!
//! | stash | catalog | what it is for |
//! |---|---|---|
//! | `file:///folder` | none: `catalog.sqlite` in the folder | one machine |
//! | `s3://bucket/prefix` | `postgres://…` | machines that share both |
//! | `s3://bucket/prefix` | `sqlite:///file` | processes of one machine, blobs in a bucket |
//! | `file:///folder` | `postgres://…` or `sqlite:///file` | a folder that all processes see |
//! | `memory://` | none | tests of one process |
//!
//! Nothing is touched here: a URL that names no usable place is refused before anything is opened.

use std::{fmt, path::PathBuf};

#[cfg(feature = "s3")]
use stash_blob::s3::S3Config;
use stash_blob::shown_url;
#[cfg(feature = "postgres")]
use stash_catalog::PostgresOptions;
use url::Url;

use crate::{Error, Result};

/// The file of the embedded catalog, beside the folder of blobs.
const CATALOG_FILE: &str = "catalog.sqlite";

/// Where the blobs are.
pub(crate) enum BlobPlace {
    /// In this process's memory.
    Memory,
    /// In a folder of this machine; the blobs have a folder of their own within.
    Folder(PathBuf),
    /// In a bucket.
    #[cfg(feature = "s3")]
    S3(Box<S3Config>),
}

/// Where the catalog is.
pub(crate) enum CatalogPlace {
    /// In this process's memory.
    Memory,
    /// In an SQLite file.
    File(PathBuf),
    /// In a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresOptions>),
}

/// Where a stash is.
pub(crate) struct Location {
    pub blobs: BlobPlace,
    pub catalog: CatalogPlace,
}

impl Location {
    /// Reads the two URLs.
    pub fn parse(stash: &str, catalog: Option<&str>) -> Result<Location> {
        let blobs = BlobPlace::parse(stash)?;
        let catalog = match (&blobs, catalog) {
            (BlobPlace::Memory, None) => CatalogPlace::Memory,
            (BlobPlace::Memory, Some(_)) => {
                return Err(refuse(
                    "stash",
                    stash,
                    "memory ends with the process, so its catalog cannot be elsewhere",
                    STASH_URLS,
                ));
            }
            (BlobPlace::Folder(folder), None) => CatalogPlace::File(folder.join(CATALOG_FILE)),
            #[cfg(feature = "s3")]
            (BlobPlace::S3(_), None) => {
                let why = "blobs in a bucket need a catalog of their own, and none is named";
                return Err(refuse(
                    "stash",
                    stash,
                    why,
                    "name one, such as --catalog postgres://user@host/database",
                ));
            }
            (_, Some(catalog)) => CatalogPlace::parse(catalog)?,
        };
        Ok(Location { blobs, catalog })
    }
}

const STASH_URLS: &str = "use file:///folder, s3://bucket/prefix or memory://";
const CATALOG_URLS: &str = "use postgres://user@host/database or sqlite:///file";

impl BlobPlace {
    /// Reads the URL of blobs.
    pub fn parse(text: &str) -> Result<BlobPlace> {
        let refuse = |why: &str| Err(refuse("stash", text, why, STASH_URLS));
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(error) => return refuse(&error.to_string()),
        };
        match url.scheme() {
            "memory" => Ok(BlobPlace::Memory),
            "file" => match url.to_file_path() {
                Ok(folder) => Ok(BlobPlace::Folder(folder)),
                Err(()) => refuse("it names no local folder (three slashes, then an absolute path)"),
            },
            #[cfg(feature = "s3")]
            "s3" => match S3Config::from_url(text) {
                Ok(config) => Ok(BlobPlace::S3(Box::new(config))),
                Err(error) => Err(Error::InvalidUsage { what: error.to_string() }),
            },
            #[cfg(not(feature = "s3"))]
            "s3" => refuse("this build has no S3 backend (feature `s3`)"),
            "postgres" | "postgresql" | "sqlite" => {
                refuse("that is where a catalog is; pass it as --catalog")
            }
            scheme => refuse(&format!("scheme {scheme:?} is unknown")),
        }
    }
}

impl CatalogPlace {
    fn parse(text: &str) -> Result<CatalogPlace> {
        let refuse = |why: &str| Err(refuse("catalog", text, why, CATALOG_URLS));
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(error) => return refuse(&error.to_string()),
        };
        match url.scheme() {
            "sqlite" if url.host_str().is_none_or(str::is_empty) && url.path().len() > 1 => {
                // The path of a URL is a file's only where both are spelled alike; the `url` crate knows how.
                let as_file = Url::parse(&format!("file://{}", url.path())).ok();
                match as_file.and_then(|url| url.to_file_path().ok()) {
                    Some(file) => Ok(CatalogPlace::File(file)),
                    None => refuse("it names no local file"),
                }
            }
            "sqlite" => refuse("it names no local file (three slashes, then an absolute path)"),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => match PostgresOptions::from_url(text) {
                Ok(options) => Ok(CatalogPlace::Postgres(Box::new(options))),
                Err(error) => Err(error.into()),
            },
            #[cfg(not(feature = "postgres"))]
            "postgres" | "postgresql" => refuse("this build has no PostgreSQL backend (feature `postgres`)"),
            scheme => refuse(&format!("scheme {scheme:?} is unknown")),
        }
    }
}

fn refuse(of: &str, text: &str, why: &str, instead: &str) -> Error {
    Error::InvalidUsage { what: format!("{:?} is no usable URL of a {of}: {why}; {instead}", Shown(text)) }
}

/// A URL as it may be shown: whatever may be a secret in it is left out.
pub(crate) struct Shown<'t>(pub &'t str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_url(self.0))
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(stash: &str, catalog: Option<&str>) -> String {
        match Location::parse(stash, catalog) {
            Ok(_) => panic!("{stash} and {catalog:?} are taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_folder_has_its_catalog_in_it_unless_another_is_named() {
        let here = Location::parse("file:///srv/a%20stash", None).expect("a folder");
        assert!(matches!(&here.blobs, BlobPlace::Folder(folder) if folder == &PathBuf::from("/srv/a stash")));
        assert!(
            matches!(&here.catalog, CatalogPlace::File(file) if file.ends_with("a stash/catalog.sqlite"))
        );
        let apart = Location::parse("file:///srv/x", Some("sqlite:///var/c.db")).expect("two places");
        assert!(matches!(&apart.catalog, CatalogPlace::File(file) if file == &PathBuf::from("/var/c.db")));
    }

    #[test]
    fn what_names_no_place_is_refused_with_what_to_write_instead() {
        for (stash, catalog, word) in [
            ("orders", None, "file:///folder"),
            ("ftp://x", None, "\"ftp\" is unknown"),
            ("postgres://h/d", None, "--catalog"),
            ("memory://", Some("sqlite:///c"), "ends with the process"),
            ("file:///x", Some("sqlite://c"), "three slashes"),
            ("file:///x", Some("mysql://c"), "postgres://"),
        ] {
            let what = refused(stash, catalog);
            assert!(what.contains(word), "{what}");
        }
    }

    #[cfg(feature = "s3")]
    #[test]
    fn a_bucket_needs_a_catalog_to_be_named() {
        assert!(refused("s3://bucket/prefix", None).contains("--catalog"));
        assert!(refused("s3:///prefix", None).contains("bucket"));
        let both = Location::parse("s3://bucket/prefix", Some("sqlite:///c.db")).expect("both are named");
        assert!(matches!(both.blobs, BlobPlace::S3(config) if config.prefix == "prefix"));
    }

    #[test]
    fn a_password_is_never_shown() {
        for url in ["mysql://u:hunter2@h/d", "mysql://u:hunter2@h:port/d", "not a url hunter2@h"] {
            let what = refused("file:///x", Some(url));
            assert!(!what.contains("hunter2"), "{what}");
            assert!(what.contains("***@h"), "{what}");
        }
    }
}
