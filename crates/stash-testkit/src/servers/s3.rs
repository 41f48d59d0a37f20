//! A server that speaks S3.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use aws_credential_types::Credentials;
use aws_sdk_s3::{
    Client,
    config::{BehaviorVersion, Region},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Supervised, program, skipped, start};

/// A server that speaks S3, path style.
#[derive(Debug)]
pub struct S3Server {
    name: &'static str,
    access_key: String,
    secret_key: String,
    buckets: AtomicU64,
    supervised: Supervised,
}

/// A user of a server who owns nothing: what it may do, a bucket's policy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3User {
    /// Its name, in policies `arn:aws:iam:::user/NAME`.
    pub name: String,
    /// Its access key.
    pub access_key: String,
    /// Its secret key.
    pub secret_key: String,
}

const ACCESS_KEY: &str = "testak";
const SECRET_KEY: &str = "testsk-of-a-server-for-tests";

impl S3Server {
    pub(super) async fn start_radosgw() -> Option<S3Server> {
        S3Server::start_radosgw_with(ACCESS_KEY, SECRET_KEY).await
    }

    /// Starts a radosgw for one test, whose one user has these keys. It ends with this.
    pub async fn start_radosgw_with(access_key: &str, secret_key: &str) -> Option<S3Server> {
        let programs =
            ["radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool"];
        if programs.iter().any(|name| program(name).is_none()) {
            skipped("radosgw", "not installed (apt-get install radosgw ceph-mon ceph-osd ceph-mgr)");
            return None;
        }
        let keys = (access_key, secret_key);
        Some(S3Server::start("radosgw", include_str!("radosgw.sh"), 2, keys, None).await)
    }

    pub(super) async fn start_ministack() -> Option<S3Server> {
        let Some(program) = program("ministack") else {
            skipped("ministack", "not installed (pip install ministack)");
            return None;
        };
        let keys = (ACCESS_KEY, SECRET_KEY);
        Some(S3Server::start("ministack", include_str!("ministack.sh"), 1, keys, Some(program)).await)
    }

    async fn start(
        name: &'static str,
        script: &'static str,
        ports: usize,
        (access_key, secret_key): (&str, &str),
        program: Option<PathBuf>,
    ) -> S3Server {
        let (access_key, secret_key) = (access_key.to_owned(), secret_key.to_owned());
        let mut variables = vec![("ACCESS_KEY", access_key.clone()), ("SECRET_KEY", secret_key.clone())];
        variables.extend(program.map(|program| ("PROGRAM", program.display().to_string())));
        let supervised = start(name, script, ports, variables).await;
        let buckets = AtomicU64::new(0);
        let server = S3Server { name, access_key, secret_key, buckets, supervised };
        let port = server.port();
        if let Err(why) = server.supervised.until(|| answers(port)).await {
            panic!("{why}");
        }
        server
    }

