//! The benches of Stash as a whole.
