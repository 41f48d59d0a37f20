//! Amazon S3 and what speaks its protocol.
//!
//! [`S3Config`] says which bucket and how, most of it read from an `s3://` URL. [`credentials::load`] finds out who asks, and where the bucket is.
//! [`S3Admin`] does what `object_store` cannot; [`probe()`] finds out what a store really does.

mod admin;
mod config;
pub mod credentials;
mod failed;
mod probe;

pub use admin::{S3Admin, Upload};
pub use config::{S3Config, S3Keys, S3UrlError, Sse, UploadChecksum};
pub use probe::{Answer, Check, Consequence, Finding, Latency, Probe, ProbeReport, Verdict, probe, verdict};
