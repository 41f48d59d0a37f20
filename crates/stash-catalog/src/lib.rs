//! The catalog of Stash: the only crate that speaks SQL.
