//! Names of unpublished files.
//!
//! `.<file>.<token>.tmp`, in the folder of the key it is to become: so a listing attributes it like the
//! object itself, and publishing never crosses a folder. No key begins with a dot, hence no temp is ever
//! taken for an object. The token is `<process id>-<count>`; two processes that see the same process id
//! (containers on one volume) are kept apart by creating the file exclusively and counting on.

use std::sync::atomic::{AtomicU64, Ordering};

use stash_types::BlobKey;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A token this process has not used before.
pub(super) fn next_token() -> String {
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The temp name of `file` under `token`.
pub(super) fn temp_name(file: &str, token: &str) -> String {
    format!(".{file}.{token}.tmp")
}

/// Whether `token` can stand in a temp name: it must not smuggle in a dot or a slash.
pub(super) fn is_token(token: &str) -> bool {
    (1..=64).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The key and token of the temp file `name` in the folder `folder` (empty or with its closing slash).
pub(super) fn parse_temp(folder: &str, name: &str) -> Option<(BlobKey, String)> {
    let (file, token) = name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    if !is_token(token) {
        return None;
    }
    Some((format!("{folder}{file}").parse().ok()?, token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temp_name_gives_back_its_key_and_token() {
        for key in ["stash.json", "a/b/c.d.parquet", "a/x.tmp"] {
            let key: BlobKey = key.parse().expect("a key");
            let (folder, file) = key.as_str().rsplit_once('/').map_or(("", key.as_str()), |(d, f)| (d, f));
            let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            let token = next_token();
            assert_eq!(parse_temp(&folder, &temp_name(file, &token)), Some((key, token)));
        }
    }

    #[test]
    fn other_dot_files_are_not_temps() {
        for name in
            [".tmp", "..tmp", ".x.tmp", ".x.1-2", "x.1-2.tmp", ".x.1_2.tmp", "..x.1-2.tmp", ".x y.1-2.tmp"]
        {
            assert_eq!(parse_temp("", name), None, "{name}");
        }
    }

    #[test]
    fn tokens_differ_and_none_leaves_its_name() {
        assert_ne!(next_token(), next_token());
        assert!(is_token(&next_token()));
        for bad in ["", "../x", "a.b", "a/b", &"x".repeat(65)] {
            assert!(!is_token(bad), "{bad}");
        }
    }
}
