//! Which bucket, and how it is spoken to.
//!
//! An `s3://bucket/prefix?name=value&…` URL names all of it but the credentials, which come from the chain that every
//! AWS tool reads. What is secret never stands in the URL: a customer's own key is read from a file that it names.

use std::{fmt, path::PathBuf, time::Duration};

use url::Url;

use crate::shown_url;

/// How objects are encrypted at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sse {
    /// As the bucket says.
    #[default]
    Bucket,
    /// By keys that the store manages (SSE-S3).
    S3,
    /// By a key in the key management service (SSE-KMS); `None`: the account's own.
    Kms(Option<String>),
    /// By a key of the customer's (SSE-C): a file that holds its 32 bytes, raw or in base64.
    CustomerKey(PathBuf),
}

/// What the store keeps of an upload's bytes to check them by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadChecksum {
    /// SHA-256.
    #[default]
    Sha256,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// None, for stores that refuse checksums they do not know.
    Off,
}

/// Keys that are given, instead of found by the chain. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Keys {
    /// The access key's id.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
    /// The session's token, where the keys are temporary.
    pub session_token: Option<String>,
}

impl S3Keys {
    /// Keys without a session.
    pub fn new(access_key_id: impl Into<String>, secret_access_key: impl Into<String>) -> S3Keys {
        S3Keys {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token: None,
        }
    }
}

impl fmt::Debug for S3Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("S3Keys(***)")
    }
}

/// How to reach a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// The bucket.
    pub bucket: String,
    /// Where in the bucket the stash lies; no slash at either end, empty for the whole bucket.
    pub prefix: String,
    /// The region; `None`: what the environment or the profile says, else `us-east-1` where an endpoint is given.
    pub region: Option<String>,
    /// Another endpoint than the region's own, with its scheme: `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// Whether the bucket stands in the path (`endpoint/bucket`) rather than in the host name. Default: where an endpoint is given.
    pub path_style: bool,
    /// The profile of the shared configuration files; `None`: what the environment says.
    pub profile: Option<String>,
    /// Keys to use; `None`, the default: what the credential chain finds. No URL holds them.
    pub keys: Option<S3Keys>,
    /// How objects are encrypted.
    pub sse: Sse,
    /// Above how many bytes an object is uploaded in several requests. Default 256 MiB, at most 5 GiB (what a PUT may have).
    pub put_bytes_max: u64,
    /// What uploads carry for the store to check. Default SHA-256: the request's signature needs it anyway.
    pub checksum: UploadChecksum,
    /// Whether PUTs ask the store to refuse a taken key (`If-None-Match: *`). Default true; false for stores that do not
    /// know it, and then a HEAD comes first, which a race can pass between.
    pub create_only: bool,
    /// Whether keys are deleted by the thousand (DeleteObjects). Default true; false for stores that do not know it.
    pub bulk_delete: bool,
    /// How long one request may take to connect. Default 5 s.
    pub connect_timeout: Duration,
    /// How long an operation may take with all its retries, a body's transfer aside. Default 60 s.
    pub retry_timeout: Duration,
    /// How long a request may go without an answer, or an answer without its next byte. Default 30 s. A body that is
    /// sent gets a second more for each 128 KiB.
    pub stall_timeout: Duration,
}

/// What is wrong with an `s3://` URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{url:?} is not a usable S3 URL: {why}; write s3://BUCKET/PREFIX, with ?region=…&endpoint=… where needed"
)]
pub struct S3UrlError {
    /// The URL, without anything secret.
    pub url: String,
    /// What is wrong, and what to write instead.
    pub why: String,
}

/// The largest object that one PUT may carry, in bytes.
const PUT_BYTES_LIMIT: u64 = 5 << 30;

impl S3Config {
    /// For a bucket, with the defaults.
    pub fn new(bucket: impl Into<String>, prefix: impl Into<String>) -> S3Config {
        S3Config {
            bucket: bucket.into(),
            prefix: prefix.into(),
            region: None,
            endpoint: None,
            path_style: false,
            profile: None,
            keys: None,
            sse: Sse::Bucket,
            checksum: UploadChecksum::Sha256,
            create_only: true,
            bulk_delete: true,
            put_bytes_max: 256 << 20,
            connect_timeout: Duration::from_secs(5),
            retry_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(30),
        }
    }

