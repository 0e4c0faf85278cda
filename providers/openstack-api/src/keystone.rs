//! Requests for tokens from the identity service (Keystone v3).

use serde::Serialize;

use crate::Secret;

/// Header with the token of a request.
pub const AUTH_TOKEN: &str = "x-auth-token";
/// Header of an answer with the token that was issued.
pub const SUBJECT_TOKEN: &str = "x-subject-token";

/// Body of `POST /v3/auth/tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenRequest {
    /// The envelope's only content.
    pub auth: Auth,
}

/// Who asks for a token, and for which scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Auth {
    /// Who asks, with proof.
    pub identity: Identity,
    /// Scope of the token; absent for application credentials, whose scope is fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// Proof by one or more methods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Names of the methods: `password`, `application_credential`, `token`. Each has its part
    /// below.
    pub methods: Vec<String>,
    /// Proof for `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordMethod>,
    /// Proof for `application_credential`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_credential: Option<ApplicationCredentialMethod>,
    /// Proof for `token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenMethod>,
}

impl Identity {
    /// Proves by a password.
    pub fn password(user: UserRef, password: Secret) -> Self {
        let user = PasswordUser { user, password };
        Self {
            methods: vec!["password".to_owned()],
            password: Some(PasswordMethod { user }),
            ..Self::default()
        }
    }

    /// Proves by an application credential.
    pub fn application_credential(method: ApplicationCredentialMethod) -> Self {
        let methods = vec!["application_credential".to_owned()];
        Self {
            methods,
            application_credential: Some(method),
            ..Self::default()
        }
    }

    /// Proves by a token issued earlier.
    pub fn token(id: Secret) -> Self {
        Self {
            methods: vec!["token".to_owned()],
            token: Some(TokenMethod { id }),
            ..Self::default()
        }
    }
}

/// Proof by password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PasswordMethod {
    /// The user with the password.
    pub user: PasswordUser,
}

/// A user with a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PasswordUser {
    /// The user.
    #[serde(flatten)]
    pub user: UserRef,
    /// The password.
    pub password: Secret,
}

/// Proof by application credential: by ID, or by name and its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApplicationCredentialMethod {
    /// ID of the credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the credential, unique for its user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The user, for a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// The secret.
    pub secret: Secret,
}

/// Proof by a token issued earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenMethod {
    /// The token.
    pub id: Secret,
}

/// A user: by ID, or by name and domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserRef {
    /// ID of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the user, unique in the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Domain of a user given by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainRef>,
}

/// A domain: by ID or by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DomainRef {
    /// ID of the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A project: by ID, or by name and domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProjectRef {
    /// ID of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the project, unique in the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Domain of a project given by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainRef>,
}

/// Scope of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One project.
    Project(ProjectRef),
    /// One domain.
    Domain(DomainRef),
    /// The project of a trust, with the rights that the trustor passed on.
    #[serde(rename = "OS-TRUST:trust")]
    Trust(TrustRef),
}

/// A trust by ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrustRef {
    /// ID of the trust.
    pub id: String,
}
