//! Issues tokens: authenticates a user, and decides what the token grants.

use std::sync::Arc;

use crate::api::{
    Secret,
    keystone::{ApplicationCredentialMethod, DomainRef, Identity, ProjectRef, Scope, UserRef},
};
use http::StatusCode;
use jiff::Timestamp;

use super::{
    ApplicationCredential, Project, Target, Token, TokenScope, Trust, User,
    secret::{Hashed, digest, random},
    token::{self, roles_of, target_is_enabled, user_is_enabled},
};
use crate::{
    server::unauthorized,
    state::{ApiError, CloudState},
};

/// Maximum number of expired tokens that are removed with each new one.
const PURGED: usize = 100;

/// The user that a request claims to be, and what has to be verified.
#[derive(Debug)]
pub(super) struct AuthClaim {
    user: Arc<User>,
    methods: Vec<String>,
    credential: Option<Arc<ApplicationCredential>>,
    /// The token that authenticates the request.
    parent: Option<Arc<Token>>,
    secrets: Vec<(Hashed, Secret)>,
}

impl AuthClaim {
    /// Verifies the secrets. This takes some milliseconds, so not under a lock.
    pub(super) fn prove(self) -> Result<Authenticated, ApiError> {
        if self
            .secrets
            .iter()
            .all(|(hash, secret)| hash.verify(secret))
        {
            Ok(Authenticated(self))
        } else {
            Err(unauthorized())
        }
    }
}

/// An authenticated user.
#[derive(Debug)]
pub(super) struct Authenticated(AuthClaim);

/// Looks up the user that a request claims to be.
pub(super) fn claim(
    state: &CloudState,
    identity: &Identity,
    now: Timestamp,
) -> Result<AuthClaim, ApiError> {
    // First, find the user and secret of each method.
    let mut claims = Vec::new();
    for method in &identity.methods {
        claims.push(match method.as_str() {
            "password" => {
                let user = &identity
                    .password
                    .as_ref()
                    .ok_or_else(|| missing("password", "identity"))?
                    .user;
                let found = enabled_user(state, &user.user)?;
                let hash = found.password.clone().ok_or_else(unauthorized)?;
                (found, None, None, Some((hash, user.password.clone())))
            }
            "application_credential" => {
                let method = identity.application_credential.as_ref();
                let method = method.ok_or_else(|| missing("application_credential", "identity"))?;
                let credential = credential(state, method, now)?;
                let user = UserRef { id: Some(credential.user_id.clone()), ..UserRef::default() };
                let secret = (credential.secret.clone(), method.secret.clone());
                (enabled_user(state, &user)?, Some(credential), None, Some(secret))
            }
            "token" => {
                let method = identity
                    .token
                    .as_ref()
                    .ok_or_else(|| missing("token", "identity"))?;
                let parent = token::find(state, method.id.expose(), now)
                    .ok_or_else(unauthorized)?
                    .clone();
                let user = UserRef { id: Some(parent.user_id.clone()), ..UserRef::default() };
                (enabled_user(state, &user)?, None, Some(parent), None)
            }
            _ => {
                let message = "Attempted to authenticate with an unsupported method.";
                return Err(ApiError::new(StatusCode::UNAUTHORIZED, "", message));
            }
        });
    }
    // Then check that all methods are of the same user.
    let mut claims = claims.into_iter();
    let (user, credential, parent, secret) = claims
        .next()
        .ok_or_else(|| missing("methods", "identity"))?;
    let methods = identity.methods.clone();
    let mut all = AuthClaim {
        user,
        methods,
        credential,
        parent,
        secrets: secret.into_iter().collect(),
    };
    for (user, credential, parent, secret) in claims {
        if user.id != all.user.id {
            return Err(unauthorized());
        }
        all.credential = all.credential.or(credential);
        all.parent = all.parent.or(parent);
        all.secrets.extend(secret);
    }
    Ok(all)
}

