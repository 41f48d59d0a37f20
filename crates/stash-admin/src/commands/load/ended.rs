//! Why a load ended before its file did, said for whoever has to do something about it.
//!
//! What the library says names ids and advises programs: here it becomes one line with the file, the sink's name and
//! the times, and what a person can do. Whether anything is tried again is never decided by these words.

use stash::{BatchError, CatalogError, ChainError, Error, Frontier, Sink};

use crate::{cli::LoadArgs, failure::Refusal};

/// What a person can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// The file's data can never be accepted.
    FixData,
    /// There is no room.
    FreeSpace,
    /// Another load took over, or this one stood still.
    TakenOver,
    /// Nothing better is known.
    Resume,
}

impl Remedy {
    /// The remedy for a failure of which only words are left.
    fn of_words(words: &str) -> Remedy {
        let says = |any: &[&str]| any.iter().any(|part| words.contains(part));
        if says(&["beyond i64", "raise memory_bytes"]) {
            Remedy::FixData
        } else if says(&["disk full", "disk is full", "No space left"]) {
            Remedy::FreeSpace
        } else {
            Remedy::Resume
        }
    }

    fn of(error: &Error) -> Remedy {
        match error {
            Error::Chain { source: ChainError::IncarnationClosed { .. }, .. }
            | Error::Catalog(CatalogError::IncarnationClosed { .. }) => Remedy::TakenOver,
            Error::Batch(
                BatchError::RowTooLarge { .. }
                | BatchError::OverBudget { .. }
                | BatchError::Part { .. }
                | BatchError::SharedFailed { lasting: true, .. },
            ) => Remedy::FixData,
            Error::Ended { reason, .. } => Remedy::of_words(reason),
            other => Remedy::of_words(&other.to_string()),
        }
    }
}

/// What happened, without the ids and the way it came: what stands behind the last mention of the sink.
fn plain(text: &str, sink: &str) -> String {
    let rest = text.rsplit_once(sink).and_then(|(_, rest)| rest.split_once(": ")).map(|(_, rest)| rest);
    let bare =
        text.strip_prefix("worker ").and_then(|rest| rest.split_once(": ")).map_or(text, |(_, rest)| rest);
    let text = rest.unwrap_or(bare);
    // What programs are told to do is no advice for whoever runs this one.
    text.trim_end_matches("; open a new incarnation").trim_end_matches(": raise memory_bytes").to_owned()
}

/// Says what it means for a load that its incarnation ended; `upper` is where the chain stands.
pub(super) fn explained(
    error: anyhow::Error,
    sink: &Sink,
    args: &LoadArgs,
    upper: Frontier,
) -> anyhow::Error {
    let Some(cause) = error.downcast_ref::<Error>() else { return error };
    let (name, file, replica) = (sink.name(), args.file.display(), &args.replica);
    let (words, times) = match cause {
        Error::Ended { reason, description, .. } => (reason.clone(), format!(", times {description}")),
        other => (other.to_string(), String::new()),
    };
    let what = plain(&words, &sink.id().to_string());
    let kept = match upper.as_u64() > sink.row().spec.as_of {
        true => format!("what was accepted below {upper} stands"),
        false => "nothing was accepted yet".to_owned(),
    };
    match Remedy::of(cause) {
        Remedy::TakenOver => error.context(format!(
            "this load of sink {name} was closed: another one writes as replica {replica}, or it stood still for \
             too long; what was accepted stands, go on with --resume, or beside the other with --replica"
        )),
        Remedy::FixData => Refusal::input(format!(
            "{file} into sink {name}{times}: {what}; correct the file: {kept}, and --resume fails here again until \
             it is corrected"
        ))
        .into(),
        Remedy::FreeSpace => Refusal::retry(format!(
            "{file} into sink {name}{times}: {what}; {kept}: free space and go on with --resume"
        ))
        .into(),
        Remedy::Resume if matches!(cause, Error::Ended { .. }) => Refusal::retry(format!(
            "{file} into sink {name}{times}: {what}; {kept}, go on with --resume"
        ))
        .into(),
        Remedy::Resume => error.context(format!("the load into sink {name} failed; {kept}, go on with --resume")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_said_without_ids_and_with_a_remedy_that_fits() {
        let sink = "k00000000-0000-0000-0000-000000000001";
        for (text, said, remedy) in [
            (
                format!(
                    "worker 1: the shared batch of sink {sink}, incarnation i7, description [2, 3) failed: PUT x: disk full: free space"
                ),
                "PUT x: disk full: free space",
                Remedy::FreeSpace,
            ),
            (
                format!("worker 0: description [2, 3) of sink {sink}: the sum is 9, which is beyond i64"),
                "the sum is 9, which is beyond i64",
                Remedy::FixData,
            ),
            (
                format!("sink {sink}: a row at time 3 has 9 bytes, a row may have 8: raise memory_bytes"),
                "a row at time 3 has 9 bytes, a row may have 8",
                Remedy::FixData,
            ),
            ("worker 0: it was cancelled".to_owned(), "it was cancelled", Remedy::Resume),
        ] {
            assert_eq!((plain(&text, sink).as_str(), Remedy::of_words(&text)), (said, remedy));
        }
    }
}
