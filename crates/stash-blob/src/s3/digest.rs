//! Digests and codes that headers of S3 want.

use aws_sdk_s3::config::http::HttpRequest;
use md5::{Digest, Md5};

/// In base64, as headers have it.
pub(super) fn base64(bytes: &[u8]) -> String {
    aws_smithy_types::base64::encode(bytes)
}

/// The MD5 of `bytes`.
pub(super) fn md5(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

/// Adds `Content-MD5`, which some stores want of every request whose body is a document.
pub(super) fn add_content_md5(request: &mut HttpRequest) {
    let digest = md5(request.body().bytes().unwrap_or_default());
    request.headers_mut().insert("content-md5", base64(&digest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_headers_have_them() {
        assert_eq!(base64(&md5(b"stash")), "W7KZD8la2ox7uw5vMDbmsw==");
    }
}
