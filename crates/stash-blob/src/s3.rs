//! Amazon S3 and what speaks its protocol.
//!
//! [`S3Config`] says which bucket and how, most of it read from an `s3://` URL. [`credentials::load`] finds out who asks, and where the bucket is.

mod config;
pub mod credentials;

pub use config::{S3Config, S3Keys, S3UrlError, Sse, UploadChecksum};
