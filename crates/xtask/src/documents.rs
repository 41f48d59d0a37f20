//! What documents say must exist: paths, symbols and links.
//!
//! Outside of code blocks, every piece of code in a document is looked at:
//!
//! - a path that begins with a folder of the root, or a file name that ends in `.rs` or `.md`, must exist;
//! - `Type::method` and `crate::item`: one source file must hold both words; a crate's item must be in the crate;
//! - `CamelCase`, `snake_case` and `call()`: some source, manifest or file of `deploy/` must hold the word.
//!
//! The README's Rust must stand, line by line, in the example of `stash` that runs as a test.
//!
//! Code with spaces, placeholders or operators is left alone. CHANGELOG.md tells of the past, so only its links and
//! paths are looked at. Links to files and to headings must resolve everywhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::repo::Repo;

/// Folders of the root: what begins with one of these is a path.
const ROOTS: [&str; 8] =
    ["crates/", "docs/", "migrations/", "deploy/", "tests/", "benches/", ".ci/", ".cargo/"];

/// Crates of others, whose items are not looked for.
const FOREIGN: [&str; 6] = ["std", "tokio", "arrow", "parquet", "sqlx", "clippy"];

/// Every name in a document that stands for nothing.
pub(crate) fn check(repo: &Repo) -> Vec<String> {
    let words = Words::of(repo);
    let mut findings = Vec::new();
    for (path, text) in repo.with_extension("md") {
        for (number, line) in prose(text) {
            let mut wrong = |what: String| findings.push(format!("{path}:{number}: {what}"));
            for code in code_spans(line) {
                let missing = match as_path(code) {
                    Some(named) => !exists(repo, named),
                    None => path != "CHANGELOG.md" && !words.know(code),
                };
                if missing {
                    wrong(format!("`{code}` does not exist"));
                }
            }
            for target in links(line) {
                if !resolves(repo, path, target) {
                    wrong(format!("link to {target} does not resolve"));
                }
            }
        }
    }
    findings.extend(example(repo));
    findings
}

/// Where the README's Rust is run: examples in these crates' own documentation.
const EXAMPLES: [&str; 2] = ["crates/stash/src/lib.rs", "crates/stash-timely/src/lib.rs"];

/// The README's lines of Rust that the examples which are run do not have. A block is from one of them; how far it is
/// indented there is no matter.
fn example(repo: &Repo) -> Vec<String> {
    let Some(readme) = repo.texts.get("README.md") else { return Vec::new() };
    let examples: Vec<(&str, BTreeSet<&str>)> = EXAMPLES
        .iter()
        .filter_map(|path| repo.texts.get(*path).map(|source| (*path, source)))
        .map(|(path, source)| {
            let run = source.lines().filter_map(|line| line.strip_prefix("//! "));
            (path, run.map(str::trim_start).collect())
        })
        .collect();
    let shown = readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let missing = shown.filter_map(|block| {
        let lines = || block.lines().map(str::trim_start).filter(|line| !line.is_empty());
        let lacks = |(path, run): &(&str, BTreeSet<&str>)| {
            let lines = lines().filter(|line| !run.contains(line));
            lines
                .map(|line| format!("README.md: the example in {path} has no line {line}"))
                .collect::<Vec<_>>()
        };
        examples.iter().map(lacks).min_by_key(Vec::len)
    });
    missing.flatten().collect()
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|code| !code.is_empty())
}

fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The path that a piece of code names, if it names one.
fn as_path(code: &str) -> Option<&str> {
    let plain = code.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let rooted = ROOTS.iter().any(|root| code.starts_with(root));
    let file = code.ends_with(".rs") || code.ends_with(".md");
    (plain && (rooted || file)).then(|| code.trim_end_matches('/'))
}

/// A path from the root, or the last segments of one.
fn exists(repo: &Repo, named: &str) -> bool {
    let tail = format!("/{named}");
    let rooted = ROOTS.iter().any(|root| named.starts_with(root));
    repo.paths.contains(named) || (!rooted && repo.paths.iter().any(|path| path.ends_with(&tail)))
}

fn resolves(repo: &Repo, from: &str, target: &str) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let Some(path) = relative(from, file) else { return false };
    if !repo.paths.contains(&path) {
        return false;
    }
    let Some(text) = repo.texts.get(&path) else { return heading.is_empty() };
    heading.is_empty() || prose(text).any(|(_, line)| slug(line).as_deref() == Some(heading))
}

fn relative(from: &str, file: &str) -> Option<String> {
    if file.is_empty() {
        return Some(from.to_owned());
    }
    let mut segments: Vec<&str> = from.split('/').collect();
    segments.pop();
    for segment in file.trim_end_matches('/').split('/') {
        match segment {
            "." => {}
            ".." => drop(segments.pop()?),
            other => segments.push(other),
        }
    }
    Some(segments.join("/"))
}

/// The anchor of a heading.
fn slug(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    Some(kept.collect::<String>().to_lowercase().replace(' ', "-"))
}