/// Creates a token. Returns its text, and the token.
pub(super) fn issue(
    state: &mut CloudState,
    proved: Authenticated,
    scope: Option<&Scope>,
    now: Timestamp,
    lifetime: jiff::SignedDuration,
) -> Result<(String, Arc<Token>), ApiError> {
    // First, decide what the token grants.
    let Authenticated(claim) = proved;
    let grant = grant(state, &claim, scope, now)?;
    let end = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
    let ends = [claim.parent.as_ref().map(|parent| parent.expires_at), grant.end];
    let audit_id = random(16);
    let first = claim
        .parent
        .as_ref()
        .and_then(|parent| parent.audit_ids.last().cloned());
    let mut methods = claim.methods;
    for method in claim.parent.iter().flat_map(|parent| &parent.methods) {
        if !methods.contains(method) {
            methods.push(method.clone());
        }
    }
    // Then create it, with the earliest expiry.
    let text = token::text();
    let token = Token {
        digest: digest(&text),
        user_id: grant.user_id,
        scope: grant.scope,
        methods,
        issued_at: now,
        expires_at: ends.into_iter().flatten().fold(end, Timestamp::min),
        audit_ids: std::iter::once(audit_id).chain(first).collect(),
        application_credential_id: claim.credential.map(|credential| credential.id.clone()),
        trust_id: grant.trust_id,
    };
    // Finally, store it, and remove some expired ones.
    let tokens = &mut state.keystone.tokens;
    let ended = tokens
        .iter()
        .filter(|token| token.expires_at <= now)
        .map(|token| token.digest.clone());
    let ended: Vec<String> = ended.take(PURGED).collect();
    for digest in ended {
        tokens.remove(&digest);
    }
    let digest = token.digest.clone();
    tokens.put(token);
    // It was stored just now.
    let token = tokens.get(&digest).cloned().ok_or_else(unauthorized)?;
    Ok((text, token))
}

/// What a new token grants.
struct Grant {
    user_id: String,
    scope: TokenScope,
    trust_id: Option<String>,
    end: Option<Timestamp>,
}

fn grant(
    state: &mut CloudState,
    claim: &AuthClaim,
    scope: Option<&Scope>,
    now: Timestamp,
) -> Result<Grant, ApiError> {
    let user_id = claim.user.id.clone();
    if let Some(credential) = &claim.credential {
        if scope.is_some() {
            let message = "Application credentials cannot request a scope.";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "", message));
        }
        let target = Target::Project(credential.project_id.clone());
        let mut roles = roles_of(state, &user_id, &target);
        roles.retain(|role| credential.role_ids.contains(&role.id));
        if roles.is_empty() || !target_is_enabled(state, &target) {
            return Err(unauthorized());
        }
        return Ok(Grant {
            user_id,
            scope: TokenScope::Target(target),
            trust_id: None,
            end: credential.expires_at,
        });
    }
    let delegated =
        |token: &Arc<Token>| token.trust_id.is_some() || token.application_credential_id.is_some();
    if claim.parent.as_ref().is_some_and(delegated) {
        return Err(ApiError::forbidden(
            "",
            "You are not authorized to perform the requested action: rescope a scoped token.",
        ));
    }
    let target = match scope {
        Some(Scope::Trust(trust)) => return use_trust(state, claim, &trust.id, now),
        Some(Scope::Unscoped {}) => None,
        Some(Scope::Project(project)) => {
            Some(Target::Project(find_project(state, project)?.id.clone()))
        }
        Some(Scope::Domain(domain)) => Some(Target::Domain(find_domain(state, domain)?)),
        Some(Scope::System(system)) if system.all => Some(Target::System),
        Some(Scope::System(_)) => return Err(missing("all", "system")),
        // Unlike a requested project, a default project that cannot be used is ignored.
        None => claim
            .user
            .default_project_id
            .clone()
            .map(Target::Project)
            .filter(|target| may(state, &user_id, target)),
    };
    let scope = match target {
        None => TokenScope::Unscoped,
        Some(target) if may(state, &user_id, &target) => TokenScope::Target(target),
        Some(_) => return Err(unauthorized()),
    };
    Ok(Grant { user_id, scope, trust_id: None, end: None })
}

fn may(state: &CloudState, user: &str, target: &Target) -> bool {
    target_is_enabled(state, target) && !roles_of(state, user, target).is_empty()
}

