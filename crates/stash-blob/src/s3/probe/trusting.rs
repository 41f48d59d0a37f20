//! What the store verifies, encrypts and keeps: checksums, SSE, signatures, the clock, versions.

use aws_credential_types::Credentials;
use aws_sdk_s3::types::{BucketVersioningStatus, ServerSideEncryption};
use bytes::Bytes;

use super::{
    finding::{Answer, Check, Finding},
    site::Site,
    step::{Found, from_failure},
};
use crate::s3::{
    Sse,
    digest::{base64, md5},
    failed::Failed,
    quiet::Quietly,
};

/// A body and its SHA-256 in base64.
const BODY: &[u8] = b"stash";
const BODY_SHA256: &str = "LHAjf1DeFdJl5o6iLTmJNfwe/nLxyNFYJPqaL2mhLAs=";
/// A key to try SSE-C with; it encrypts nothing but the probe's own five bytes.
const SSE_C_KEY: [u8; 32] = [0x5a; 32];
/// Seconds that clocks may be apart; requests that are signed 15 minutes off are refused.
const APART_MAX: i64 = 5 * 60;

/// A checksum that is right, and two that are wrong.
pub(super) async fn checksums(site: &Site, found: &mut Found<'_>) {
    match site.put_with("sha256", BODY, |put| put.checksum_sha256(BODY_SHA256)).await {
        Ok(_) => found.yes(Check::ChecksumTaken, ""),
        Err(failed) => found.failed(Check::ChecksumTaken, &failed),
    }
    if found.get(Check::ChecksumTaken).is_some_and(|finding| finding.result == Answer::No) {
        found.unknown(Check::ChecksumVerified, "it takes none");
    }
    let wrong = base64(&[0; 32]);
    let answer = site.put_with("wrong-sha256", BODY, |put| put.checksum_sha256(wrong)).await;
    found.add(refused(Check::ChecksumVerified, answer.map(drop)));
    let wrong = base64(&[0; 16]);
    let answer = site.put_with("wrong-md5", BODY, |put| put.content_md5(wrong)).await;
    found.add(refused(Check::Md5Verified, answer.map(drop)));
}

/// Whether what is wrong was refused as such.
fn refused(check: Check, answer: Result<(), Failed>) -> Finding {
    match answer {
        Ok(()) => Finding::no(check, "accepted"),
        Err(failed) if failed.status() == Some(400) => Finding::yes(check, failed.short()),
        Err(failed) => from_failure(check, &failed),
    }
}

/// Each way to encrypt, and whether what the URL asks for is among them.
pub(super) async fn encryption(site: &Site, found: &mut Found<'_>) {
    let asked = site.config().sse.clone();
    let s3 = by_store(site, Check::SseS3, ServerSideEncryption::Aes256, None).await;
    let key = if let Sse::Kms(key) = &asked { key.clone() } else { None };
    let kms = by_store(site, Check::SseKms, ServerSideEncryption::AwsKms, key).await;
    let customer = by_customer(site).await;
    let of = |finding: &Finding| Finding { what: Check::SseAsked, ..finding.clone() };
    let judged = match asked {
        Sse::Bucket => Finding::yes(Check::SseAsked, "it leaves that to the bucket"),
        Sse::S3 => of(&s3),
        Sse::Kms(_) => of(&kms),
        Sse::CustomerKey(_) => of(&customer),
    };
    [s3, kms, customer, judged].into_iter().for_each(|finding| found.add(finding));
}

async fn by_store(site: &Site, check: Check, how: ServerSideEncryption, key: Option<String>) -> Finding {
    let name = format!("sse/{}", how.as_str());
    let wanted = how.clone();
    let put = site.put_with(&name, BODY, |put| put.server_side_encryption(how).set_ssekms_key_id(key)).await;
    match put {
        Ok(put) if put.server_side_encryption() != Some(&wanted) => {
            Finding::no(check, "accepted, and not confirmed")
        }
        Ok(_) => match site.get(&name).await {
            Ok(got) => Finding::of(check, got.as_deref() == Some(BODY), ""),
            Err(failed) => from_failure(check, &failed),
        },
        Err(failed) => from_failure(check, &failed),
    }
}

