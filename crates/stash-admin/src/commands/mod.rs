//! The verbs, one file each. A verb opens the stash, makes its library calls, and prints what they gave.

pub mod audit;
#[cfg(feature = "s3")]
pub mod bucket;
pub mod cat;
pub mod chain;
pub mod consumers;
mod deletions;
pub mod drop;
pub mod expire;
pub mod explain;
pub mod health;
pub mod history;
pub mod load;
pub mod parts;
#[cfg(feature = "s3")]
pub mod probe;
pub mod read;
pub mod salvage;
pub mod sim;
pub mod sinks;
pub mod sweep;
pub mod verify;
