//! Stash: a persist-backed object-store stash for incremental updates.
