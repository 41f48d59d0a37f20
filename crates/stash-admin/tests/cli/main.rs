//! The command line as a newcomer meets it: the built binary, real files, a stash in a folder of its own.
//!
//! Every test that writes looks at the store afterwards; nothing here waits for a time, only for what a process
//! says.

#[cfg(feature = "s3")]
mod buckets;
mod expiring;
mod faults;
mod interruptions;
mod keeping;
mod loading;
mod looking;
#[cfg(feature = "prometheus")]
mod measuring;
mod reading;
mod simulating;
mod untouched;
mod world;