    /// Its name: `radosgw` or `ministack`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.supervised.ports().first().copied().unwrap_or_default()
    }

    /// `http://127.0.0.1:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// The access key of its one user.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// The secret key of its one user. ministack takes any.
    pub fn secret_key(&self) -> &str {
        &self.secret_key
    }

    /// The region to sign for.
    pub fn region(&self) -> &'static str {
        "us-east-1"
    }

    /// A client of the server, past everything under test: to look at what is really there. It tries everything once.
    pub fn client(&self) -> Client {
        self.client_at(&self.endpoint())
    }

    /// The same through another endpoint, as a proxy's.
    pub fn client_at(&self, endpoint: &str) -> Client {
        let credentials = Credentials::new(&self.access_key, &self.secret_key, None, None, "stash-testkit");
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(self.region()))
            .endpoint_url(endpoint)
            .credentials_provider(credentials)
            .force_path_style(true)
            .retry_config(aws_sdk_s3::config::retry::RetryConfig::disabled())
            .build();
        Client::from_conf(config)
    }

    /// The same as another user.
    pub fn client_of(&self, user: &S3User) -> Client {
        let keys = Credentials::new(&user.access_key, &user.secret_key, None, None, "stash-testkit");
        Client::from_conf(self.client().config().to_builder().credentials_provider(keys).build())
    }

    /// Makes another user. Only radosgw has any; ministack lets everybody do everything.
    ///
    /// # Panics
    /// If the server refuses, as it does where the name is taken.
    pub async fn new_user(&'static self, label: &str) -> S3User {
        let name = format!("{label}-{}", self.buckets.fetch_add(1, Ordering::Relaxed));
        let user = S3User {
            access_key: format!("ak-{name}"),
            secret_key: format!("secret-key-of-{name}-for-tests"),
            name,
        };
        let command = format!("user {} {} {}", user.name, user.access_key, user.secret_key);
        match tokio::task::spawn_blocking(move || self.supervised.ask(&command)).await {
            Ok(Ok(())) => user,
            Ok(Err(why)) => panic!("user {} on {}: {why}", user.name, self.name),
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Makes a bucket.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn make_bucket(&self, name: &str) {
        if let Err(error) = self.client().create_bucket().bucket(name).send().await {
            panic!("bucket {name} on {}: {:?}", self.name, error);
        }
    }

    /// Makes a bucket that no other call was given, and returns its name, which begins with `label`.
    ///
    /// # Panics
    /// If the server refuses, as it does where `label` is not lower-case letters, digits and `-`.
    pub async fn new_bucket(&self, label: &str) -> String {
        let name = format!("{label}-{}", self.buckets.fetch_add(1, Ordering::Relaxed));
        self.make_bucket(&name).await;
        name
    }

    /// Everything in a bucket: the keys, and the keys of the multipart uploads that were begun and not ended.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn contents(&self, bucket: &str) -> (Vec<String>, Vec<String>) {
        let (client, mut keys, mut uploads) = (self.client(), Vec::new(), Vec::new());
        let mut pages = client.list_objects_v2().bucket(bucket).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.unwrap_or_else(|error| panic!("listing {bucket} on {}: {error:?}", self.name));
            keys.extend(page.contents().iter().filter_map(|object| object.key().map(str::to_owned)));
        }
        let mut marker = (None, None);
        loop {
            let (key, id) = marker;
            let listing =
                client.list_multipart_uploads().bucket(bucket).set_key_marker(key).set_upload_id_marker(id);
            let page = listing.send().await;
            let page = page.unwrap_or_else(|error| panic!("uploads of {bucket} on {}: {error:?}", self.name));
            uploads.extend(page.uploads().iter().filter_map(|upload| upload.key().map(str::to_owned)));
            if page.is_truncated() != Some(true) {
                return (keys, uploads);
            }
            marker = (page.next_key_marker, page.next_upload_id_marker);
        }
    }
}

/// Whether somebody answers HTTP.
async fn answers(port: u16) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut start = [0; 12];
        stream.read_exact(&mut start).await?;
        std::io::Result::Ok(start.starts_with(b"HTTP/1.1 ") && start.get(9) != Some(&b'5'))
    };
    asked.await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use crate::servers::{S3Server, ministack, radosgw};

    async fn stores_and_lists(server: &S3Server) {
        let (one, other) = (server.new_bucket("kit").await, server.new_bucket("kit").await);
        assert_ne!(one, other);
        let client = server.client();
        client.put_object().bucket(&one).key("a").body(vec![1].into()).send().await.expect("it is put");
        client.create_multipart_upload().bucket(&one).key("b").send().await.expect("it begins");
        assert_eq!(server.contents(&one).await, (vec!["a".to_owned()], vec!["b".to_owned()]));
        assert_eq!(server.contents(&other).await, (vec![], vec![]));
    }

    #[tokio::test]
    async fn radosgw_stores_lists_and_checks_signatures() {
        let Some(server) = radosgw().await else { return };
        stores_and_lists(server).await;
        let forged = aws_credential_types::Credentials::new(server.access_key(), "wrong", None, None, "test");
        let config = server.client().config().to_builder().credentials_provider(forged).build();
        let refused =
            aws_sdk_s3::Client::from_conf(config).list_buckets().send().await.expect_err("a wrong secret");
        assert_eq!(refused.raw_response().map(|response| response.status().as_u16()), Some(403));
    }

    #[tokio::test]
    async fn a_user_of_radosgw_may_do_what_a_policy_says_and_nothing_else() {
        let Some(server) = radosgw().await else { return };
        let (user, bucket) = (server.new_user("guest").await, server.new_bucket("guests").await);
        let policy = format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":{{"AWS":["arn:aws:iam:::user/{}"]}},
            "Action":"s3:PutObject","Resource":"arn:aws:s3:::{bucket}/*"}}]}}"#,
            user.name
        );
        server.client().put_bucket_policy().bucket(&bucket).policy(policy).send().await.expect("a policy");
        let client = server.client_of(&user);
        client.put_object().bucket(&bucket).key("b").body(vec![1].into()).send().await.expect("it may");
        // What a user puts is its own, whatever the policy says; so this is another's.
        server
            .client()
            .put_object()
            .bucket(&bucket)
            .key("a")
            .body(vec![1].into())
            .send()
            .await
            .expect("its own");
        let refused = client.get_object().bucket(&bucket).key("a").send().await.expect_err("it may not");
        assert_eq!(refused.raw_response().map(|response| response.status().as_u16()), Some(403));
    }

    #[tokio::test]
    async fn ministack_stores_and_lists() {
        if let Some(server) = ministack().await {
            stores_and_lists(server).await;
        }
    }
}
