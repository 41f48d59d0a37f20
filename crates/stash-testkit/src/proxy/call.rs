//! Which call of the S3 API an HTTP request is.

use std::fmt;

use http::{HeaderMap, Method};

macro_rules! calls {
    ($($name:ident $action:literal,)*) => {
        /// A call of the S3 API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Call {
            $(#[doc = concat!("`", stringify!($name), "`, which needs `", $action, "`.")] $name,)*
        }

        impl Call {
            /// All of them.
            pub const ALL: &[Call] = &[$(Call::$name),*];

            /// Its name in the S3 API.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$name => stringify!($name),)* }
            }

            /// What a policy must allow for it.
            pub const fn action(self) -> &'static str {
                match self { $(Call::$name => $action,)* }
            }
        }
    };
}

calls! {
    AbortMultipartUpload "s3:AbortMultipartUpload",
    CompleteMultipartUpload "s3:PutObject",
    CopyObject "s3:PutObject",
    CreateBucket "s3:CreateBucket",
    CreateMultipartUpload "s3:PutObject",
    DeleteBucket "s3:DeleteBucket",
    DeleteObject "s3:DeleteObject",
    DeleteObjects "s3:DeleteObject",
    GetBucketEncryption "s3:GetEncryptionConfiguration",
    GetBucketLifecycleConfiguration "s3:GetLifecycleConfiguration",
    GetBucketLocation "s3:GetBucketLocation",
    GetBucketPolicy "s3:GetBucketPolicy",
    GetBucketVersioning "s3:GetBucketVersioning",
    GetObject "s3:GetObject",
    GetObjectAttributes "s3:GetObjectAttributes",
    GetObjectLockConfiguration "s3:GetBucketObjectLockConfiguration",
    GetPublicAccessBlock "s3:GetBucketPublicAccessBlock",
    HeadBucket "s3:ListBucket",
    HeadObject "s3:GetObject",
    ListBuckets "s3:ListAllMyBuckets",
    ListMultipartUploads "s3:ListBucketMultipartUploads",
    ListObjects "s3:ListBucket",
    ListObjectsV2 "s3:ListBucket",
    ListObjectVersions "s3:ListBucketVersions",
    ListParts "s3:ListMultipartUploadParts",
    Other "s3:*",
    PutBucketEncryption "s3:PutEncryptionConfiguration",
    PutBucketLifecycleConfiguration "s3:PutLifecycleConfiguration",
    PutBucketPolicy "s3:PutBucketPolicy",
    PutBucketVersioning "s3:PutBucketVersioning",
    PutObject "s3:PutObject",
    PutPublicAccessBlock "s3:PutBucketPublicAccessBlock",
    UploadPart "s3:PutObject",
}

impl Call {
    /// Whether it lists.
    pub const fn lists(self) -> bool {
        use Call::*;
        matches!(
            self,
            ListBuckets | ListMultipartUploads | ListObjects | ListObjectsV2 | ListObjectVersions | ListParts
        )
    }

    /// The call of a request: by method, key and the parameters that name a part of the API.
    pub(super) fn of(method: &Method, key: &str, bucket: &str, query: &str, headers: &HeaderMap) -> Call {
        let has = |name| query.split('&').any(|pair| pair.split('=').next() == Some(name));
        let method = method.as_str();
        match (bucket.is_empty(), key.is_empty()) {
            (true, _) if method == "GET" => Call::ListBuckets,
            (true, _) => Call::Other,
            (false, true) => Call::of_bucket(method, has),
            (false, false) => Call::of_object(method, has, headers.contains_key("x-amz-copy-source")),
        }
    }