/// The words of sources, manifests and what is deployed.
struct Words<'a> {
    by_file: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Words<'a> {
    fn of(repo: &'a Repo) -> Words<'a> {
        let files = ["rs", "toml", "sql"].iter().flat_map(|extension| repo.with_extension(extension));
        let deployed = ["json", "yaml", "yml"].iter().flat_map(|extension| repo.with_extension(extension));
        let files = files.chain(deployed.filter(|(path, _)| path.starts_with("deploy/")));
        let by_file = files.map(|(path, text)| (path, words(text).collect())).collect();
        Words { by_file }
    }

    /// Whether a piece of code is no symbol at all, or stands for one.
    fn know(&self, code: &str) -> bool {
        let symbol = code.strip_suffix("()").unwrap_or(code).trim_end_matches('!');
        let segments: Vec<&str> = symbol.split("::").collect();
        if !segments.iter().all(|segment| is_word(segment)) {
            return true;
        }
        match segments.as_slice() {
            [first, ..] if segments.len() > 1 && FOREIGN.contains(first) => true,
            [one] => !(is_symbol(one) || code.ends_with("()")) || self.holds("", &[*one]),
            [first, rest @ ..] => {
                let folder = format!("crates/{}/src/", first.replace('_', "-"));
                let is_crate = self.by_file.keys().any(|path| path.starts_with(&folder));
                if is_crate { self.holds(&folder, rest) } else { self.holds("", &segments) }
            }
            [] => true,
        }
    }

    /// Whether one file below `folder` holds all of these words.
    fn holds(&self, folder: &str, wanted: &[&str]) -> bool {
        let mut files = self.by_file.iter().filter(|(path, _)| path.starts_with(folder));
        files.any(|(_, words)| wanted.iter().all(|word| words.contains(word)))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A word that can only be a name in code: `snake_case` or `CamelCase`.
fn is_symbol(word: &str) -> bool {
    let camel = word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().any(|c| c.is_ascii_lowercase())
        && word.chars().filter(char::is_ascii_uppercase).count() > 1;
    let snake = word.contains('_') && !word.starts_with('_') && word.chars().any(|c| c.is_ascii_lowercase());
    camel || snake
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> String {
        let source = "//! A.\npub struct RunMerge;\nimpl RunMerge { fn step() {} }\n";
        let files = [
            ("docs/a.md", text),
            ("docs/b.md", "# Two Words, here\n"),
            ("crates/stash-part/src/merge.rs", source),
            ("crates/stash-types/src/lib.rs", "//! B.\npub fn other_thing() {}\n"),
            ("deploy/alerts.yml", "- alert: ItIsLate\n"),
            ("docs/alerts.yml", "- alert: ItIsEarly\n"),
        ];
        check(&Repo::of(&files)).join("\n")
    }

    #[test]
    fn paths_in_code_must_exist() {
        assert_eq!(found("`crates/stash-part/src/merge.rs`, `merge.rs`, `docs/`, `crates/<name>/x.rs`"), "");
        for gone in
            ["`crates/stash-part/src/gone.rs`", "`gone.rs`", "`docs/gone`", "`tests/stash-part/src/merge.rs`"]
        {
            assert!(found(gone).contains("does not exist"), "{gone}");
        }
    }

    #[test]
    fn symbols_in_code_must_exist() {
        assert_eq!(
            found("`RunMerge::step`, `stash_part::RunMerge`, `step()`, `a + b`, `word`, `std::fs::read`"),
            ""
        );
        for gone in ["`RunMerge::gone`", "`stash_types::RunMerge`", "`gone()`", "`GoneMerge`", "`gone_merge`"]
        {
            assert!(found(gone).contains("does not exist"), "{gone}");
        }
        assert_eq!(found("`ItIsLate`"), "", "what is deployed has names, too");
        assert!(found("`ItIsEarly`").contains("does not exist"));
        assert!(found("`RunMerge::other_thing`").contains("does not exist"), "not in one file");
    }

    #[test]
    fn the_readmes_rust_is_the_rust_that_runs() {
        let of = |shown: &str| {
            let readme = format!("# A\n```rust\n{shown}\n```\n");
            let source = "//! ```\n//! let a = 1;\n//! ```\n";
            example(&Repo::of(&[("README.md", &readme), ("crates/stash/src/lib.rs", source)]))
        };
        assert!(of("let a = 1;").is_empty());
        assert_eq!(of("let a = 2;").len(), 1);
    }

    #[test]
    fn code_blocks_are_left_alone() {
        assert_eq!(found("```sh\n`gone.rs`\n```\n"), "");
        assert!(found("```sh\n```\n`gone.rs`\n").contains("docs/a.md:3"));
    }

    #[test]
    fn links_must_resolve() {
        assert_eq!(found("[b](b.md) [c](../crates/stash-part/) [d](b.md#two-words-here) [e](https://x)"), "");
        for gone in ["[b](c.md)", "[b](b.md#three-words)", "[b](../../x.md)", "[b](docs/b.md)"] {
            assert!(found(gone).contains("does not resolve"), "{gone}");
        }
    }
}
