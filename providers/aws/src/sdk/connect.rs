//! Creates the clients from the configuration and the environment.

use std::{path::PathBuf, sync::Arc, time::Duration};

use aws_config::{
    BehaviorVersion, SdkConfig, identity::IdentityCache, retry::RetryConfig,
    stalled_stream_protection::StalledStreamProtectionConfig, timeout::TimeoutConfig,
};
use aws_credential_types::{Credentials, provider::SharedCredentialsProvider};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_types::{SigningName, region::Region};

use super::{
    ca_bundle::{self, CaBundleError},
    credentials::{self, AssumedRole, LoadedLifetime, ReloadingCredentialsChain, WebIdentity},
    endpoints::{self, EndpointOverride},
    headers::{SignAs, SourceHeaders, UserAgent},
    metadata::SdkMetadata,
    sts::StsClient,
    transport::SdkTransport,
};
use crate::{
    api::Connection,
    config::{OverriddenService, Role, Settings},
    environment::{self, EnvironmentError},
};

/// Timeout of one request including its answer, as in upstream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The SDKs' default within a region.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1100);

/// Error of creating the connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The region is neither configured nor found.
    #[error(transparent)]
    Region(#[from] EnvironmentError),
    /// The `[ServiceOverride]` section for the metadata service has no usable URL.
    #[error("the URL of the ServiceOverride for the instance metadata service")]
    MetadataUrl(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The CA bundle cannot be used.
    #[error(transparent)]
    CaBundle(#[from] CaBundleError),
}

/// Creates the clients.
///
/// Credentials come from the SDK's chain (environment, profile, web identity, container, instance
/// metadata); with `RoleARN`, they are used to get the role's credentials from STS. Files with
/// credentials, and the CA bundle of `AWS_CA_BUNDLE` or `SSL_CERT_FILE`, may change at any time. No
/// request is sent, except to find the region if it is not configured.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(settings: &Settings) -> Result<Connection, ConnectError> {
    connect_with(settings, ConnectOptions::of_process()).await
}

/// Like [`connect`], but with these keys instead of the SDK's chain, for tests against a server
/// that checks no signatures.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect_with_keys(
    settings: &Settings,
    id: &str,
    secret: &str,
) -> Result<Connection, ConnectError> {
    let keys = Credentials::new(id, secret, None, None, "Given");
    let credentials = Some(SharedCredentialsProvider::new(keys));
    connect_with(settings, ConnectOptions { credentials, ..ConnectOptions::of_process() }).await
}

/// Options that come from the process' environment; tests set other values.
pub(super) struct ConnectOptions {
    /// The CA bundle.
    pub(super) bundle: Option<PathBuf>,
    /// Credentials in place of the SDK's chain.
    pub(super) credentials: Option<SharedCredentialsProvider>,
    /// Interval at which the CA bundle is checked for changes.
    pub(super) ca_check_interval: Duration,
}

impl ConnectOptions {
    pub(super) fn of_process() -> Self {
        Self {
            bundle: ca_bundle::bundle(),
            credentials: None,
            ca_check_interval: ca_bundle::CHECK_INTERVAL,
        }
    }
}

pub(super) async fn connect_with(
    settings: &Settings,
    options: ConnectOptions,
) -> Result<Connection, ConnectError> {
    let metadata = SdkMetadata::new(ca_bundle::plain(), endpoints::metadata(settings))
        .map_err(ConnectError::MetadataUrl)?;
    let region: Box<str> = (&*environment::discover_region(settings, &metadata).await?).into();
    let http = ca_bundle::client(options.bundle, options.ca_check_interval)?;
    let signing = Region::new(String::from(region.clone()));
    let place = |service| endpoints::endpoint_override(settings, &service, &region);
    let unsigned = without_credentials(http, signing).await;
    let lifetime = LoadedLifetime::default();
    let chain = || {
        let sts = place(OverriddenService::Sts).map(|place| with_retries(&unsigned, Some(place)));
        SharedCredentialsProvider::new(ReloadingCredentialsChain::new(
            unsigned.clone(),
            metadata.client(),
            sts.map(|sts| WebIdentity { sts: aws_sdk_sts::Client::from_conf(sts.build()) }),
            lifetime.clone(),
        ))
    };
    let credentials = options.credentials.unwrap_or_else(chain);
    let base = with_credentials(&unsigned, credentials);
    let config = match &settings.role {
        Some(role) => with_role(&base, role, place(OverriddenService::Sts), &lifetime),
        None => base,
    };
    let transport = SdkTransport {
        ec2: ec2(&config, place(OverriddenService::Ec2)),
        elb: elb(&config, place(OverriddenService::Elb)),
        classic: classic(&config, place(OverriddenService::Classic)),
        sts: StsClient { sts: sts(&config, place(OverriddenService::Sts)), lifetime },
    };
    Ok(Connection {
        transport: Arc::new(transport),
        metadata: Arc::new(metadata),
        region,
    })
}