fn use_trust(
    state: &mut CloudState,
    claim: &AuthClaim,
    id: &str,
    now: Timestamp,
) -> Result<Grant, ApiError> {
    let trust = state.keystone.trusts.get(id).cloned();
    let usable = |trust: &Arc<Trust>| {
        trust.expires_at.is_none_or(|end| end > now) && trust.remaining_uses != Some(0)
    };
    let trust = trust.filter(usable);
    let trust =
        trust.ok_or_else(|| ApiError::not_found("", format!("Could not find trust: {id}.")))?;
    if trust.trustee_user_id != claim.user.id {
        return Err(ApiError::forbidden("", "User is not a trustee."));
    }
    let target = Target::Project(trust.project_id.clone());
    let mut roles = roles_of(state, &trust.trustor_user_id, &target);
    roles.retain(|role| trust.role_ids.contains(&role.id));
    // If the trustor has lost a role of the trust, the trust grants nothing.
    if roles.len() < trust.role_ids.len() || !user_is_enabled(state, &trust.trustor_user_id) {
        return Err(ApiError::forbidden("", "The trustor no longer has the roles of the trust."));
    }
    if !target_is_enabled(state, &target) {
        return Err(unauthorized());
    }
    if trust.remaining_uses.is_some() {
        state
            .keystone
            .trusts
            .update(id, |trust| trust.remaining_uses = trust.remaining_uses.map(|left| left - 1));
    }
    let user_id = if trust.impersonation {
        &trust.trustor_user_id
    } else {
        &trust.trustee_user_id
    };
    let user_id = user_id.clone();
    let trust_id = Some(id.to_owned());
    Ok(Grant {
        user_id,
        scope: TokenScope::Target(target),
        trust_id,
        end: trust.expires_at,
    })
}

fn missing(what: &str, place: &str) -> ApiError {
    let message = format!(
        "Expecting to find {what} in {place}. The server could not comply with the request since it is either \
         malformed or otherwise incorrect. The client is assumed to be in error."
    );
    ApiError::bad_request("", message)
}

fn enabled_user(state: &CloudState, user: &UserRef) -> Result<Arc<User>, ApiError> {
    let found = match (&user.id, &user.name) {
        (Some(id), _) => state.keystone.users.get(id),
        (None, Some(name)) => {
            let domain = find_domain(
                state,
                user.domain
                    .as_ref()
                    .ok_or_else(|| missing("domain", "user"))?,
            )?;
            state
                .keystone
                .users
                .iter()
                .find(|user| user.domain_id == domain && user.name == *name)
        }
        (None, None) => return Err(missing("id or name", "user")),
    };
    found
        .filter(|user| user_is_enabled(state, &user.id))
        .cloned()
        .ok_or_else(unauthorized)
}

fn credential(
    state: &CloudState,
    method: &ApplicationCredentialMethod,
    now: Timestamp,
) -> Result<Arc<ApplicationCredential>, ApiError> {
    let credentials = &state.keystone.application_credentials;
    let found = match (&method.id, &method.name) {
        (Some(id), _) => credentials.get(id),
        (None, Some(name)) => {
            let user = method
                .user
                .as_ref()
                .ok_or_else(|| missing("user", "application_credential"))?;
            let user = enabled_user(state, user)?;
            credentials
                .iter()
                .find(|credential| credential.user_id == user.id && credential.name == *name)
        }
        (None, None) => return Err(missing("id or name", "application_credential")),
    };
    let good = |credential: &&Arc<ApplicationCredential>| {
        credential.expires_at.is_none_or(|end| end > now)
    };
    found.filter(good).cloned().ok_or_else(unauthorized)
}

fn find_domain(state: &CloudState, domain: &DomainRef) -> Result<String, ApiError> {
    let found = match (&domain.id, &domain.name) {
        (Some(id), _) => state.keystone.domains.get(id),
        (None, Some(name)) => state
            .keystone
            .domains
            .iter()
            .find(|domain| domain.name == *name),
        (None, None) => return Err(missing("id or name", "domain")),
    };
    found
        .map(|domain| domain.id.clone())
        .ok_or_else(unauthorized)
}

fn find_project<'s>(
    state: &'s CloudState,
    project: &ProjectRef,
) -> Result<&'s Arc<Project>, ApiError> {
    let found = match (&project.id, &project.name) {
        (Some(id), _) => state.keystone.projects.get(id),
        (None, Some(name)) => {
            let domain = find_domain(
                state,
                project
                    .domain
                    .as_ref()
                    .ok_or_else(|| missing("domain", "project"))?,
            )?;
            state
                .keystone
                .projects
                .iter()
                .find(|project| project.domain_id == domain && project.name == *name)
        }
        (None, None) => return Err(missing("id or name", "project")),
    };
    found.ok_or_else(unauthorized)
}
