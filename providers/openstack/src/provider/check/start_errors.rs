//! Findings about errors for which the provider cannot be created.

use ccm_core::{
    error::{BoxError, chain},
    provider::{Finding, NotBuilt},
};

use super::OpenStackFinding;
use crate::{
    client::{ErrorCause, OpenStackError, SessionError},
    config::{Auth, Cloud, Identity, User},
    provider::ProviderError,
};

/// Adds the finding to an error of [`OpenStackProvider::connect`].
///
/// [`OpenStackProvider::connect`]: crate::provider::OpenStackProvider::connect
pub(crate) fn not_built(error: ProviderError, cloud: &Cloud) -> NotBuilt {
    NotBuilt::new(finding(&error, cloud), error)
}

/// Adds the finding to an error of TLS files or of headers.
pub(crate) fn connection_invalid(error: BoxError) -> NotBuilt {
    let object = "ca-file, cert-file and key-file, or of --user-agent";
    NotBuilt::new(OpenStackFinding::ConnectionInvalid.about(object, chain(&*error)), error)
}

fn finding(error: &ProviderError, cloud: &Cloud) -> Finding {
    let message = chain(error);
    let (kind, object) = match error {
        ProviderError::Token(error) => token_error(error, &cloud.auth),
        ProviderError::LoadBalancers(error) => {
            let region = &cloud.region;
            let object = format!("region {region:?}, interface {}", cloud.interface.as_str());
            match session_error(error) {
                Some(SessionError::NoEndpoint(_)) => (OpenStackFinding::ServiceMissing, object),
                _ => token_error(error, &cloud.auth),
            }
        }
        ProviderError::Octavia(_) => {
            (OpenStackFinding::ServiceUnreachable, "load-balancer".to_owned())
        }
        ProviderError::Routes { .. } => {
            (OpenStackFinding::ServiceUnreachable, "network".to_owned())
        }
    };
    kind.about(object, message)
}

fn session_error(error: &OpenStackError) -> Option<&SessionError> {
    match &error.cause {
        ErrorCause::Session(error) => Some(error),
        _ => None,
    }
}

/// Returns what is wrong if Keystone issued no token, with the object that is to be corrected.
fn token_error(error: &OpenStackError, auth: &Auth) -> (OpenStackFinding, String) {
    let is_denied = matches!(session_error(error), Some(SessionError::Denied { .. }));
    if !is_denied {
        return (OpenStackFinding::KeystoneUnreachable, display_host(auth));
    }
    match &auth.identity {
        Identity::Password { user, .. } => {
            let name = match user {
                User::Id(id) => id,
                User::Name { name, .. } => name,
            };
            (OpenStackFinding::PasswordRejected, format!("user {name}"))
        }
        Identity::Credential { id: name, .. } | Identity::NamedCredential { name, .. } => {
            let object = format!("application credential {name}");
            (OpenStackFinding::ApplicationCredentialRejected, object)
        }
        Identity::Token(_) => (OpenStackFinding::TokenRejected, "the token".to_owned()),
    }
}

/// Returns the host of Keystone, without what a URL may contain besides.
fn display_host(auth: &Auth) -> String {
    auth.url.host_str().unwrap_or_default().to_owned()
}
