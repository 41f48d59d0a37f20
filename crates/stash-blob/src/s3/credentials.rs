//! Where credentials, region and endpoint come from.
//!
//! [`load`] is asked once for a bucket. It reads the chain that every AWS tool reads: environment, profiles, SSO, web
//! identity, container, instance metadata, process. What [`S3Config`] says goes before all of it.

use std::time::Duration;

use aws_config::{
    BehaviorVersion, ConfigLoader, Region, SdkConfig, environment::EnvironmentVariableRegionProvider,
    meta::region::RegionProviderChain, profile::ProfileFileRegionProvider, retry::RetryConfig,
    timeout::TimeoutConfig,
};
use aws_credential_types::Credentials;
use aws_types::service_config::ServiceConfigKey;

use super::{S3Config, S3Keys};

/// The region of a store that has an endpoint of its own and no opinion on regions.
const REGION_BESIDE_AN_ENDPOINT: &str = "us-east-1";

/// How often the SDK tries a request of its own, the first time included: as often as the data path does.
const TRIES_MAX: u32 = 16;
/// How long it waits before the second try, and at most before a later one: all of them fit into a minute.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Loads what the environment and the profiles say of this bucket, under what `config` says.
///
/// Its region and endpoint are the ones that every client of this bucket uses. No request is made, but to the instance
/// metadata for a region, where nothing names one and `config` names no endpoint.
pub async fn load(config: &S3Config) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(config.connect_timeout)
        .operation_timeout(config.retry_timeout)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(TRIES_MAX)
                .with_initial_backoff(BACKOFF.0)
                .with_max_backoff(BACKOFF.1),
        )
        .timeout_config(timeouts);
    if let Some(profile) = &config.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(keys) = &config.keys {
        loader = loader.credentials_provider(given(keys));
    }
    if let Some(endpoint) = &config.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    completed(with_region(loader, config).load().await)
}

/// `config`, with the bucket in the path where the endpoint comes from the environment or a profile: who has one of
/// their own seldom has a host name for every bucket.
pub(crate) fn addressed(config: S3Config, sdk: &SdkConfig) -> S3Config {
    let found = config.endpoint.is_none() && sdk.endpoint_url().is_some();
    S3Config { path_style: config.path_style || found, ..config }
}

fn given(keys: &S3Keys) -> Credentials {
    let mut builder = Credentials::builder()
        .access_key_id(&keys.access_key_id)
        .secret_access_key(&keys.secret_access_key)
        .provider_name("given");
    builder.set_session_token(keys.session_token.clone());
    builder.build()
}

fn with_region(loader: ConfigLoader, config: &S3Config) -> ConfigLoader {
    match (&config.region, &config.endpoint) {
        (Some(region), _) => loader.region(Region::new(region.clone())),
        (None, None) => loader,
        // The instance metadata, which the default chain asks last and slowly, knows nothing of a store with an
        // endpoint of its own.
        (None, Some(_)) => {
            let mut profile = ProfileFileRegionProvider::builder();
            if let Some(name) = &config.profile {
                profile = profile.profile_name(name);
            }
            let said = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new());
            loader.region(said.or_else(profile.build()).or_else(Region::new(REGION_BESIDE_AN_ENDPOINT)))
        }
    }
}

/// Puts the endpoint that stands for S3 alone in the place of the one for every service, as the SDK's own clients do,
/// so that the data path speaks to the same store; and gives a store with an endpoint a region.
fn completed(sdk: SdkConfig) -> SdkConfig {
    let general = sdk.endpoint_url().map(str::to_owned);
    let given = sdk.get_origin("endpoint_url").is_client_config();
    let endpoint = if given { general } else { endpoint_of_s3(&sdk).or(general) };
    let region = sdk.region().cloned();
    let region = region.or_else(|| endpoint.as_ref().map(|_| Region::new(REGION_BESIDE_AN_ENDPOINT)));
    let mut builder = sdk.into_builder().region(region);
    builder.set_endpoint_url(endpoint);
    builder.build()
}

fn endpoint_of_s3(sdk: &SdkConfig) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id("S3")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .ok()?;
    sdk.service_config()?.load_config(key)
}
