//! The explicit-state model of cutover and ownership.
