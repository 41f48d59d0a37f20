//! Crash tests: real processes that die at named places, over the embedded default (local files and SQLite).
//!
//! A *world* ([`World`]) is a stash in a temporary folder and the processes that use it: replicas of one or more
//! processes, a consumer, a sweeper, at the end an expirer and a dropper. Every one of them is a *role* ([`role`]) of
//! one binary, which takes orders on standard input and tells what happened on standard output, a line each
//! ([`message`]). The harness is the network between the processes of a replica, and the clock of their input.
//!
//! - The feed is a pure function of a seed ([`feed`]), so that every replica computes the same and the oracle shares
//!   no code with the product.
//! - A process is *armed* with a place and a hit count ([`place`]): there it kills itself, with SIGKILL. What died is
//!   started again, armed with what is next in the plan, or unarmed.
//! - At the end all handles are closed and the world is *audited* ([`audit`]): nothing lost, nothing doubled, nothing
//!   left. Then the sink is dropped, and nothing of it may remain.
//! - Nothing waits for a while: everybody waits for a line, or for a process to be gone. Each process has a
//!   deadline of its own, and ends when its standard input does.
//!
//! A SIGKILL loses nothing that a system call handed to the kernel, so the folder may be memory. What a *power loss*
//! does is looked at elsewhere: by errors injected into `fsync`, and by write-ahead logs whose tail is torn.

pub mod audit;
pub mod campaign;
pub mod child;
pub mod feed;
pub mod message;
pub mod place;
pub mod plan;
pub mod results;
pub mod role;
pub mod setup;
pub mod world;

pub use audit::Audit;
pub use campaign::{Campaign, Report};
pub use place::At;
pub use plan::{Death, Plan, Wanted};
pub use setup::{ReplicaSetup, Setup, Who};
pub use world::{Happening, Outcome, What, World};
