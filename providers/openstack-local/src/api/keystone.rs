//! Identity, Keystone v3: requests for tokens, tokens with their catalog, application credentials,
//! trusts, projects.

use serde::{Deserialize, Serialize};

use crate::api::{Secret, version::Link};

/// Header with the token of who asks.
pub const AUTH_TOKEN: &str = "x-auth-token";
/// Header with the token that was made, or that is asked about.
pub const SUBJECT_TOKEN: &str = "x-subject-token";

/// Body of `POST /v3/auth/tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRequest {
    /// The envelope's only content.
    pub auth: Auth,
}

/// Who asks for a token, and for which scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auth {
    /// Who asks, with proof.
    pub identity: Identity,
    /// Scope of the token; absent for application credentials, whose scope is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// Proof by one or more methods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Names of the methods: `password`, `application_credential`, `token`. Each has its part
    /// below.
    pub methods: Vec<String>,
    /// Proof for `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordMethod>,
    /// Proof for `application_credential`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_credential: Option<ApplicationCredentialMethod>,
    /// Proof for `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PasswordMethod {
    /// The user with the password.
    pub user: PasswordUser,
}

/// A user with a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PasswordUser {
    /// The user.
    #[serde(flatten)]
    pub user: UserRef,
    /// The password.
    pub password: Secret,
}

/// Proof by application credential: by ID, or by name and its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationCredentialMethod {
    /// ID of the credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the credential, unique for its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The user, for a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// The secret.
    pub secret: Secret,
}

/// Proof by a token issued earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenMethod {
    /// The token.
    pub id: Secret,
}

/// A user: by ID, or by name and domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRef {
    /// ID of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the user, unique in the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Domain of a user given by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainRef>,
}

/// A domain: by ID or by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainRef {
    /// ID of the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A project: by ID, or by name and domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectRef {
    /// ID of the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the project, unique in the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Domain of a project given by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainRef>,
}

/// Scope of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One project.
    Project(ProjectRef),
    /// One domain.
    Domain(DomainRef),
    /// The whole cloud.
    System(SystemScope),
    /// The project of a trust, with the rights that the trustor passed on.
    #[serde(rename = "OS-TRUST:trust")]
    Trust(TrustRef),
    /// Nothing; also when the user has a default project.
    Unscoped {},
}

/// The whole cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemScope {
    /// Always true.
    pub all: bool,
}

/// A trust by ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustRef {
    /// ID of the trust.
    pub id: String,
}

/// Answer of `POST` and `GET /v3/auth/tokens`; the token itself is in the header [`SUBJECT_TOKEN`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAnswer {
    /// Content of the token.
    pub token: Token,
}

/// Content of a token: its user, scope and expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Authentication methods.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Whose token it is.
    pub user: TokenUser,
    /// IDs for audit: its own, then that of the first token it came from.
    #[serde(default)]
    pub audit_ids: Vec<String>,
    /// Expiry in RFC 3339, with microseconds and `Z`.
    pub expires_at: String,
    /// Time of issue, in the same form.
    #[serde(default)]
    pub issued_at: String,
    /// The project it is scoped to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<InDomain>,
    /// True if the project acts as a domain; present with a project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_domain: Option<bool>,
    /// The domain it is scoped to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Named>,
    /// The whole cloud, when it is scoped to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<SystemScope>,
    /// Roles in the scope; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<Named>>,
    /// Services with their endpoints; absent without a scope, or when asked not to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<Vec<CatalogService>>,
    /// The application credential that it was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_credential: Option<TokenApplicationCredential>,
    /// The trust that it was made with.
    #[serde(
        rename = "OS-TRUST:trust",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub trust: Option<TokenTrust>,
}

/// Whose token it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUser {
    /// ID of the user.
    pub id: String,
    /// Name of the user.
    pub name: String,
    /// Domain of the user.
    pub domain: Named,
    /// Expiry of the password, if it has one.
    #[serde(default)]
    pub password_expires_at: Option<String>,
}

/// ID and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// ID.
    pub id: String,
    /// Name.
    pub name: String,
}

/// ID and name in a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InDomain {
    /// ID.
    pub id: String,
    /// Name, unique in the domain.
    pub name: String,
    /// The domain.
    pub domain: Named,
}

/// The application credential that a token was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenApplicationCredential {
    /// ID of the credential.
    pub id: String,
    /// Name of the credential.
    pub name: String,
    /// True if such a token must not create credentials and trusts.
    #[serde(default)]
    pub restricted: bool,
}