/// PUTs with a key, and reads with it and without.
async fn by_customer(site: &Site) -> Finding {
    let (check, name) = (Check::SseC, "sse/customer");
    let (key, digest) = (base64(&SSE_C_KEY), base64(&md5(&SSE_C_KEY)));
    let put = site.put_with(name, BODY, |put| {
        put.sse_customer_algorithm("AES256").sse_customer_key(&key).sse_customer_key_md5(&digest)
    });
    match put.await {
        Ok(put) if put.sse_customer_algorithm().is_none() => {
            return Finding::no(check, "accepted, and not confirmed");
        }
        Ok(_) => {}
        Err(failed) => return from_failure(check, &failed),
    }
    if site.fetch(name, None).await.is_ok() {
        return Finding::no(check, "accepted, and read without the key");
    }
    let (client, bucket) = site.steady();
    let get = client.get_object().bucket(bucket).key(site.key(name)).sse_customer_algorithm("AES256");
    match get
        .sse_customer_key(&key)
        .sse_customer_key_md5(&digest)
        .send()
        .quietly()
        .await
        .map_err(Failed::from)
    {
        Ok(got) => {
            let got = got.body.collect().await.map(|body| body.into_bytes());
            Finding::of(check, matches!(got, Ok(body) if body == Bytes::from_static(BODY)), "")
        }
        Err(failed) => from_failure(check, &failed),
    }
}

/// The same key id with another secret must be refused.
pub(super) async fn signatures(site: &Site, found: &mut Found<'_>) {
    let check = Check::SecretRefused;
    let credentials = match site.credentials().await {
        Ok(credentials) => credentials,
        Err(failed) => return found.failed(check, &failed),
    };
    let wrong = Credentials::builder()
        .access_key_id(credentials.access_key_id())
        .secret_access_key("not-the-secret-of-this-key")
        .provider_name("wrong");
    let mut wrong = wrong;
    wrong.set_session_token(credentials.session_token().map(str::to_owned));
    let stranger = site.stranger(wrong.build());
    let list = stranger.client().list_objects_v2().bucket(stranger.bucket()).prefix(site.key("")).max_keys(1);
    match list.send().quietly().await.map_err(Failed::from) {
        Ok(_) => found.no(check, "it is let in"),
        Err(failed) if failed.is_denied() => found.yes(check, failed.short()),
        Err(failed) => found.failed(check, &failed),
    }
}

/// Its clock against the one that signs; to the second, as the header has it.
pub(super) fn clock(site: &Site, found: &mut Found<'_>) {
    let check = Check::ClockInStep;
    match site.ahead() {
        None => found.unknown(check, "it sends no date"),
        Some(ahead) => found.of(check, ahead.abs() <= APART_MAX, apart(ahead)),
    }
}

fn apart(ahead: i64) -> String {
    match ahead {
        0 => "less than a second apart".to_owned(),
        1.. => format!("the store is {ahead} s ahead"),
        _ => format!("the store is {} s behind", ahead.abs()),
    }
}

/// Whether the bucket keeps old versions. `true`: a deletion leaves something behind.
pub(super) async fn versions(site: &Site, found: &mut Found<'_>) -> bool {
    let check = Check::Unversioned;
    let (client, bucket) = site.steady();
    let versioning =
        client.get_bucket_versioning().bucket(bucket).send().quietly().await.map_err(Failed::from);
    let status = versioning.as_ref().map(|versioning| versioning.status());
    match status {
        Ok(Some(BucketVersioningStatus::Enabled)) => found.no(check, "the bucket keeps versions"),
        // A deletion leaves a marker, and no bytes.
        Ok(Some(BucketVersioningStatus::Suspended)) => found.yes(check, "versions are suspended"),
        Ok(_) => found.yes(check, "the bucket keeps no versions"),
        Err(Failed::Refused { status: 404 | 405 | 501, .. }) => found.yes(check, "the store has no versions"),
        Err(failed) => found.failed(check, failed),
    }
    matches!(status, Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_the_request_says_that_a_checksum_is_verified() {
        let of = |status| {
            let failed = Failed::Refused { status, code: "BadDigest".to_owned(), message: String::new() };
            refused(Check::ChecksumVerified, Err(failed)).result
        };
        assert_eq!((of(400), refused(Check::Md5Verified, Ok(())).result), (Answer::Yes, Answer::No));
        assert_eq!(of(501), Answer::No);
        assert!(matches!(of(503), Answer::Unknown(_)));
    }

    #[test]
    fn clocks_apart_say_who_is_ahead() {
        assert_eq!(apart(0), "less than a second apart");
        assert_eq!(apart(3), "the store is 3 s ahead");
        assert_eq!(apart(-4000), "the store is 4000 s behind");
    }
}
