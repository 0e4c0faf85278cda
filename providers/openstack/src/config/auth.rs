//! Chooses the credentials from the keys of `[Global]`, and checks that they are complete.

use ccm_core::config::gcfg_keys::ConfigValue;
use openstack_api::Secret;
use url::Url;

use super::{
    Auth, Domain, Identity, Scope, User,
    keys::{Global, SecretValue},
};
use crate::config::validation_report::{ValidationReport, text};

const SECTION: &str = "Global";

/// Reads the credentials. Returns `None` if there is an error, which `report` contains.
pub(super) fn read_auth(raw: &Global, report: &mut ValidationReport) -> Option<Auth> {
    let url = read_url(raw, report);
    let identity = choose_identity(raw, report);
    let scope = choose_scope(raw, report);
    Some(Auth { url: url?, identity: identity?, scope: scope? })
}

/// Reads the URL of Keystone.
fn read_url(raw: &Global, report: &mut ValidationReport) -> Option<Url> {
    let Some(written) = text(&raw.auth_url) else {
        report.add_error(SECTION, &raw.auth_url, "is missing: it must name Keystone");
        return None;
    };
    let url = Url::parse(written)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.filter(|url| url.username().is_empty() && url.password().is_none());
    if url.is_none() {
        // The message does not quote the URL, which may contain a password.
        report.add_error(SECTION, &raw.auth_url, "is not a URL of the form https://host:port/v3");
    }
    url
}

fn non_empty_secret(value: &ConfigValue<SecretValue>) -> Option<Secret> {
    Some(value.value.0.clone()).filter(|secret| !secret.is_empty())
}

/// Returns true if any key of an application credential is set.
fn uses_application_credential(raw: &Global) -> bool {
    let texts = [&raw.credential_id, &raw.credential_name];
    texts.into_iter().any(|value| text(value).is_some())
        || non_empty_secret(&raw.credential_secret).is_some()
}

/// Chooses the identity: with a trust, the trustee by ID, then the user; without one, the
/// application credential, then the token, then the user.
fn choose_identity(raw: &Global, report: &mut ValidationReport) -> Option<Identity> {
    if text(&raw.trust_id).is_some() {
        return read_trustee(raw, report);
    }
    if uses_application_credential(raw) {
        return read_application_credential(raw, report);
    }
    if let Some(token) = non_empty_secret(&raw.token) {
        return Some(Identity::Token(token));
    }
    read_user_with_password(raw, non_empty_secret(&raw.password), report)
}

/// Reads the identity that uses a trust. The trustee's password takes precedence over the user's.
fn read_trustee(raw: &Global, report: &mut ValidationReport) -> Option<Identity> {
    let password =
        non_empty_secret(&raw.trustee_password).or_else(|| non_empty_secret(&raw.password));
    let Some(id) = text(&raw.trustee_id) else {
        return read_user_with_password(raw, password, report);
    };
    if password.is_none() {
        report.add_error(SECTION, &raw.trustee_password, "is missing: trustee-id needs a password");
    }
    Some(Identity::Password { user: User::Id(id.into()), password: password? })
}

/// Reads the user, who has this password.
fn read_user_with_password(
    raw: &Global,
    password: Option<Secret>,
    report: &mut ValidationReport,
) -> Option<Identity> {
    let user = read_user(raw, report);
    if password.is_none() {
        report.add_error(
            SECTION,
            &raw.password,
            "is missing: there is no password, application credential or token",
        );
    }
    Some(Identity::Password { user: user?, password: password? })
}

fn read_application_credential(raw: &Global, report: &mut ValidationReport) -> Option<Identity> {
    let secret = non_empty_secret(&raw.credential_secret);
    if secret.is_none() {
        report.add_error(
            SECTION,
            &raw.credential_secret,
            "is missing: an application credential needs its secret",
        );
    }
    if let Some(id) = text(&raw.credential_id) {
        return Some(Identity::Credential { id: id.into(), secret: secret? });
    }
    let Some(name) = text(&raw.credential_name) else {
        let message = "is missing: an application credential needs its ID, or its name and user";
        report.add_error(SECTION, &raw.credential_id, message);
        return None;
    };
    let user = read_user(raw, report);
    Some(Identity::NamedCredential { name: name.into(), user: user?, secret: secret? })
}

/// Returns the user, either by ID or by name in a domain.
fn read_user(raw: &Global, report: &mut ValidationReport) -> Option<User> {
    let user_domain = read_domain(&raw.user_domain_id, &raw.user_domain_name);
    match (text(&raw.user_id), text(&raw.username)) {
        (Some(_), Some(_)) => {
            report.add_error(SECTION, &raw.username, "must not be set together with user-id");
            None
        }
        (None, None) => {
            report.add_error(
                SECTION,
                &raw.username,
                "is missing: exactly one of username and user-id is needed",
            );
            None
        }
        (Some(_), None) if user_domain.is_some() => {
            let value = if text(&raw.user_domain_id).is_some() {
                &raw.user_domain_id
            } else {
                &raw.user_domain_name
            };
            report.add_error(
                SECTION,
                value,
                "must not be set together with user-id, which needs no domain",
            );
            None
        }
        (Some(id), None) => Some(User::Id(id.into())),
        (None, Some(_))
            if text(&raw.user_domain_id).is_some() && text(&raw.user_domain_name).is_some() =>
        {
            report.add_error(
                SECTION,
                &raw.user_domain_name,
                "must not be set together with user-domain-id",
            );
            None
        }
        (None, Some(name)) => {
            let Some(domain) = user_domain.or_else(|| default_domain(raw)) else {
                let message =
                    "needs a domain: user-domain-id, user-domain-name, domain-id or domain-name";
                report.add_error(SECTION, &raw.username, message);
                return None;
            };
            Some(User::Name { name: name.into(), domain })
        }
    }
}

/// Chooses the scope: the trust, then what the application credential is for, then a project, then
/// a domain.
fn choose_scope(raw: &Global, report: &mut ValidationReport) -> Option<Scope> {
    if let Some(trust) = text(&raw.trust_id) {
        return Some(Scope::Trust(trust.into()));
    }
    if uses_application_credential(raw) {
        return Some(Scope::Default);
    }
    if let Some(id) = text(&raw.tenant_id) {
        return Some(Scope::Project(id.into()));
    }
    if let Some(name) = text(&raw.tenant_name) {
        let domain = read_domain(&raw.tenant_domain_id, &raw.tenant_domain_name)
            .or_else(|| default_domain(raw));
        if domain.is_none() {
            let message =
                "needs a domain: tenant-domain-id, tenant-domain-name, domain-id or domain-name";
            report.add_error(SECTION, &raw.tenant_name, message);
        }
        return Some(Scope::ProjectName { name: name.into(), domain: domain? });
    }
    match default_domain(raw) {
        Some(domain) => Some(Scope::Domain(domain)),
        None if non_empty_secret(&raw.token).is_some() => {
            report.add_error(
                SECTION,
                &raw.token,
                "needs a project or a domain: a bare token cannot be renewed",
            );
            None
        }
        None => Some(Scope::Default),
    }
}

/// Returns the domain of users and projects that name none.
fn default_domain(raw: &Global) -> Option<Domain> {
    read_domain(&raw.domain_id, &raw.domain_name)
}

/// Reads a domain. The ID takes precedence over the name.
fn read_domain(id: &ConfigValue<String>, name: &ConfigValue<String>) -> Option<Domain> {
    text(id)
        .map(|id| Domain::Id(id.into()))
        .or_else(|| text(name).map(|name| Domain::Name(name.into())))
}