/// Returns the configuration of all clients, still without credentials. The SDK reads from the
/// environment and the profile whether endpoints are for FIPS or dual stack.
async fn without_credentials(http: SharedHttpClient, region: Region) -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .region(region)
        .no_credentials()
        .identity_cache(
            IdentityCache::lazy()
                .buffer_time(credentials::RENEWAL)
                .build(),
        )
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts())
        // The timeout of the request suffices, and a slow answer is no reason to send it again.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .load()
        .await
}

fn with_credentials(base: &SdkConfig, credentials: SharedCredentialsProvider) -> SdkConfig {
    base.clone()
        .into_builder()
        .credentials_provider(credentials)
        .build()
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(REQUEST_TIMEOUT)
        .operation_timeout(REQUEST_TIMEOUT)
        .build()
}

/// Returns the configuration with the role's credentials.
fn with_role(
    base: &SdkConfig,
    role: &Role,
    place: Option<EndpointOverride>,
    lifetime: &LoadedLifetime,
) -> SdkConfig {
    let mut sts = with_retries(base, place);
    if let Some(source) = &role.source {
        sts = sts.interceptor(SourceHeaders { arn: source.clone(), account: role.account.clone() });
    }
    let provider = AssumedRole {
        sts: aws_sdk_sts::Client::from_conf(sts.build()),
        arn: role.arn.clone(),
        lifetime: lifetime.clone(),
    };
    with_credentials(base, SharedCredentialsProvider::new(provider))
}

/// Returns the configuration of an STS client for credentials, whose requests nobody else repeats.
fn with_retries(base: &SdkConfig, place: Option<EndpointOverride>) -> aws_sdk_sts::config::Builder {
    sts_config(base, place).retry_config(RetryConfig::standard())
}

/// Defines the function that configures a client of one SDK crate, because the crates' types have
/// no common trait.
macro_rules! configure {
    ($name:ident, $sdk:ident) => {
        fn $name(base: &SdkConfig, place: Option<EndpointOverride>) -> $sdk::config::Builder {
            let config = $sdk::config::Builder::from(base).interceptor(UserAgent);
            let Some(place) = place else { return config };
            // With a custom endpoint, the region is only used for the signature. The SDK rejects a
            // custom endpoint together with FIPS or dual stack; as in upstream, the section counts.
            let config = config
                .endpoint_url(place.url)
                .use_fips(false)
                .use_dual_stack(false)
                .region(Region::new(place.region));
            match place.name {
                Some(name) => config.interceptor(SignAs(SigningName::from(name))),
                None => config,
            }
        }
    };
}

configure!(ec2_config, aws_sdk_ec2);
configure!(elb_config, aws_sdk_elasticloadbalancingv2);
configure!(classic_config, aws_sdk_elasticloadbalancing);
configure!(sts_config, aws_sdk_sts);

fn ec2(base: &SdkConfig, place: Option<EndpointOverride>) -> aws_sdk_ec2::Client {
    aws_sdk_ec2::Client::from_conf(ec2_config(base, place).build())
}

fn elb(
    base: &SdkConfig,
    place: Option<EndpointOverride>,
) -> aws_sdk_elasticloadbalancingv2::Client {
    aws_sdk_elasticloadbalancingv2::Client::from_conf(elb_config(base, place).build())
}

fn classic(
    base: &SdkConfig,
    place: Option<EndpointOverride>,
) -> aws_sdk_elasticloadbalancing::Client {
    aws_sdk_elasticloadbalancing::Client::from_conf(classic_config(base, place).build())
}

fn sts(base: &SdkConfig, place: Option<EndpointOverride>) -> aws_sdk_sts::Client {
    aws_sdk_sts::Client::from_conf(sts_config(base, place).build())
}
