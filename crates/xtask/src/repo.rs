//! The text files of the repository, read once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Folders that hold nothing of ours, or bytes that only look like text: what fuzzers are fed.
const SKIPPED: [&str; 3] = [".git", "target", "corpus"];

/// The repository's files.
///
/// - `texts` holds every file that is UTF-8, by its path from the root with `/` between segments.
/// - `paths` holds every file and every folder.
pub(crate) struct Repo {
    pub(crate) root: PathBuf,
    pub(crate) texts: BTreeMap<String, String>,
    pub(crate) paths: BTreeSet<String>,
}

impl Repo {
    /// The repository this crate stands in.
    pub(crate) fn here() -> Repo {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut repo = Repo { root: root.clone(), texts: BTreeMap::new(), paths: BTreeSet::new() };
        repo.walk(&root, "");
        repo
    }

    // What vanishes or cannot be read meanwhile is passed over: others may work in the same tree.
    fn walk(&mut self, folder: &Path, prefix: &str) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(kind) = entry.file_type() else { continue };
            if SKIPPED.contains(&name.as_str()) || name.ends_with(".tmp") {
                continue;
            }
            let path = format!("{prefix}{name}");
            if kind.is_dir() {
                self.walk(&entry.path(), &format!("{path}/"));
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                self.texts.insert(path.clone(), text);
            }
            self.paths.insert(path);
        }
    }

    /// The files whose names end in `.{extension}`.
    pub(crate) fn with_extension<'a>(
        &'a self,
        extension: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts
            .iter()
            .filter(move |(path, _)| path.rsplit_once('.').is_some_and(|(_, end)| end == extension))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Repo {
        let mut repo = Repo { root: PathBuf::new(), texts: BTreeMap::new(), paths: BTreeSet::new() };
        for (path, text) in files {
            repo.texts.insert((*path).to_owned(), (*text).to_owned());
            repo.paths.insert((*path).to_owned());
            for (slash, _) in path.match_indices('/') {
                repo.paths.insert(path[..slash].to_owned());
            }
        }
        repo
    }
}