    /// Reads `s3://bucket/prefix?name=value&…`; the names are `region`, `endpoint`, `path_style`, `profile`, `sse`
    /// (`s3`, `kms`, `kms:KEY`, `c:FILE`), `put_bytes_max`, `checksum` (`sha256`, `crc64nvme`, `off`), `create_only`,
    /// `bulk_delete`, `connect_timeout_s`, `retry_timeout_s` and `stall_timeout_s`.
    pub fn from_url(text: &str) -> Result<S3Config, S3UrlError> {
        let refuse = |why: String| S3UrlError { url: shown_url(text), why };
        let url = Url::parse(text).map_err(|error| refuse(error.to_string()))?;
        if url.scheme() != "s3" {
            return Err(refuse(format!("its scheme is {:?}", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refuse(
                "credentials do not belong into a URL; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile".to_owned(),
            ));
        }
        let bucket = url.host_str().filter(|host| !host.is_empty());
        let bucket = bucket.ok_or_else(|| refuse("it names no bucket".to_owned()))?;
        if url.port().is_some() || url.fragment().is_some() {
            return Err(refuse(
                "a bucket has no port and no fragment; an endpoint goes into ?endpoint=".to_owned(),
            ));
        }
        let prefix = url.path().trim_matches('/');
        if prefix.split('/').any(|segment| matches!(segment, "" | "." | "..")) && !prefix.is_empty() {
            return Err(refuse("its prefix has an empty part, or one of dots".to_owned()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.=/".contains(c);
        if !prefix.chars().all(allowed) {
            return Err(refuse("a prefix is of letters, digits, '-', '_', '.', '=' and '/'".to_owned()));
        }
        let mut config = S3Config::new(bucket, prefix);
        let mut path_style = None;
        let mut seen = Vec::new();
        for (name, value) in url.query_pairs() {
            if seen.contains(&name) {
                return Err(refuse(format!("{name} stands in it twice")));
            }
            let number = || value.parse::<u64>().map_err(|_| refuse(format!("{name} is a whole number")));
            let truth = || value.parse::<bool>().map_err(|_| refuse(format!("{name} is true or false")));
            match &*name {
                "region" => config.region = Some(value.into_owned()),
                "endpoint" => config.endpoint = Some(endpoint(&value).map_err(refuse)?),
                "profile" => config.profile = Some(value.into_owned()),
                "path_style" => path_style = Some(truth()?),
                "create_only" => config.create_only = truth()?,
                "bulk_delete" => config.bulk_delete = truth()?,
                "checksum" => config.checksum = checksum(&value).map_err(refuse)?,
                "sse" => config.sse = sse(&value).map_err(refuse)?,
                "put_bytes_max" => config.put_bytes_max = number()?,
                "connect_timeout_s" => config.connect_timeout = Duration::from_secs(number()?),
                "retry_timeout_s" => config.retry_timeout = Duration::from_secs(number()?),
                "stall_timeout_s" => config.stall_timeout = Duration::from_secs(number()?),
                _ => {
                    return Err(refuse(format!(
                        "{name:?} is unknown; there are region, endpoint, path_style, profile, sse, put_bytes_max, checksum, create_only, bulk_delete, connect_timeout_s, retry_timeout_s and stall_timeout_s"
                    )));
                }
            }
            seen.push(name);
        }
        if !(5 << 20..=PUT_BYTES_LIMIT).contains(&config.put_bytes_max) {
            return Err(refuse("put_bytes_max lies between 5 MiB and 5 GiB".to_owned()));
        }
        config.path_style = path_style.unwrap_or(config.endpoint.is_some());
        Ok(config)
    }

    /// `s3://bucket/prefix`: where the stash is, for people.
    pub fn location(&self) -> String {
        if self.prefix.is_empty() {
            format!("s3://{}", self.bucket)
        } else {
            format!("s3://{}/{}", self.bucket, self.prefix)
        }
    }
}

impl fmt::Display for S3Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location())
    }
}

/// The scheme, host and port of an endpoint, or what is wrong with it.
fn endpoint(text: &str) -> Result<String, String> {
    let wrong = |why: &str| format!("endpoint {:?}: {why}", shown_url(text));
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("write http://HOST:PORT or https://HOST"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("credentials do not belong into a URL"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn checksum(text: &str) -> Result<UploadChecksum, String> {
    match text {
        "sha256" => Ok(UploadChecksum::Sha256),
        "crc64nvme" => Ok(UploadChecksum::Crc64Nvme),
        "off" => Ok(UploadChecksum::Off),
        _ => Err("checksum is sha256, crc64nvme or off".to_owned()),
    }
}

fn sse(text: &str) -> Result<Sse, String> {
    match text.split_once(':') {
        None if text == "s3" => Ok(Sse::S3),
        None if text == "kms" => Ok(Sse::Kms(None)),
        Some(("kms", key)) if !key.is_empty() => Ok(Sse::Kms(Some(key.to_owned()))),
        Some(("c", file)) if !file.is_empty() => Ok(Sse::CustomerKey(PathBuf::from(file))),
        _ => Err("sse is s3, kms, kms:KEY or c:FILE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_everything_but_the_credentials() {
        let config = S3Config::from_url(
            "s3://bucket/a/b?endpoint=http://127.0.0.1:9000&region=eu-1&sse=kms:k1&put_bytes_max=10000000&retry_timeout_s=7",
        )
        .expect("a good URL");
        assert_eq!((config.bucket.as_str(), config.prefix.as_str()), ("bucket", "a/b"));
        assert_eq!(config.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(config.region.as_deref(), Some("eu-1"));
        assert!(config.path_style, "an endpoint of one's own is spoken to in path style");
        assert_eq!(config.sse, Sse::Kms(Some("k1".to_owned())));
        assert_eq!(config.put_bytes_max, 10_000_000);
        assert_eq!(config.retry_timeout, Duration::from_secs(7));
        assert_eq!(config.location(), "s3://bucket/a/b");
        assert!(config.create_only && config.bulk_delete, "what a store should be able to do is the default");
        let plain =
            S3Config::from_url("s3://b?create_only=false&bulk_delete=false&checksum=off&stall_timeout_s=3")
                .expect("a store of few abilities");
        assert!(!plain.create_only && !plain.bulk_delete);
        assert_eq!((plain.checksum, plain.stall_timeout), (UploadChecksum::Off, Duration::from_secs(3)));
        assert_eq!(S3Config::from_url("s3://bucket").expect("no prefix").prefix, "");
    }

    #[test]
    fn keys_are_not_printed() {
        let mut config = S3Config::new("b", "p");
        config.keys = Some(S3Keys::new("AKID", "hunter2"));
        let printed = format!("{config:?} {config}");
        assert!(!printed.contains("hunter2") && !printed.contains("AKID"), "{printed}");
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_and_nothing_secret_with_it() {
        for (url, why) in [
            ("s3:///a", "bucket"),
            ("s3://b/a//c", "empty part"),
            ("s3://b/a?colour=red", "unknown"),
            ("s3://b/a?sse=rot13", "sse is"),
            ("s3://b/a?checksum=md5", "checksum is"),
            ("s3://b/a?create_only=maybe", "create_only is true or false"),
            ("s3://b/a?region=x&region=y", "twice"),
            ("s3://b/a?put_bytes_max=1", "5 MiB"),
            ("s3://b/a?endpoint=ftp://h", "http://"),
            ("s3://key:hunter2@b/a", "credentials"),
            ("s3://b/a?endpoint=http://u:hunter2@h", "credentials"),
            ("http://b/a", "scheme"),
        ] {
            let error = S3Config::from_url(url).expect_err(url).to_string();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }
}
