//! The keys that requests are signed with, kept until shortly before they expire.
//!
//! - Keys are fetched by the first request that needs them, and by one request at a time.
//! - They are renewed a minute before they expire. While the old ones are still valid nobody waits for that, and a
//!   renewal that fails goes on with them; the next one is tried some seconds later.
//! - Keys that the store calls expired are distrusted, whatever their own date says.
//! - Keys are never printed.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use object_store::{CredentialProvider, aws::AwsCredential};

use super::quiet::Quietly;
use crate::verdict::{Means, Verdict};

/// How long before they expire keys are renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(60);

/// How long after a renewal that failed the next one is tried, while the old keys are valid.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Reads the time of day.
pub(crate) type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Keys, and until when they are used.
#[derive(Clone)]
struct Held {
    keys: Arc<AwsCredential>,
    /// `None`: for ever.
    expiry: Option<SystemTime>,
    renewed_at: Option<SystemTime>,
}

/// Keeps what a provider provides.
pub(crate) struct CredentialCache {
    provider: Option<SharedCredentialsProvider>,
    clock: WallClock,
    timeout: Duration,
    held: Mutex<Option<Held>>,
    /// Held by whoever asks the provider.
    asking: tokio::sync::Mutex<()>,
}

impl CredentialCache {
    /// Of what `provider` provides within `timeout`.
    pub(crate) fn new(
        provider: Option<SharedCredentialsProvider>,
        clock: WallClock,
        timeout: Duration,
    ) -> CredentialCache {
        CredentialCache {
            provider,
            clock,
            timeout,
            held: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Keys that are valid by this clock.
    pub(crate) async fn keys(&self) -> Result<Arc<AwsCredential>, Verdict> {
        let held = self.held();
        if let Some(fresh) = held.as_ref().filter(|held| !self.is_due(held)) {
            return Ok(Arc::clone(&fresh.keys));
        }
        let valid = held.filter(|held| held.expiry.is_none_or(|expiry| (self.clock)() < expiry));
        let _asking = match (self.asking.try_lock(), valid) {
            (Ok(asking), _) => asking,
            (Err(_), Some(old)) => return Ok(old.keys),
            (Err(_), None) => self.asking.lock().await,
        };
        // Whoever asked before may have got them.
        let held = self.held();
        if let Some(fresh) = held.as_ref().filter(|held| !self.is_due(held)) {
            return Ok(Arc::clone(&fresh.keys));
        }
        match self.ask().await {
            Ok(new) => {
                let keys = Arc::clone(&new.keys);
                self.hold(Some(new));
                Ok(keys)
            }
            Err(error) => {
                let now = (self.clock)();
                match held.filter(|held| held.expiry.is_none_or(|expiry| now < expiry)) {
                    Some(old) => {
                        tracing::warn!(%error, "new credentials cannot be had yet; the old ones are still valid");
                        let keys = Arc::clone(&old.keys);
                        self.hold(Some(Held { renewed_at: Some(now + TRIED_AGAIN_AFTER), ..old }));
                        Ok(keys)
                    }
                    None => Err(error),
                }
            }
        }
    }

    /// Other keys than those of `key_id`, which the store no longer takes; `None` where there are no others.
    pub(crate) async fn other_than(&self, key_id: &str, token: Option<&str>) -> Option<Arc<AwsCredential>> {
        let same = |keys: &AwsCredential| keys.key_id == key_id && keys.token.as_deref() == token;
        {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.as_ref().is_some_and(|held| same(&held.keys)) {
                *held = None;
            }
        }
        self.keys().await.ok().filter(|keys| !same(keys))
    }

    fn held(&self) -> Option<Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn hold(&self, held: Option<Held>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    fn is_due(&self, held: &Held) -> bool {
        held.renewed_at.is_some_and(|at| (self.clock)() >= at)
    }

    async fn ask(&self) -> Result<Held, Verdict> {
        const WHAT: &str = "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
                            name a profile, or run where a role is given";
        let none = |what: &str, cause| Verdict { what: what.to_owned(), means: Means::Refused, cause };
        let provider = self.provider.as_ref().ok_or_else(|| none(WHAT, None))?;
        let provided = tokio::time::timeout(self.timeout, provider.provide_credentials().quietly()).await;
        let provided = provided.map_err(|_| Verdict {
            what: "whoever gives the credentials does not answer".to_owned(),
            means: Means::Later,
            cause: None,
        })?;
        let provided = provided.map_err(|error| {
            use aws_credential_types::provider::error::CredentialsError as Error;
            match error {
                Error::CredentialsNotLoaded(_) => none(WHAT, Some(Arc::new(error))),
                Error::InvalidConfiguration(_) => {
                    none("the credentials' configuration is wrong", Some(Arc::new(error)))
                }
                _ => Verdict {
                    what: "whoever gives the credentials failed".to_owned(),
                    means: Means::Later,
                    cause: Some(Arc::new(error)),
                },
            }
        })?;
        let expiry = provided.expiry();
        Ok(Held {
            keys: Arc::new(AwsCredential {
                key_id: provided.access_key_id().to_owned(),
                secret_key: provided.secret_access_key().to_owned(),
                token: provided.session_token().map(str::to_owned),
            }),
            expiry,
            renewed_at: expiry.map(|expiry| expiry.checked_sub(RENEWED_BEFORE).unwrap_or(expiry)),
        })
    }
}

impl fmt::Debug for CredentialCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialCache(***)")
    }
}

#[async_trait]
impl CredentialProvider for CredentialCache {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let keys = self.keys().await;
        keys.map_err(|verdict| object_store::Error::Generic { store: "S3", source: Box::new(verdict) })
    }
}

#[cfg(test)]
mod tests;
