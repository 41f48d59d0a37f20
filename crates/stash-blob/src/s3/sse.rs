//! How a store is told to encrypt, and the customer's own key.
//!
//! The key of SSE-C is read from a file: its 32 bytes as they are, or in base64. It is never printed.

use std::path::Path;

use aws_smithy_types::base64;
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

/// Makes every upload say how it is to be encrypted, and with a customer's key every read too.
pub(crate) async fn applied(builder: AmazonS3Builder, sse: &Sse) -> Result<AmazonS3Builder, KeyError> {
    Ok(match sse {
        Sse::Bucket => builder,
        Sse::S3 => of_kind(builder, "AES256"),
        Sse::Kms(None) => of_kind(builder, "aws:kms"),
        Sse::Kms(Some(key)) => builder.with_sse_kms_encryption(key),
        Sse::CustomerKey(path) => builder.with_ssec_encryption(customer_key(path).await?),
    })
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
