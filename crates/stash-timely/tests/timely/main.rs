//! Sinks in the production wiring: timely workers on threads of their own, a runtime beside them, a real stash.
//!
//! Each test ends at rest: the store's listing equals the catalog's references.

mod cluster;
mod ending;
mod errors;
mod failing;
mod large;
mod rendering;
mod replicas;
mod story;
mod support;
mod workers;
