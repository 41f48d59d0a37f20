//! The history of a run: one line an event, with virtual time and actor, for people; and its hash, which tells two
//! runs apart.

use std::fmt;

use serde::Serialize;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When, in milliseconds of virtual time.
    pub at_ms: u64,
    /// Who.
    pub actor: String,
    /// What.
    pub what: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.at_ms / 1000, self.at_ms % 1000);
        write!(f, "{seconds:>4}.{millis:03} {:<14} {}", self.actor, self.what)
    }
}

/// The hash of a history: equal exactly when the same things happened at the same virtual times.
pub fn hash_of(history: &[Event]) -> String {
    let mut hasher = blake3::Hasher::new();
    for Event { at_ms, actor, what } in history {
        hasher.update(&at_ms.to_be_bytes());
        for text in [actor, what] {
            hasher.update(text.as_bytes());
            hasher.update(&[0]);
        }
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_and_its_hash_sees_all_of_it() {
        let event = Event { at_ms: 1234, actor: "r0".into(), what: "died".into() };
        assert_eq!(event.to_string(), "   1.234 r0             died");
        let later = Event { at_ms: 1235, ..event.clone() };
        let other = Event { actor: "r1".into(), ..event.clone() };
        let hash = hash_of(std::slice::from_ref(&event));
        assert_ne!(hash, hash_of(&[later]));
        assert_ne!(hash, hash_of(&[other]));
    }
}
