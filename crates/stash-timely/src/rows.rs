//! Rows of a collection and columns of a stash.
