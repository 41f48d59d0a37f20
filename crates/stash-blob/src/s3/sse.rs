//! How a store is told to encrypt, and the customer's own key.
//!
//! The key of SSE-C is read from a file: its 32 bytes as they are, or in base64. It is never printed.

use std::path::Path;

use aws_smithy_types::base64;
use http::{HeaderMap, HeaderName, HeaderValue};
use md5::{Digest, Md5};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use super::Sse;

/// How many bytes a customer's key has.
const KEY_BYTES: usize = 32;

/// What is wrong with a customer's key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("the file {path:?} of the encryption key cannot be read")]
    Unreadable {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the file {path:?} holds no encryption key: write {KEY_BYTES} bytes, raw or in base64")]
    Malformed { path: std::path::PathBuf },
}

/// How a store is told to encrypt, with the customer's key where it is one.
pub(crate) enum Encryption {
    /// As the bucket says.
    Bucket,
    /// `AES256`, or a kind with a key that the store manages.
    Managed(&'static str),
    /// By this key of the key management service.
    Kms(String),
    /// By the customer's key, in base64.
    Customer(String),
}

impl Encryption {
    /// Reads the customer's key, where there is one.
    pub(crate) async fn of(sse: &Sse) -> Result<Encryption, KeyError> {
        Ok(match sse {
            Sse::Bucket => Encryption::Bucket,
            Sse::S3 => Encryption::Managed("AES256"),
            Sse::Kms(None) => Encryption::Managed("aws:kms"),
            Sse::Kms(Some(key)) => Encryption::Kms(key.clone()),
            Sse::CustomerKey(path) => Encryption::Customer(customer_key(path).await?),
        })
    }

    /// Makes every upload say how it is to be encrypted, and with a customer's key every read too.
    pub(crate) fn applied(&self, builder: AmazonS3Builder) -> AmazonS3Builder {
        match self {
            Encryption::Bucket => builder,
            Encryption::Managed(kind) => of_kind(builder, kind),
            Encryption::Kms(key) => builder.with_sse_kms_encryption(key),
            Encryption::Customer(key) => builder.with_ssec_encryption(key),
        }
    }

    /// What the request that publishes an upload has to say: stores that checked its pieces want the customer's key once
    /// more, and `object_store` does not give it there.
    pub(crate) fn publishing(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let Encryption::Customer(key) = self else { return headers };
        let digest = base64::encode(Md5::digest(base64::decode(key).unwrap_or_default()));
        for (name, value) in [("algorithm", "AES256"), ("key", key.as_str()), ("key-md5", digest.as_str())] {
            let name = format!("x-amz-server-side-encryption-customer-{name}");
            if let (Ok(name), Ok(mut value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        headers
    }
}

fn of_kind(builder: AmazonS3Builder, kind: &str) -> AmazonS3Builder {
    match "aws_server_side_encryption".parse::<AmazonS3ConfigKey>() {
        Ok(name) => builder.with_config(name, kind),
        Err(_) => builder,
    }
}

/// The key in base64.
async fn customer_key(path: &Path) -> Result<String, KeyError> {
    let read = tokio::fs::read(path).await;
    let bytes = read.map_err(|source| KeyError::Unreadable { path: path.to_owned(), source })?;
    in_base64(&bytes).ok_or_else(|| KeyError::Malformed { path: path.to_owned() })
}

fn in_base64(bytes: &[u8]) -> Option<String> {
    if bytes.len() == KEY_BYTES {
        return Some(base64::encode(bytes));
    }
    let text = std::str::from_utf8(bytes).ok()?.trim();
    let decoded = base64::decode(text).ok()?;
    (decoded.len() == KEY_BYTES).then(|| base64::encode(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_bytes_or_their_base64() {
        let raw = [7_u8; 32];
        let text = base64::encode(raw);
        assert_eq!(in_base64(&raw), Some(text.clone()));
        assert_eq!(in_base64(format!("{text}\n").as_bytes()), Some(text));
        for wrong in [&raw[..31], b"AAAA", b"", &[0xff; 44]] {
            assert_eq!(in_base64(wrong), None);
        }
    }

    #[tokio::test]
    async fn a_wrong_key_is_refused_and_not_printed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("key");
        std::fs::write(&path, "hunter2").expect("a file");
        let error = customer_key(&path).await.expect_err("too short").to_string();
        assert!(error.contains("32 bytes") && !error.contains("hunter2"), "{error}");
        let error = customer_key(&dir.path().join("none")).await.expect_err("absent").to_string();
        assert!(error.contains("cannot be read"), "{error}");
    }
}