/// The trust that a token was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenTrust {
    /// ID of the trust.
    pub id: String,
    /// True if the token impersonates the trustor.
    #[serde(default)]
    pub impersonation: bool,
    /// Who trusts.
    pub trustor_user: UserId,
    /// Who is trusted.
    pub trustee_user: UserId,
}

/// A user by ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserId {
    /// ID of the user.
    pub id: String,
}

/// A service of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogService {
    /// ID of the service.
    #[serde(default)]
    pub id: String,
    /// Type of the service: `identity`, `compute`, `network`, `load-balancer`, `key-manager`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the service, such as `nova`; null if it has none.
    #[serde(default)]
    pub name: Option<String>,
    /// Endpoints of the service.
    #[serde(default)]
    pub endpoints: Vec<CatalogEndpoint>,
}

/// An endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogEndpoint {
    /// ID of the endpoint.
    #[serde(default)]
    pub id: String,
    /// For whom: `public`, `internal` or `admin`.
    pub interface: String,
    /// ID of the region; null for an endpoint of none.
    #[serde(default)]
    pub region_id: Option<String>,
    /// The region once more, under its old name.
    #[serde(default)]
    pub region: Option<String>,
    /// The address.
    pub url: String,
}

/// Answer of `GET /v3/auth/catalog`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// Services.
    pub catalog: Vec<CatalogService>,
    /// Links of the collection.
    #[serde(default)]
    pub links: CollectionLinks,
}

/// Links of a collection. Keystone never pages these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionLinks {
    /// The next page.
    #[serde(default)]
    pub next: Option<String>,
    /// The collection.
    #[serde(rename = "self", default)]
    pub this: String,
    /// The page before.
    #[serde(default)]
    pub previous: Option<String>,
}

/// Body of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The envelope's only content.
    pub error: ErrorDetail,
}

/// Description of the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// Status of the answer.
    pub code: u16,
    /// Name of the status.
    #[serde(default)]
    pub title: String,
    /// Message for a person.
    #[serde(default)]
    pub message: String,
}

/// Body of `POST /v3/users/{id}/application_credentials`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationCredentialCreate {
    /// Name, unique for the user.
    pub name: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The secret; made by the service when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Expiry; absent if it never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Roles; those of the asking token when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<RoleRef>>,
    /// True if it may create credentials and trusts; false if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrestricted: Option<bool>,
}

/// A role: by ID or by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleRef {
    /// ID of the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An application credential as answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationCredential {
    /// ID.
    pub id: String,
    /// Name, unique for the user.
    pub name: String,
    /// For people.
    #[serde(default)]
    pub description: Option<String>,
    /// Project that its tokens are scoped to.
    pub project_id: String,
    /// The user; not in every release.
    #[serde(default)]
    pub user_id: String,
    /// Expiry in UTC without a zone; null if it never expires.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// Roles that its tokens have.
    #[serde(default)]
    pub roles: Vec<Named>,
    /// True if it may create credentials and trusts.
    #[serde(default)]
    pub unrestricted: bool,
    /// The secret, in the answer to its creation only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Links.
    #[serde(default)]
    pub links: SelfLink,
}

/// Envelope of one application credential, in a request or an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationCredentialEnvelope<T> {
    /// The content.
    pub application_credential: T,
}

/// The address of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfLink {
    /// The address.
    #[serde(rename = "self", default)]
    pub this: String,
}

/// A project as answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// ID.
    pub id: String,
    /// Name, unique in the domain.
    pub name: String,
    /// Domain that it is in.
    #[serde(default)]
    pub domain_id: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// True if tokens may be scoped to it.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Project or domain above.
    #[serde(default)]
    pub parent_id: Option<String>,
    /// True if it acts as a domain.
    #[serde(default)]
    pub is_domain: bool,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Links.
    #[serde(default)]
    pub links: SelfLink,
}

fn yes() -> bool {
    true
}

/// Answer of `GET /v3` in its own form: the list of versions is one level deeper than elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The level.
    pub versions: VersionValues,
}

/// Versions of the identity service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionValues {
    /// The versions.
    pub values: Vec<crate::api::version::Version>,
}

/// Finds the address in links by what they lead to, such as `self`.
pub fn link<'a>(links: &'a [Link], rel: &str) -> Option<&'a str> {
    links
        .iter()
        .find(|link| link.rel == rel)
        .map(|link| link.href.as_str())
}

#[cfg(test)]
#[path = "keystone_tests.rs"]
mod tests;
