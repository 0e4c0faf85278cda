//! Contents of tokens, and whether they are valid.

use std::{collections::BTreeSet, sync::Arc};

use crate::api::keystone as api;
use jiff::Timestamp;

use super::{
    Role, Target, Token, TokenScope, catalog,
    secret::{digest, random},
};
use crate::{
    server::{Origin, Settings},
    state::{CloudState, RequestContext},
};

/// Name of the role that may see and change everything.
pub(super) const ADMIN: &str = "admin";

/// The user of a request.
#[derive(Clone, Debug)]
pub struct RequestUser {
    /// Context for the handlers.
    pub ctx: RequestContext,
    /// The token.
    pub token: Arc<Token>,
}

/// Looks a token up. Returns `None` when it does not exist or is not valid any more.
pub fn authorize(state: &CloudState, text: &str, now: Timestamp) -> Option<RequestUser> {
    let token = find(state, text, now)?.clone();
    let project = match &token.scope {
        TokenScope::Target(Target::Project(id)) => id.as_str(),
        _ => "",
    };
    let admin = roles(state, &token).iter().any(|role| role.name == ADMIN);
    let ctx = RequestContext {
        now,
        project: project.into(),
        user: token.user_id.as_str().into(),
        admin,
    };
    Some(RequestUser { ctx, token })
}

/// Finds a valid token.
pub(super) fn find<'s>(
    state: &'s CloudState,
    text: &str,
    now: Timestamp,
) -> Option<&'s Arc<Token>> {
    state
        .keystone
        .tokens
        .get(&digest(text))
        .filter(|token| is_good(state, token, now))
}

/// Returns the text for a new token.
pub(super) fn text() -> String {
    random(48)
}

fn is_good(state: &CloudState, token: &Token, now: Timestamp) -> bool {
    let tables = &state.keystone;
    if token.expires_at <= now || !user_is_enabled(state, &token.user_id) {
        return false;
    }
    let scope = match &token.scope {
        TokenScope::Unscoped => true,
        TokenScope::Target(target) => {
            target_is_enabled(state, target) && !roles(state, token).is_empty()
        }
    };
    let credential = token.application_credential_id.as_ref().is_none_or(|id| {
        let credential = tables.application_credentials.get(id);
        credential.is_some_and(|credential| credential.expires_at.is_none_or(|end| end > now))
    });
    let trust = token.trust_id.as_ref().is_none_or(|id| {
        let trust = tables
            .trusts
            .get(id)
            .filter(|trust| trust.expires_at.is_none_or(|end| end > now));
        trust.is_some_and(|trust| {
            user_is_enabled(state, &trust.trustor_user_id)
                && user_is_enabled(state, &trust.trustee_user_id)
        })
    });
    scope && credential && trust
}

/// Returns whether a user may have tokens.
pub(super) fn user_is_enabled(state: &CloudState, id: &str) -> bool {
    let user = state.keystone.users.get(id).filter(|user| user.enabled);
    user.is_some_and(|user| {
        state
            .keystone
            .domains
            .get(&user.domain_id)
            .is_some_and(|domain| domain.enabled)
    })
}

/// Returns whether tokens may be scoped to a target.
pub(super) fn target_is_enabled(state: &CloudState, target: &Target) -> bool {
    let domain = |id: &str| {
        state
            .keystone
            .domains
            .get(id)
            .is_some_and(|domain| domain.enabled)
    };
    match target {
        Target::System => true,
        Target::Domain(id) => domain(id),
        Target::Project(id) => {
            let project = state
                .keystone
                .projects
                .get(id)
                .filter(|project| project.enabled);
            project.is_some_and(|project| domain(&project.domain_id))
        }
    }
}

/// Returns the roles of a user on a target.
pub(super) fn roles_of<'s>(
    state: &'s CloudState,
    user: &str,
    target: &Target,
) -> Vec<&'s Arc<Role>> {
    let assignments = state.keystone.assignments.iter();
    let ids: BTreeSet<&str> = assignments
        .filter(|assignment| assignment.user_id == user && assignment.target == *target)
        .map(|assignment| assignment.role_id.as_str())
        .collect();
    ids.into_iter()
        .filter_map(|id| state.keystone.roles.get(id))
        .collect()
}

/// Returns the current roles of a token.
pub(super) fn roles<'s>(state: &'s CloudState, token: &Token) -> Vec<&'s Arc<Role>> {
    let TokenScope::Target(target) = &token.scope else {
        return Vec::new();
    };
    let tables = &state.keystone;
    let (holder, only) =
        if let Some(trust) = token.trust_id.as_ref().and_then(|id| tables.trusts.get(id)) {
            (&trust.trustor_user_id, Some(&trust.role_ids))
        } else {
            let credential = token.application_credential_id.as_ref();
            let credential = credential.and_then(|id| tables.application_credentials.get(id));
            (&token.user_id, credential.map(|credential| &credential.role_ids))
        };
    let mut roles = roles_of(state, holder, target);
    roles.retain(|role| only.is_none_or(|only| only.contains(&role.id)));
    roles
}

/// Returns the description of a token, with the catalog if `with` is given.
pub(super) fn describe(
    state: &CloudState,
    token: &Token,
    with: Option<(&Origin, &Settings)>,
) -> api::Token {
    // First, the user and the times.
    let tables = &state.keystone;
    let domain = |id: &str| {
        let name = tables.domains.get(id).map(|domain| domain.name.clone());
        api::Named { id: id.to_owned(), name: name.unwrap_or_default() }
    };
    let user = tables.users.get(&token.user_id);
    let user = api::TokenUser {
        id: token.user_id.clone(),
        name: user.map(|user| user.name.clone()).unwrap_or_default(),
        domain: user.map(|user| domain(&user.domain_id)).unwrap_or_default(),
        password_expires_at: None,
    };
    let mut described = api::Token {
        methods: token.methods.clone(),
        user,
        audit_ids: token.audit_ids.clone(),
        expires_at: time(token.expires_at),
        issued_at: time(token.issued_at),
        ..api::Token::default()
    };
    // Then the scope, with roles and catalog.
    if let TokenScope::Target(target) = &token.scope {
        match target {
            Target::Project(id) => {
                described.project = tables.projects.get(id).map(|project| api::InDomain {
                    id: project.id.clone(),
                    name: project.name.clone(),
                    domain: domain(&project.domain_id),
                });
                described.is_domain = Some(false);
            }
            Target::Domain(id) => described.domain = Some(domain(id)),
            Target::System => described.system = Some(api::SystemScope { all: true }),
        }
        let roles = roles(state, token).into_iter();
        described.roles = Some(
            roles
                .map(|role| api::Named { id: role.id.clone(), name: role.name.clone() })
                .collect(),
        );
        described.catalog =
            with.map(|(origin, settings)| catalog::catalog(state, origin, settings));
    }
    // Finally, the delegation.
    let credential = token.application_credential_id.as_ref();
    described.application_credential = credential
        .and_then(|id| tables.application_credentials.get(id))
        .map(|found| {
            let id = found.id.clone();
            let name = found.name.clone();
            api::TokenApplicationCredential { id, name, restricted: !found.unrestricted }
        });
    described.trust = token
        .trust_id
        .as_ref()
        .and_then(|id| tables.trusts.get(id))
        .map(|trust| api::TokenTrust {
            id: trust.id.clone(),
            impersonation: trust.impersonation,
            trustor_user: api::UserId { id: trust.trustor_user_id.clone() },
            trustee_user: api::UserId { id: trust.trustee_user_id.clone() },
        });
    described
}

/// Returns a time in Keystone's format.
pub(super) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
