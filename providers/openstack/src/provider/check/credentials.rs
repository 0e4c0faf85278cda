//! The user of the token: scope, roles and expiry.

use std::time::Duration;

use ccm_core::error::chain;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

use super::{Checks, OpenStackFinding};
use crate::{
    api::keystone::ApplicationCredential,
    client::{Call, TokenOwner},
    config::Identity,
};

/// Credentials that end sooner are reported.
const EXPIRES_SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// The role with which nothing can be changed.
const READER: &str = "reader";

impl Checks<'_> {
    /// Checks what the credentials are good for, and until when.
    pub(super) async fn check_credentials(&mut self) {
        let owner = match self.client.session().owner().await {
            Ok(owner) => owner,
            Err(error) => return self.add_error("the token", &error),
        };
        let user = format!("user {}", owner.user_name);
        let roles = owner.roles.join(", ");
        let project = match (&owner.project_id, &owner.project_name) {
            (Some(id), Some(name)) => format!("project {name} ({id})"),
            _ => {
                let message = format!("{user} has a token of no project");
                self.add(OpenStackFinding::NoProject.about(&user, message));
                "no project".to_owned()
            }
        };
        self.ok(format!("{user} in {project}, roles: {roles}"));
        if !owner.roles.is_empty() && owner.roles.iter().all(|role| **role == *READER) {
            let message = format!("{user} has only the role {READER} in {project}");
            self.add(OpenStackFinding::ReadOnlyRole.about(&user, message));
        }
        if let Identity::Token(_) = self.settings.cloud.auth.identity {
            let message = format!("a token of {user} is used, which cannot be renewed");
            self.add(OpenStackFinding::TokenNotRenewable.about("the token", message));
        }
        let is_password = matches!(self.settings.cloud.auth.identity, Identity::Password { .. });
        if is_password
            && let Some(left) = time_left(owner.password_expires_at.as_deref(), owner.issued_at)
        {
            let message = format!("the password of {user} ends in {} days", days(left));
            self.add(OpenStackFinding::PasswordExpires.about(user, message));
        }
        self.check_application_credential(&owner).await;
    }

    async fn check_application_credential(&mut self, owner: &TokenOwner) {
        let Some(id) = &owner.application_credential else {
            return;
        };
        let path = ["users", &*owner.user_id, "application_credentials", &**id];
        let credential = self
            .find::<ApplicationCredential>(Call::ApplicationCredentialGet, &path)
            .await;
        match credential {
            Ok(Some(credential)) => {
                let left = time_left(credential.expires_at.as_deref(), owner.issued_at);
                let object = format!("application credential {}", credential.name);
                match left {
                    Some(left) => {
                        let message = format!("{object} ends in {} days", days(left));
                        self.add(
                            OpenStackFinding::ApplicationCredentialExpires.about(object, message),
                        );
                    }
                    None => self.ok(format!("{object} does not end within 30 days")),
                }
            }
            Ok(None) => {}
            // Some clouds do not let application credentials read themselves.
            Err(error) => {
                self.ok(format!(
                    "the expiry of the application credential is not known: {}",
                    chain(&error)
                ));
            }
        }
    }
}

/// Returns the time from `now` until a time of Keystone, which may lack its zone, if that is soon.
fn time_left(end: Option<&str>, now: Timestamp) -> Option<Duration> {
    let end = end?;
    let end: Timestamp = end.parse().ok().or_else(|| {
        let end: DateTime = end.parse().ok()?;
        Some(end.to_zoned(TimeZone::UTC).ok()?.timestamp())
    })?;
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    (left < EXPIRES_SOON).then_some(left)
}

fn days(left: Duration) -> u64 {
    left.as_secs() / (24 * 3600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_read_with_and_without_zone() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let left = |end: &str| time_left(Some(end), now).map(days);
        assert_eq!(left("2026-01-11T00:00:00.000000"), Some(10));
        assert_eq!(left("2026-01-11T00:00:00.000000Z"), Some(10));
        assert_eq!(left("2025-01-11T00:00:00Z"), Some(0));
        assert_eq!(left("2026-03-01T00:00:00Z"), None);
        assert_eq!(left("soon"), None);
        assert_eq!(time_left(None, now), None);
    }
}
