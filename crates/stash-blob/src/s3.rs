//! Amazon S3 and what speaks its protocol.
//!
//! [`S3Config`] says which bucket and how, most of it read from an `s3://` URL.

mod config;

pub use config::{S3Config, S3UrlError, Sse};
