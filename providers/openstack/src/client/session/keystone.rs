//! Builds the token request from credentials.

use openstack_api::keystone::{
    self as api, ApplicationCredentialMethod, DomainRef, ProjectRef, TokenRequest, TrustRef,
    UserRef,
};

use crate::config::{Auth, Domain, Identity, Scope, User};

/// Returns the body of a token request.
pub(in crate::client) fn request(auth: &Auth) -> TokenRequest {
    TokenRequest {
        auth: api::Auth {
            identity: identity(&auth.identity),
            scope: scope(&auth.scope),
        },
    }
}

/// Returns the secret parts of the credentials.
pub(super) fn secrets(auth: &Auth) -> [&str; 1] {
    [match &auth.identity {
        Identity::Password { password, .. } => password.expose(),
        Identity::Credential { secret, .. } | Identity::NamedCredential { secret, .. } => {
            secret.expose()
        }
        Identity::Token(token) => token.expose(),
    }]
}

fn identity(identity: &Identity) -> api::Identity {
    match identity {
        Identity::Password { user: who, password } => {
            api::Identity::password(user(who), password.clone())
        }
        Identity::Credential { id, secret } => {
            let id = Some(id.to_string());
            let method =
                ApplicationCredentialMethod { id, name: None, user: None, secret: secret.clone() };
            api::Identity::application_credential(method)
        }
        Identity::NamedCredential { name, user: who, secret } => {
            let name = Some(name.to_string());
            let user = Some(user(who));
            let method =
                ApplicationCredentialMethod { id: None, name, user, secret: secret.clone() };
            api::Identity::application_credential(method)
        }
        Identity::Token(token) => api::Identity::token(token.clone()),
    }
}

fn user(user: &User) -> UserRef {
    match user {
        User::Id(id) => UserRef { id: Some(id.to_string()), ..UserRef::default() },
        User::Name { name, domain: of } => UserRef {
            id: None,
            name: Some(name.to_string()),
            domain: Some(domain(of)),
        },
    }
}

fn domain(domain: &Domain) -> DomainRef {
    match domain {
        Domain::Id(id) => DomainRef { id: Some(id.to_string()), name: None },
        Domain::Name(name) => DomainRef { id: None, name: Some(name.to_string()) },
    }
}

fn scope(scope: &Scope) -> Option<api::Scope> {
    Some(match scope {
        Scope::Default => return None,
        Scope::Project(id) => {
            api::Scope::Project(ProjectRef { id: Some(id.to_string()), ..ProjectRef::default() })
        }
        Scope::ProjectName { name, domain: of } => {
            let name = Some(name.to_string());
            let domain = Some(domain(of));
            api::Scope::Project(ProjectRef { id: None, name, domain })
        }
        Scope::Domain(of) => api::Scope::Domain(domain(of)),
        Scope::Trust(id) => api::Scope::Trust(TrustRef { id: id.to_string() }),
    })
}
