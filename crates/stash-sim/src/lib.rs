//! The simulator: the real code over a simulated store, network, clock and catalog, by seed.

pub mod catalog;
