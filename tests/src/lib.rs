//! The tests of Stash as a whole.
