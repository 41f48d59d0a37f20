use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::UNIX_EPOCH,
};

use aws_credential_types::{
    Credentials,
    provider::{error::CredentialsError, future},
};
use tokio::sync::Semaphore;

use super::*;

/// Gives keys k1, k2, …, each valid for 1000 seconds from when it was asked, unless it is told to fail.
#[derive(Debug)]
struct Provider {
    now: AtomicU64,
    asked: AtomicU32,
    failing: std::sync::atomic::AtomicBool,
    gate: Semaphore,
}

/// What [`CredentialCache`] asks.
#[derive(Debug)]
struct Asked(Arc<Provider>);

impl ProvideCredentials for Asked {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            let n = self.0.asked.fetch_add(1, Ordering::SeqCst) + 1;
            self.0.gate.acquire().await.expect("an open gate").forget();
            if self.0.failing.load(Ordering::SeqCst) {
                return Err(CredentialsError::provider_error("down"));
            }
            let expiry = UNIX_EPOCH + Duration::from_secs(self.0.now.load(Ordering::SeqCst) + 1000);
            Ok(Credentials::builder()
                .access_key_id(format!("k{n}"))
                .secret_access_key("hunter2")
                .session_token("hunter3")
                .expiry(expiry)
                .provider_name("test")
                .build())
        })
    }
}

fn cache() -> (Arc<CredentialCache>, Arc<Provider>) {
    let provider = Arc::new(Provider {
        now: AtomicU64::new(0),
        asked: AtomicU32::new(0),
        failing: false.into(),
        gate: Semaphore::new(1000),
    });
    let clock = Arc::clone(&provider);
    let clock: WallClock =
        Arc::new(move || UNIX_EPOCH + Duration::from_secs(clock.now.load(Ordering::SeqCst)));
    let asked = SharedCredentialsProvider::new(Asked(Arc::clone(&provider)));
    (Arc::new(CredentialCache::new(Some(asked), clock, Duration::from_secs(10))), provider)
}

async fn key_id(cache: &CredentialCache) -> String {
    cache.keys().await.expect("keys").key_id.clone()
}

#[tokio::test]
async fn keys_are_kept_until_a_minute_before_they_expire() {
    let (cache, provider) = cache();
    for (now, expected) in [(0, "k1"), (939, "k1"), (940, "k2"), (1000, "k2"), (1879, "k2"), (1880, "k3")] {
        provider.now.store(now, Ordering::SeqCst);
        assert_eq!(key_id(&cache).await, expected, "at {now}");
    }
    assert_eq!(provider.asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn many_who_need_keys_at_once_ask_once() {
    let (cache, provider) = cache();
    let ids = futures::future::join_all((0..32).map(|_| key_id(&cache))).await;
    assert!(ids.iter().all(|id| id == "k1"), "{ids:?}");
    assert_eq!(provider.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn nobody_waits_for_new_keys_while_the_old_ones_are_valid() {
    let (cache, provider) = cache();
    assert_eq!(key_id(&cache).await, "k1");
    provider.now.store(950, Ordering::SeqCst);
    provider.gate.forget_permits(1000);
    let mut renewal = Box::pin(key_id(&cache));
    assert!(futures::poll!(&mut renewal).is_pending(), "one waits for the new ones");
    assert_eq!(key_id(&cache).await, "k1", "another goes on with the old ones");
    provider.gate.add_permits(10);
    assert_eq!(renewal.await, "k2");
}

#[tokio::test]
async fn a_renewal_that_fails_goes_on_with_the_old_keys_until_they_expire() {
    let (cache, provider) = cache();
    assert_eq!(key_id(&cache).await, "k1");
    provider.failing.store(true, Ordering::SeqCst);
    for (now, asked) in [(940, 2), (941, 2), (944, 2), (945, 3), (999, 4)] {
        provider.now.store(now, Ordering::SeqCst);
        assert_eq!(key_id(&cache).await, "k1", "at {now}");
        assert_eq!(provider.asked.load(Ordering::SeqCst), asked, "at {now}");
    }
    provider.now.store(1004, Ordering::SeqCst);
    let verdict = cache.keys().await.expect_err("they have expired");
    assert_eq!(verdict.means, Means::Later, "{verdict:?}");
    provider.failing.store(false, Ordering::SeqCst);
    assert_eq!(key_id(&cache).await, "k6");
}

#[tokio::test]
async fn keys_that_the_store_calls_expired_are_asked_for_anew_by_the_first_who_says_so() {
    let (cache, provider) = cache();
    assert_eq!(key_id(&cache).await, "k1");
    for _ in 0..3 {
        let other = cache.other_than("k1", Some("hunter3")).await.expect("other keys");
        assert_eq!(other.key_id, "k2");
    }
    assert_eq!(provider.asked.load(Ordering::SeqCst), 2, "the second and third are late");
}

#[tokio::test]
async fn a_provider_that_does_not_answer_is_not_waited_for_without_end() {
    tokio::time::pause();
    let (cache, provider) = cache();
    provider.gate.forget_permits(1000);
    let verdict = cache.keys().await.expect_err("no answer");
    assert_eq!(verdict.means, Means::Later, "{verdict:?}");
}

#[tokio::test]
async fn keys_are_not_printed() {
    let (cache, _) = cache();
    assert_eq!(key_id(&cache).await, "k1");
    let printed = format!("{cache:?}");
    assert!(!printed.contains("hunter") && !printed.contains("k1"), "{printed}");
}

#[tokio::test]
async fn without_a_provider_what_to_set_is_said() {
    let none = CredentialCache::new(None, Arc::new(|| UNIX_EPOCH), Duration::from_secs(1));
    let verdict = none.keys().await.expect_err("no keys");
    assert!(verdict.what.contains("AWS_ACCESS_KEY_ID") && verdict.means == Means::Refused, "{verdict}");
}
