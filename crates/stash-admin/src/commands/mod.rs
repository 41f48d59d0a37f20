//! The verbs, one file each. A verb opens the stash, makes its library calls, and prints what they gave.

pub mod audit;
pub mod cat;
pub mod chain;
pub mod consumers;
pub mod drop;
pub mod expire;
pub mod explain;
pub mod health;
pub mod history;
pub mod load;
pub mod parts;
pub mod read;
pub mod salvage;
pub mod sim;
pub mod sinks;
pub mod sweep;
pub mod verify;