    fn of_object(method: &str, has: impl Fn(&'static str) -> bool, copies: bool) -> Call {
        match method {
            "GET" if has("uploadId") => Call::ListParts,
            "GET" if has("attributes") => Call::GetObjectAttributes,
            "GET" if !has("tagging") && !has("acl") => Call::GetObject,
            "HEAD" => Call::HeadObject,
            "PUT" if has("uploadId") => Call::UploadPart,
            "PUT" if copies => Call::CopyObject,
            "PUT" if !has("tagging") && !has("acl") => Call::PutObject,
            "POST" if has("uploads") => Call::CreateMultipartUpload,
            "POST" if has("uploadId") => Call::CompleteMultipartUpload,
            "DELETE" if has("uploadId") => Call::AbortMultipartUpload,
            "DELETE" if !has("tagging") => Call::DeleteObject,
            _ => Call::Other,
        }
    }

    fn of_bucket(method: &str, has: impl Fn(&'static str) -> bool) -> Call {
        let parts = [
            ("lifecycle", Call::GetBucketLifecycleConfiguration, Call::PutBucketLifecycleConfiguration),
            ("versioning", Call::GetBucketVersioning, Call::PutBucketVersioning),
            ("encryption", Call::GetBucketEncryption, Call::PutBucketEncryption),
            ("policy", Call::GetBucketPolicy, Call::PutBucketPolicy),
            ("publicAccessBlock", Call::GetPublicAccessBlock, Call::PutPublicAccessBlock),
            ("object-lock", Call::GetObjectLockConfiguration, Call::Other),
            ("location", Call::GetBucketLocation, Call::Other),
            ("versions", Call::ListObjectVersions, Call::Other),
            ("uploads", Call::ListMultipartUploads, Call::Other),
        ];
        if let Some((_, get, put)) = parts.into_iter().find(|(name, _, _)| has(name)) {
            return match method {
                "GET" => get,
                "PUT" => put,
                _ => Call::Other,
            };
        }
        match method {
            "GET" if has("list-type") => Call::ListObjectsV2,
            "GET" if !has("acl") && !has("cors") && !has("tagging") && !has("policyStatus") => {
                Call::ListObjects
            }
            "HEAD" => Call::HeadBucket,
            "PUT" if !has("acl") && !has("cors") && !has("tagging") => Call::CreateBucket,
            "POST" if has("delete") => Call::DeleteObjects,
            "DELETE" if !has("cors") && !has("tagging") => Call::DeleteBucket,
            _ => Call::Other,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_method_place_and_parameters() {
        let cases = [
            ("GET", "", "", "", Call::ListBuckets),
            ("PUT", "b", "", "", Call::CreateBucket),
            ("GET", "b", "", "list-type=2&prefix=a%2F", Call::ListObjectsV2),
            ("GET", "b", "", "prefix=a", Call::ListObjects),
            ("GET", "b", "", "uploads", Call::ListMultipartUploads),
            ("GET", "b", "", "uploads=&prefix=a", Call::ListMultipartUploads),
            ("POST", "b", "", "delete", Call::DeleteObjects),
            ("GET", "b", "", "lifecycle", Call::GetBucketLifecycleConfiguration),
            ("PUT", "b", "", "lifecycle=", Call::PutBucketLifecycleConfiguration),
            ("DELETE", "b", "", "lifecycle", Call::Other),
            ("HEAD", "b", "", "", Call::HeadBucket),
            ("GET", "b", "k", "", Call::GetObject),
            ("GET", "b", "k", "x-id=GetObject", Call::GetObject),
            ("GET", "b", "k", "uploadId=u", Call::ListParts),
            ("HEAD", "b", "k", "", Call::HeadObject),
            ("PUT", "b", "k", "", Call::PutObject),
            ("PUT", "b", "k", "partNumber=1&uploadId=u", Call::UploadPart),
            ("POST", "b", "k", "uploads", Call::CreateMultipartUpload),
            ("POST", "b", "k", "uploadId=u", Call::CompleteMultipartUpload),
            ("DELETE", "b", "k", "uploadId=u", Call::AbortMultipartUpload),
            ("DELETE", "b", "k", "", Call::DeleteObject),
            ("PATCH", "b", "k", "", Call::Other),
        ];
        for (method, bucket, key, query, call) in cases {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            assert_eq!(
                Call::of(&method, key, bucket, query, &HeaderMap::new()),
                call,
                "{method} {bucket}/{key}?{query}"
            );
        }
        let mut copy = HeaderMap::new();
        copy.insert("x-amz-copy-source", http::HeaderValue::from_static("b/other"));
        assert_eq!(Call::of(&Method::PUT, "k", "b", "", &copy), Call::CopyObject);
    }
}
