//! How an error is said: once, its causes below it; for machines as one JSON object.

use std::{io, process::ExitCode};

use clap::error::ErrorKind as UsageKind;
use serde_json::json;
use stash::ErrorKind;

use crate::{formats, interrupt, output::ReaderGone};

/// A wrong command line, as clap and shells have it.
const USAGE_CODE: u8 = 2;

/// What this program itself refuses.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    /// What, and what to do.
    what: String,
    kind: &'static str,
}

impl Refusal {
    /// The command line does not say enough.
    pub fn usage(what: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), kind: "usage" }
    }

    /// The call does not fit what is there.
    pub fn fix_call(what: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), kind: "fix_call" }
    }

    /// The data cannot be taken.
    pub fn input(what: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), kind: "input" }
    }

    /// The same may succeed later.
    pub fn retry(what: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), kind: "retry" }
    }

    /// A fault of this program.
    pub fn report(what: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), kind: "report" }
    }

    /// What was asked for is not there.
    pub fn absent(what: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), kind: "absent" }
    }
}

/// The command was interrupted and ended cleanly.
#[derive(Debug, thiserror::Error)]
#[error("interrupted{}", .0.as_ref().map(|what| format!(": {what}")).unwrap_or_default())]
pub struct Interrupted(pub Option<String>);

/// Rides on an error whose causes name a sink by its id, so that people read its name.
#[derive(Debug)]
pub struct Naming {
    id: String,
    name: String,
}

impl std::fmt::Display for Naming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sink {}", self.name)
    }
}

/// The same error, said with the name of `sink`.
pub fn named(error: anyhow::Error, sink: &stash::Sink) -> anyhow::Error {
    let id = sink.id().to_string();
    if !error.chain().any(|cause| cause.to_string().contains(&id)) {
        return error;
    }
    error.context(Naming { id, name: sink.name().to_string() })
}

/// The error's kind in one word: what to do about it.
fn kind_of(error: &anyhow::Error) -> &'static str {
    for cause in error.chain() {
        if let Some(refusal) = cause.downcast_ref::<Refusal>() {
            return refusal.kind;
        }
        if let Some(error) = cause.downcast_ref::<stash::Error>() {
            return match error.kind() {
                ErrorKind::Retry => "retry",
                ErrorKind::Reopen => "reopen",
                ErrorKind::FixCall => "fix_call",
                ErrorKind::Absent => "absent",
                ErrorKind::Repair => "repair",
                _ => "report",
            };
        }
        if cause.is::<formats::InputError>()
            || cause.is::<formats::SpecError>()
            || cause.is::<formats::OutOfOrder>()
        {
            return "input";
        }
        if cause.is::<Interrupted>() {
            return "interrupted";
        }
        if cause.is::<io::Error>() {
            return "output";
        }
    }
    "report"
}

/// Whether a stream ended since its reader went away. The kind of an error does not tell: a database's or a store's
/// connection breaks as a pipe does.
fn is_reader_gone(error: &anyhow::Error) -> bool {
    let mut errors = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    errors.any(|error| error.get_ref().is_some_and(|inner| inner.is::<ReaderGone>()))
}

/// The message and its causes; a cause that the message above it quotes is left out.
fn lines(error: &anyhow::Error) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let naming = error.downcast_ref::<Naming>();
    for cause in error.chain().skip(usize::from(naming.is_some())) {
        let mut text = cause.to_string();
        if let Some(Naming { id, name }) = naming {
            text = text.replace(id, name);
        }
        if !lines.iter().any(|line| line.contains(&text)) {
            lines.push(text);
        }
    }
    lines
}

/// Says what went wrong and gives the exit code.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    if is_reader_gone(error) {
        return ExitCode::SUCCESS;
    }
    let (kind, lines) = (kind_of(error), lines(error));
    let (message, causes) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    if json {
        eprintln!("{}", json!({ "error": message, "kind": kind, "causes": causes }));
    } else {
        eprintln!("error: {message}");
        causes.iter().for_each(|cause| eprintln!("  because: {cause}"));
    }
    match kind {
        "usage" => ExitCode::from(USAGE_CODE),
        "interrupted" => ExitCode::from(interrupt::EXIT_CODE),
        _ => ExitCode::FAILURE,
    }
}

/// Says what is wrong with the command line, or prints the help that was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    let asked_for = matches!(error.kind(), UsageKind::DisplayHelp | UsageKind::DisplayVersion);
    let json = std::env::args_os().any(|arg| arg == "--json");
    if json && !asked_for {
        let text = error.render().to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        eprintln!("{}", json!({ "error": message, "kind": "usage", "causes": [] }));
    } else {
        // Nobody is left to be told when this fails.
        drop(error.print());
    }
    if asked_for { ExitCode::SUCCESS } else { ExitCode::from(USAGE_CODE) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use anyhow::Context as _;

    use super::*;
    use crate::output::Stream;

    #[test]
    fn only_the_reader_of_the_output_may_go_away_quietly() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let printed = Stream(writer).write_all(b"x").context("stdout cannot be written");
        assert!(is_reader_gone(&printed.expect_err("nobody reads")));

        let socket = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("the database");
        assert!(!is_reader_gone(&socket));
        assert_eq!(report(&socket, true), ExitCode::FAILURE);
    }
}
