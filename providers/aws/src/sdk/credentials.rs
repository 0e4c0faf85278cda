//! Provides credentials from the SDK's chain, which is reloaded when its files change, and from an
//! assumed role on top of it.

use std::{
    env,
    error::Error as _,
    fmt, fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_config::{
    SdkConfig,
    default_provider::credentials::DefaultCredentialsChain,
    environment::EnvironmentVariableCredentialsProvider,
    imds::{self, client::error::ImdsError},
    meta::credentials::CredentialsProviderChain,
    profile::ProfileFileCredentialsProvider,
    provider_config::ProviderConfig,
};
use aws_credential_types::{
    Credentials,
    provider::{self, ProvideCredentials, error::CredentialsError, future},
};
use aws_sdk_sts::types::Credentials as Session;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use crate::api::sts::CredentialsLifetime;

/// Time before expiry at which credentials are renewed. The SDK shortens it at random by up to
/// half.
pub(super) const RENEWAL: Duration = Duration::from_mins(1);
/// Credentials that do not expire, such as those of a file, are renewed after this time, or up to
/// half of [`RENEWAL`] later. The SDK's own setting for that cannot be less than 15 minutes.
const STATIC_CREDENTIALS_TTL: Duration = Duration::from_secs(30);

/// The lifetime of the credentials that were loaded last, with nothing else of them. Clones share
/// it.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadedLifetime(Arc<parking_lot::Mutex<CredentialsLifetime>>);

impl LoadedLifetime {
    /// Returns the lifetime of the credentials that were loaded last.
    pub(super) fn get(&self) -> CredentialsLifetime {
        *self.0.lock()
    }

    /// Records the lifetime of credentials as their source gave them.
    fn record(&self, credentials: &Credentials) {
        let is_of_environment = |token: &str| {
            env::var("AWS_SESSION_TOKEN").is_ok_and(|of_process| of_process.trim() == token)
        };
        *self.0.lock() = match (credentials.expiry(), credentials.session_token()) {
            (Some(end), _) => Timestamp::try_from(end)
                .map_or(CredentialsLifetime::Unknown, CredentialsLifetime::Until),
            (None, Some(token)) if is_of_environment(token) => CredentialsLifetime::NotRenewed,
            (None, _) => CredentialsLifetime::Unknown,
        };
    }
}

/// The SDK's default chain. Its providers cache what they read from profile files for their whole
/// lifetime, so they are recreated when the content of one of the files changes. The SDK itself
/// reads token files whenever it renews credentials.
pub(super) struct ReloadingCredentialsChain {
    base: SdkConfig,
    imds: imds::Client,
    web_identity: Option<WebIdentity>,
    files: Vec<PathBuf>,
    lifetime: LoadedLifetime,
    current: Mutex<Option<(Contents, Arc<CredentialsProviderChain>)>>,
}

/// Digest of each file; `None` for a file that cannot be read.
type Contents = Vec<Option<[u8; 32]>>;

impl ReloadingCredentialsChain {
    /// Creates the chain. Its requests are sent with the HTTP client of `base`, to the endpoints of
    /// its region, with FIPS and with dual stack as it says. `web_identity` replaces the SDK's
    /// provider for web identity.
    pub(super) fn new(
        base: SdkConfig,
        imds: imds::Client,
        web_identity: Option<WebIdentity>,
        lifetime: LoadedLifetime,
    ) -> Self {
        Self {
            base,
            imds,
            web_identity,
            files: profile_files(),
            lifetime,
            current: Mutex::new(None),
        }
    }

    async fn chain(&self) -> Arc<CredentialsProviderChain> {
        let contents: Contents = self
            .files
            .iter()
            .map(|file| {
                fs::read(file)
                    .ok()
                    .map(|bytes| Sha256::digest(bytes).into())
            })
            .collect();
        let mut current = self.current.lock().await;
        if let Some((seen, chain)) = &*current {
            if *seen == contents {
                return Arc::clone(chain);
            }
            tracing::info!("the files with AWS credentials changed");
        }
        let chain = Arc::new(self.new_chain().await);
        *current = Some((contents, Arc::clone(&chain)));
        chain
    }

    async fn new_chain(&self) -> CredentialsProviderChain {
        let mut config = ProviderConfig::without_region()
            .with_region(self.base.region().cloned())
            .with_use_fips(self.base.use_fips())
            .with_use_dual_stack(self.base.use_dual_stack());
        if let Some(http) = self.base.http_client() {
            config = config.with_http_client(http);
        }
        let default = DefaultCredentialsChain::builder()
            .region(self.base.region().cloned())
            .configure(config.clone())
            .imds_client(self.imds.clone())
            .build()
            .await;
        let Some(web_identity) = &self.web_identity else {
            return CredentialsProviderChain::first_try("Default", default);
        };
        // In the SDK's order. Its own chain is asked last, and adds what comes after web identity.
        let profile = ProfileFileCredentialsProvider::builder()
            .configure(&config)
            .build();
        CredentialsProviderChain::first_try(
            "Environment",
            EnvironmentVariableCredentialsProvider::new(),
        )
        .or_else("Profile", profile)
        .or_else("WebIdentityToken", web_identity.clone())
        .or_else("Default", default)
    }
}

impl fmt::Debug for ReloadingCredentialsChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadingCredentialsChain")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl ProvideCredentials for ReloadingCredentialsChain {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async move {
            let mut credentials = self
                .chain()
                .await
                .provide_credentials()
                .await
                .map_err(without_response)?;
            self.lifetime.record(&credentials);
            credentials
                .expiry_mut()
                .get_or_insert(SystemTime::now() + RENEWAL + STATIC_CREDENTIALS_TTL);
            Ok(credentials)
        })
    }
}

