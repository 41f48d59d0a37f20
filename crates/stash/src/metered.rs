//! Decorators that measure: what a process asks of its store and of its catalog.
//!
//! [`MeteredStore`] counts operations by sink and outcome, times them and sums their bytes; [`MeteredCatalog`] counts and
//! times each kind of call. They change nothing: answers and errors pass as they are, and a call that is cancelled is
//! not counted. Every stash is opened over them, so that whatever drives it is measured alike.

mod catalog;
mod store;

pub use catalog::MeteredCatalog;
pub use store::MeteredStore;
