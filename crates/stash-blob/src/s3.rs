//! Amazon S3 and what speaks its protocol.
//!
//! [`S3Config`] says which bucket and how, most of it read from an `s3://` URL. [`credentials::load`] finds out who asks, and where the bucket is.
//! [`S3Store`] keeps a stash's objects there; [`S3Admin`] does what `object_store` cannot; [`probe()`] finds out what a
//! store really does, [`check_bucket`] how a bucket is set up, and [`init_bucket`] sets it up.

mod admin;
mod body;
mod bucket;
mod bulk;
mod config;
mod credential_cache;
pub mod credentials;
mod digest;
mod failed;
mod probe;
mod quiet;
mod refusal;
mod requests;
mod sse;
mod store;
mod upload;

pub use admin::{S3Admin, Upload};
pub use bucket::{
    Aspect, BucketItem, BucketPlan, BucketReport, BucketStep, Standing, StepOutcome, check_bucket,
    init_bucket,
};
pub use config::{S3Config, S3Keys, S3UrlError, Sse, UploadChecksum};
pub use probe::{Answer, Check, Consequence, Finding, Latency, Probe, ProbeReport, Verdict, probe, verdict};
pub use refusal::S3Refusal;
pub use store::S3Store;