/// Removes the complete answer, with headers and body, that the SDK includes in an error of the
/// metadata service.
fn without_response(error: CredentialsError) -> CredentialsError {
    let mut cause = error.source();
    while let Some(found) = cause {
        if let Some(ImdsError::ErrorResponse(answer)) = found.downcast_ref() {
            let status = answer.response().status().as_u16();
            let message =
                format!("the instance metadata service answered with HTTP status {status}");
            return CredentialsError::provider_error(message);
        }
        cause = found.source();
    }
    error
}

/// Returns the files in which the SDK looks for profiles.
fn profile_files() -> Vec<PathBuf> {
    let home = env::home_dir();
    let file = |variable, name| {
        let named = env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        named.or_else(|| home.as_ref().map(|home| home.join(".aws").join(name)))
    };
    let files =
        [file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), file("AWS_CONFIG_FILE", "config")];
    files.into_iter().flatten().collect()
}

/// Role of `RoleARN`, which is assumed with the chain's credentials.
#[derive(Debug)]
pub(super) struct AssumedRole {
    /// STS client, with the chain's credentials.
    pub(super) sts: aws_sdk_sts::Client,
    /// ARN of the role.
    pub(super) arn: Box<str>,
    /// Where the lifetime of the role's credentials is recorded.
    pub(super) lifetime: LoadedLifetime,
}

/// Role of the web identity in the environment, such as that of a service account (IRSA). The SDK
/// has such a provider, too, but its endpoint cannot be set.
#[derive(Clone, Debug)]
pub(super) struct WebIdentity {
    /// STS client. The requests are not signed, so it needs no credentials.
    pub(super) sts: aws_sdk_sts::Client,
}

impl WebIdentity {
    async fn assume(&self) -> provider::Result {
        let variable = |name: &str| {
            env::var(name).map_err(|_| {
                CredentialsError::not_loaded(format!("{name} is not set in the environment"))
            })
        };
        let file = variable("AWS_WEB_IDENTITY_TOKEN_FILE")?;
        let role = variable("AWS_ROLE_ARN")?;
        let session = variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|_| SESSION.to_owned());
        let token = fs::read_to_string(file).map_err(CredentialsError::provider_error)?;
        let request = self
            .sts
            .assume_role_with_web_identity()
            .role_arn(role)
            .role_session_name(session)
            .web_identity_token(token);
        let answer = request
            .send()
            .await
            .map_err(CredentialsError::provider_error)?;
        session_credentials(answer.credentials, "WebIdentityToken")
    }
}

impl ProvideCredentials for WebIdentity {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.assume())
    }
}

/// Session name, which is shown in CloudTrail.
const SESSION: &str = "cloud-controller-manager";

impl AssumedRole {
    async fn assume(&self) -> provider::Result {
        let request = self
            .sts
            .assume_role()
            .role_arn(&*self.arn)
            .role_session_name(SESSION);
        let answer = request
            .send()
            .await
            .map_err(CredentialsError::provider_error)?;
        let credentials = session_credentials(answer.credentials, "RoleARN")?;
        self.lifetime.record(&credentials);
        Ok(credentials)
    }
}

/// Converts the credentials in an answer of STS. `source` names the provider in logs.
fn session_credentials(given: Option<Session>, source: &'static str) -> provider::Result {
    let given =
        given.ok_or_else(|| CredentialsError::unhandled("STS answered without credentials"))?;
    let expiration = SystemTime::try_from(given.expiration).map_err(CredentialsError::unhandled)?;
    let key = given.access_key_id;
    let secret = given.secret_access_key;
    let token = given.session_token;
    Ok(Credentials::new(key, secret, Some(token), Some(expiration), source))
}

impl ProvideCredentials for AssumedRole {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.assume())
    }
}
