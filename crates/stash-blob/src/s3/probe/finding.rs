//! What is asked of a store, and what it answered.

use serde::{Deserialize, Serialize};

/// Declares the questions with their words, so that none can be without.
macro_rules! checks {
    ($($(#[$doc:meta])* $name:ident = $words:literal,)*) => {
        /// A question to the store. Where a promise is asked for, *yes* is the better answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Check {
            $($(#[$doc])* $name,)*
        }

        impl Check {
            /// All of them, in the order they are reported in.
            pub const ALL: &'static [Check] = &[$(Check::$name,)*];

            /// The question in words.
            pub fn words(self) -> &'static str {
                match self {
                    $(Check::$name => $words,)*
                }
            }
        }
    };
}

checks! {
    /// With these credentials, below this prefix.
    Reach = "objects are put, read and deleted",
    /// A GET right after the PUT has its bytes.
    ReadAfterWrite = "what was put is read at once",
    /// A HEAD right after the DELETE finds nothing.
    ReadAfterDelete = "what was deleted is gone at once",
    /// A listing right after the PUT has the key.
    ListAfterWrite = "what was put is listed at once",
    /// A listing right after the DELETE has it no longer.
    ListAfterDelete = "what was deleted is not listed",
    /// `If-None-Match: *` on a free key.
    CreateNew = "a create-only PUT makes an object",
    /// `If-None-Match: *` on a taken key: 412 or 409, and the object is as it was.
    CreateTaken = "a create-only PUT of a taken key is refused",
    /// Rounds of 32 creates of one key at once.
    CreateRace = "of 32 creates at once one succeeds",
    /// `Range: bytes=a-b`.
    RangeExact = "a range has exactly its bytes",
    /// `Range: bytes=-n`.
    RangeSuffix = "a range counted from the end",
    /// A range that begins behind the last byte: 416.
    RangeBeyond = "a range beyond the end is refused",
    /// Ascending by bytes, over all pages.
    ListOrder = "listings are in order",
    /// Pages of few keys: each key once.
    ListPages = "listings come whole, page by page",
    /// `start-after`.
    ListStartAfter = "a listing starts after a key",
    /// A DELETE of a key that is not there.
    DeleteAbsent = "deleting what is absent is no error",
    /// DeleteObjects with a thousand keys.
    BulkDelete = "1,000 keys are deleted by one request",
    /// The answer names every key.
    BulkPerKey = "a bulk delete answers key by key",
    /// A key of a bulk delete that is not there.
    BulkAbsent = "an absent key in a bulk delete is no error",
    /// DeleteObjects without that header.
    BulkWithoutMd5 = "a bulk delete needs no Content-MD5",
    /// Begin, upload parts, complete, read.
    Multipart = "an object is uploaded in parts",
    /// Parts of one upload, none of them the last, that differ in size.
    MultipartUnequal = "parts of an upload may differ in size",
    /// Part 10,000 is taken.
    MultipartCount = "an upload may have 10,000 parts",
    /// `If-None-Match: *` when an upload is completed.
    MultipartCreate = "completing an upload can be create-only",
    /// ListMultipartUploads shows one under way.
    MultipartListed = "an upload under way is listed",
    /// It shows it no longer once it was aborted.
    MultipartAborted = "an aborted upload is gone",
    /// `x-amz-checksum-sha256`, the right one.
    ChecksumTaken = "a SHA-256 of the body is accepted",
    /// `x-amz-checksum-sha256`, of another body.
    ChecksumVerified = "a wrong SHA-256 is refused",
    /// `Content-MD5`, of another body.
    Md5Verified = "a wrong Content-MD5 is refused",
    /// Encryption by keys of the store.
    SseS3 = "SSE-S3: the store's keys",
    /// Encryption by the key management service.
    SseKms = "SSE-KMS: keys of a management service",
    /// Encryption by a key in the request.
    SseC = "SSE-C: a key in each request",
    /// What `?sse=` says.
    SseAsked = "objects are encrypted as the URL says",
    /// The right key id with another secret.
    SecretRefused = "a wrong secret is refused",
    /// The store's `Date` against the clock that signs.
    ClockInStep = "its clock agrees with this machine's",
    /// Versioning was never switched on.
    Unversioned = "deleted bytes are really gone",
}

/// What the store answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is so.
    Yes,
    /// It is not so.
    No,
    /// That could not be found out, and why.
    Unknown(String),
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The question.
    pub what: Check,
    /// The answer.
    pub result: Answer,
    /// What was seen, for people; may be empty.
    pub detail: String,
}

impl Finding {
    /// It is so.
    pub fn yes(what: Check, detail: impl Into<String>) -> Finding {
        Finding { what, result: Answer::Yes, detail: detail.into() }
    }

    /// It is not so.
    pub fn no(what: Check, detail: impl Into<String>) -> Finding {
        Finding { what, result: Answer::No, detail: detail.into() }
    }

    /// It is so, or not.
    pub fn of(what: Check, is: bool, detail: impl Into<String>) -> Finding {
        if is { Finding::yes(what, detail) } else { Finding::no(what, detail) }
    }

    /// It could not be found out.
    pub fn unknown(what: Check, why: impl Into<String>) -> Finding {
        Finding { what, result: Answer::Unknown(why.into()), detail: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_back_from_its_json() {
        for finding in [
            Finding::yes(Check::CreateRace, "8 rounds"),
            Finding::no(Check::BulkDelete, "501"),
            Finding::unknown(Check::SseC, "the connection broke"),
        ] {
            let text = serde_json::to_string(&finding).expect("JSON");
            assert_eq!(serde_json::from_str::<Finding>(&text).expect("reads"), finding, "{text}");
        }
        let text = serde_json::to_string(&Finding::yes(Check::CreateRace, "")).expect("JSON");
        assert_eq!(text, r#"{"what":"create-race","result":"yes","detail":""}"#);
    }
}
