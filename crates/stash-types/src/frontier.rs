//! Frontiers and descriptions: which times a thing still may hold, and which times a batch covers.
//!
//! Times are totally ordered, so a frontier is one `u64`. `u64::MAX` is never a time: it *is* the
//! empty frontier and says "complete".

use std::fmt;

use serde::{Deserialize, Serialize};

/// A lower bound on the times still to come.
///
/// - [`Frontier::EMPTY`] says that no time is to come.
/// - Frontiers order as their times do, the empty one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Frontier(u64);

impl Frontier {
    /// The frontier before every time.
    pub const MIN: Frontier = Frontier(0);
    /// The empty frontier: complete, nothing is to come.
    pub const EMPTY: Frontier = Frontier(u64::MAX);

    /// The frontier that stands at `time`; `u64::MAX` gives the empty frontier.
    pub const fn at(time: u64) -> Frontier {
        Frontier(time)
    }

    /// Whether nothing is to come.
    pub const fn is_empty(self) -> bool {
        self.0 == u64::MAX
    }

    /// The earliest time still to come, or `None` when complete.
    pub const fn time(self) -> Option<u64> {
        if self.is_empty() { None } else { Some(self.0) }
    }

    /// The bare number, `u64::MAX` for the empty frontier.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Whether `time` can still come: it is at or after this frontier.
    pub const fn admits(self, time: u64) -> bool {
        time >= self.0 && time != u64::MAX
    }

    /// The form the catalog stores: eight bytes, big endian, so that bytes order as frontiers do.
    pub const fn to_be_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Reads the form the catalog stores.
    pub const fn from_be_bytes(bytes: [u8; 8]) -> Frontier {
        Frontier(u64::from_be_bytes(bytes))
    }
}

impl fmt::Display for Frontier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.time() {
            Some(time) => write!(f, "{time}"),
            None => f.write_str("end"),
        }
    }
}

/// The times a batch covers: `[lower, upper)`, never empty, and the `since` up to which times may
/// have been compacted (0 until chains are compacted).
///
/// - `lower < upper`, so `lower` is always a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Description {
    lower: Frontier,
    upper: Frontier,
    since: Frontier,
}

impl Description {
    /// `[lower, upper)` with since 0, or `None` if that covers no time.
    pub fn new(lower: Frontier, upper: Frontier) -> Option<Description> {
        (lower < upper).then_some(Description { lower, upper, since: Frontier::MIN })
    }

    /// The first time covered, as a frontier.
    pub const fn lower(self) -> Frontier {
        self.lower
    }

    /// The first time no longer covered; empty when the description is open to the end.
    pub const fn upper(self) -> Frontier {
        self.upper
    }

    /// Times below this may have been advanced to it.
    pub const fn since(self) -> Frontier {
        self.since
    }

    /// Whether `time` lies in `[lower, upper)`.
    pub const fn contains(self, time: u64) -> bool {
        self.lower.0 <= time && time < self.upper.0
    }

    /// The part of this description at or after `from`, or `None` if it is wholly covered.
    pub fn from(self, from: Frontier) -> Option<Description> {
        Description::new(self.lower.max(from), self.upper)
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.lower, self.upper)
    }
}

impl<'de> Deserialize<'de> for Description {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Raw {
            lower: Frontier,
            upper: Frontier,
            since: Frontier,
        }
        let raw = Raw::deserialize(deserializer)?;
        if raw.since > raw.lower {
            return Err(serde::de::Error::custom("description has since above lower"));
        }
        let mut description = Description::new(raw.lower, raw.upper)
            .ok_or_else(|| serde::de::Error::custom("description covers no time"))?;
        description.since = raw.since;
        Ok(description)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_frontier_is_last_and_admits_nothing() {
        assert!(Frontier::at(u64::MAX - 1) < Frontier::EMPTY);
        assert!(!Frontier::EMPTY.admits(u64::MAX));
        assert!(Frontier::at(7).admits(7) && !Frontier::at(7).admits(6));
        assert_eq!(Frontier::EMPTY.to_string(), "end");
    }

    #[test]
    fn a_description_covers_at_least_one_time() {
        let at = Frontier::at;
        assert!(Description::new(at(3), at(3)).is_none());
        assert!(Description::new(Frontier::EMPTY, Frontier::EMPTY).is_none());
        let description = Description::new(at(3), at(5)).expect("covers 3 and 4");
        assert!(description.contains(3) && description.contains(4) && !description.contains(5));
        assert_eq!(description.from(at(4)).map(|d| d.to_string()).as_deref(), Some("[4, 5)"));
        assert_eq!(description.from(at(5)), None);
    }
}
