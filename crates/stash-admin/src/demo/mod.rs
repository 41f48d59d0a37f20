//! `stash-admin demo`: a changefeed, replicas that cut it at bounds of their own, and an oracle.
#![allow(dead_code, unused_imports, reason = "the demo verb, which uses all of it, is written on top")]

pub mod feed;
pub mod input;
pub mod tally;
pub mod tpch;
