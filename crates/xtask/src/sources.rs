//! The form of files: what house style says and a machine can see.
//!
//! - Every Rust file begins with `//!`, except for `tests.rs` and build scripts.
//! - A file of more than 800 lines says in its `//!` why it is still one file.
//! - Nothing is left over from work under way, and an ignored test says why.
//! - No line ends in blanks, every file ends in a newline, and no path of one machine stands anywhere.
//! - A named ADR exists.

use crate::repo::Repo;

const LINES_MAX: usize = 800;

/// What a long file's `//!` must hold.
const WHY_LONG: &str = "one file";

// Spelt in two pieces, so that this file does not hold what it looks for.
const LEFT_OVER: [(&str, &str); 3] = [
    (concat!("to", "do!("), "finish it or say so in an error"),
    (concat!("dbg", "!("), "use tracing"),
    (concat!("#[", "ignore]"), "say why: #[ignore = \"…\"]"),
];

/// Folders at the top of a machine that no file of a repository should know.
const MACHINE_FOLDERS: [&str; 5] = ["work", "root", "home", "tmp", "Users"];

/// The folder that examples use: every machine has it.
const EXAMPLE_FOLDER: &str = "/tmp/stash";

/// Files that are written by tools or by others.
const NOT_OURS: [&str; 2] = ["Cargo.lock", "LICENSE"];

/// Every deviation.
pub(crate) fn check(repo: &Repo) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in &repo.texts {
        if NOT_OURS.contains(&path.as_str()) {
            continue;
        }
        lines(path, text, &mut findings);
        adrs(repo, path, text, &mut findings);
    }
    for (path, text) in repo.with_extension("rs") {
        rust(path, text, &mut findings);
    }
    findings
}

fn rust(path: &str, text: &str, findings: &mut Vec<String>) {
    let name = path.rsplit('/').next().unwrap_or(path);
    if !text.starts_with("//!") && name != "tests.rs" && name != "build.rs" {
        findings.push(format!("{path}:1: begins without //!: say what the file is"));
    }
    let count = text.lines().count();
    let says_why =
        text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains(WHY_LONG));
    if count > LINES_MAX && !says_why {
        findings
            .push(format!("{path}: {count} lines: split it by noun, or say in its //! why it is one file"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        for (what, instead) in LEFT_OVER {
            if line.contains(what) {
                findings.push(format!("{path}:{number}: {what}: {instead}"));
            }
        }
    }
}

fn lines(path: &str, text: &str, findings: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        if line.ends_with([' ', '\t']) {
            findings.push(format!("{path}:{number}: ends in blanks"));
        }
        if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names_folder(line, folder)) {
            findings.push(format!("{path}:{number}: /{folder} is a path of one machine"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(format!("{path}: does not end in a newline"));
    }
}

/// Whether `/folder` begins a path here: nothing that could be a path stands before it.
fn names_folder(line: &str, folder: &str) -> bool {
    let wanted = format!("/{folder}");
    line.match_indices(&wanted).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + wanted.len()..].chars().next();
        let inside = |c: char| c.is_alphanumeric() || "._-/<>)}*".contains(c);
        let is_url = line[..at].ends_with("://");
        if line[at..].starts_with(EXAMPLE_FOLDER) {
            return false;
        }
        (before.is_none_or(|c| !inside(c)) || is_url) && after == Some('/')
    })
}

fn adrs(repo: &Repo, path: &str, text: &str, findings: &mut Vec<String>) {
    const FOLDER: &str = "docs/adr/";
    for (at, _) in text.match_indices(FOLDER) {
        let number: String =
            text[at + FOLDER.len()..].chars().take_while(char::is_ascii_digit).take(5).collect();
        let prefix = format!("{FOLDER}{number}-");
        if number.len() == 4 && !repo.paths.iter().any(|known| known.starts_with(&prefix)) {
            findings.push(format!("{path}: {FOLDER}{number} does not exist"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> String {
        check(&Repo::of(&[(path, text), ("docs/adr/0001-floors.md", "")])).join("\n")
    }

    #[test]
    fn a_file_without_module_docs_is_found_unless_it_holds_only_tests() {
        assert!(found("a.rs", "fn a() {}\n").contains("without //!"));
        assert_eq!(found("a/tests.rs", "fn a() {}\n"), "");
    }

    #[test]
    fn a_long_file_must_say_why() {
        let body = "fn a() {}\n".repeat(LINES_MAX);
        assert!(found("a.rs", &format!("//! A.\n{body}")).contains("801 lines"));
        assert_eq!(found("a.rs", &format!("//! A, in one file since …\n{body}")), "");
    }

    #[test]
    fn what_is_left_over_is_found_and_a_reasoned_ignore_is_not() {
        let [to_do, debug, ignore] = LEFT_OVER.map(|(what, _)| what);
        for what in [to_do, debug, ignore] {
            assert!(found("a.rs", &format!("//! A.\n{what}\n")).contains(what), "{what}");
        }
        assert_eq!(found("a.rs", "//! A.\n#[ignore = \"slow\"]\n"), "");
    }

    #[test]
    fn blanks_missing_newlines_and_unknown_adrs_are_found() {
        assert!(found("a.md", "a \n").contains("a.md:1: ends in blanks"));
        assert!(found("a.md", "a").contains("newline"));
        let unknown = concat!("docs/adr/", "9999");
        assert!(found("a.md", &format!("see {unknown}.\n")).contains(&format!("{unknown} does not exist")));
        assert_eq!(found("a.md", "see docs/adr/0001.\n"), "");
    }

    #[test]
    fn paths_of_one_machine_are_found_and_look_alikes_are_not() {
        for folder in MACHINE_FOLDERS {
            assert!(found("a.md", &format!("in `/{folder}/x`\n")).contains("one machine"), "{folder}");
            assert!(found("a.md", &format!("file:///{folder}/x\n")).contains("one machine"), "{folder}");
            assert_eq!(found("a.md", &format!("in `crates/{folder}/x`\n")), "");
        }
        assert_eq!(found("a.md", &format!("file://{EXAMPLE_FOLDER}/x\n")), "");
    }
}
