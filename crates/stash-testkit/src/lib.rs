//! Fault stores, scenarios and oracles for the tests of Stash.
