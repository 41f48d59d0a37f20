//! What a sweep may do with a key it found in the store (I18).
//!
//! The listing is taken first, then the references, the queue and the incarnations in one snapshot; only then is
//! judged. Garbage is what the catalog *proves* unowned; age is never asked, since a slow upload is old before
//! it is linked. Being garbage is monotone: a closed incarnation stays closed, a resolved description stays
//! resolved, and neither can gain a reference. So a plan stays valid until it is applied.

use stash_types::{Description, Frontier};

/// What the catalog knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// The description in the key: that of the whole batch, whatever a trim made of it.
    pub description: Description,
    /// Whether the incarnation in the key is open, and up to where it is resolved; `None` if the catalog does
    /// not know it under this sink.
    pub incarnation: Option<(bool, Frontier)>,
    /// Whether a row references the key.
    pub referenced: bool,
    /// Whether the deletion queue holds the key.
    pub queued: bool,
}

/// Why a key is garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its incarnation is closed, so no row will ever reference it.
    Closed,
    /// Its description is resolved, and the outcome did not keep it.
    Resolved,
}

/// What a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The chain's: never delete.
    Referenced,
    /// The deletion queue's: the deleter will come to it.
    Queued,
    /// An open incarnation may still link it: leave it.
    BeingWritten,
    /// Nobody's: move it into the queue.
    Garbage(Why),
    /// Of an incarnation the catalog does not know: leave it, and tell a person. Incarnations are registered
    /// before their first byte, so this is not ours, or the catalog is behind.
    Foreign,
}

/// Judges a key. What is both referenced and queued is referenced: doubt never deletes.
pub fn judge(facts: KeyFacts) -> Verdict {
    let KeyFacts { description, incarnation, referenced, queued } = facts;
    match incarnation {
        _ if referenced => Verdict::Referenced,
        _ if queued => Verdict::Queued,
        None => Verdict::Foreign,
        Some((false, _)) => Verdict::Garbage(Why::Closed),
        Some((true, resolved)) if description.upper() <= resolved => Verdict::Garbage(Why::Resolved),
        Some((true, _)) => Verdict::BeingWritten,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> KeyFacts {
        let description = Description::new(Frontier::at(3), Frontier::at(7)).expect("not empty");
        let incarnation = Some((true, Frontier::at(3)));
        KeyFacts { description, incarnation, referenced: false, queued: false }
    }

    #[test]
    fn what_a_row_references_is_never_garbage_whatever_else_is_said_of_it() {
        for incarnation in [None, Some((false, Frontier::EMPTY)), Some((true, Frontier::EMPTY))] {
            for queued in [false, true] {
                let facts = KeyFacts { incarnation, referenced: true, queued, ..facts() };
                assert_eq!(judge(facts), Verdict::Referenced);
            }
        }
    }

    #[test]
    fn what_is_queued_is_left_to_the_deleter() {
        assert_eq!(judge(KeyFacts { queued: true, ..facts() }), Verdict::Queued);
        assert_eq!(judge(KeyFacts { queued: true, incarnation: None, ..facts() }), Verdict::Queued);
    }

    #[test]
    fn an_unresolved_description_of_an_open_incarnation_is_being_written() {
        for resolved in [0, 3, 6] {
            let facts = KeyFacts { incarnation: Some((true, Frontier::at(resolved))), ..facts() };
            assert_eq!(judge(facts), Verdict::BeingWritten);
        }
    }

    #[test]
    fn what_a_resolved_description_or_a_closed_incarnation_left_behind_is_garbage() {
        let open = KeyFacts { incarnation: Some((true, Frontier::at(7))), ..facts() };
        assert_eq!(judge(open), Verdict::Garbage(Why::Resolved));
        let closed = KeyFacts { incarnation: Some((false, Frontier::at(3))), ..facts() };
        assert_eq!(judge(closed), Verdict::Garbage(Why::Closed));
    }

    #[test]
    fn a_key_of_an_unknown_incarnation_is_not_touched() {
        assert_eq!(judge(KeyFacts { incarnation: None, ..facts() }), Verdict::Foreign);
    }

    #[test]
    fn garbage_stays_garbage_while_an_incarnation_moves_on() {
        let later = [(true, Frontier::at(9)), (true, Frontier::EMPTY), (false, Frontier::at(9))];
        for state in later {
            let verdict = judge(KeyFacts { incarnation: Some(state), ..facts() });
            assert!(matches!(verdict, Verdict::Garbage(_)), "{state:?} gives {verdict:?}");
        }
    }
}
