//! Account, role and lifetime of the credentials.

use std::time::Duration;

use ccm_core::error::chain;
use jiff::Timestamp;

use super::{AwsFinding, Checks, iam_action};
use crate::{
    api::{
        Action,
        sts::{CallerIdentity, CredentialsLifetime, GetCallerIdentity},
    },
    config::OverriddenService,
};

/// Credentials that end sooner are reported. AWS gives new ones to an instance at least five minutes
/// before the old ones end, and to roles for a quarter of an hour or more.
const ENDS_SOON: Duration = Duration::from_mins(5);
/// The variable with the token of temporary credentials.
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";

impl Checks<'_> {
    /// Shows the account and the role or user of the credentials, and until when they are valid.
    /// Returns false if STS does not say it. That is no problem: nothing else needs STS, and private
    /// networks often have no way to it.
    pub(super) async fn check_caller(&mut self) -> bool {
        if self.is_sts_elsewhere() {
            self.ok("STS was not asked for account and role: of EC2 and STS, only EC2 has a ServiceOverride");
            return false;
        }
        match self.scope.client.read(self.op, GetCallerIdentity).await {
            Ok(caller) => {
                self.show_caller(&caller);
                true
            }
            Err(error) => {
                let name = iam_action(Action::GetCallerIdentity);
                let message = format!("account and role are not known: {name}: {}", chain(&error));
                self.ok(message);
                false
            }
        }
    }

    /// Returns true if requests to EC2 go to an endpoint of the cloud config, and those to STS would
    /// not. The endpoint may be another cloud's, whose credentials AWS must not get.
    fn is_sts_elsewhere(&self) -> bool {
        let region = &*self.scope.region;
        let is_overridden = |service: OverriddenService| {
            let mut sections = self.scope.settings.overrides.iter();
            sections.any(|section| section.service == service && *section.region == *region)
        };
        is_overridden(OverriddenService::Ec2) && !is_overridden(OverriddenService::Sts)
    }

    fn show_caller(&mut self, caller: &CallerIdentity) {
        let CallerIdentity { account, arn, lifetime } = caller;
        let who = format!("account {account}, as {arn}");
        match lifetime {
            CredentialsLifetime::Unknown => self.ok(who),
            CredentialsLifetime::NotRenewed => {
                self.ok(who);
                let message = format!(
                    "the credentials are temporary, and come from {SESSION_TOKEN} in the environment of the process"
                );
                self.add(AwsFinding::CredentialsNotRenewed.about(SESSION_TOKEN, message));
            }
            CredentialsLifetime::Until(end) => {
                let left = end.duration_since(Timestamp::now());
                if Duration::try_from(left).is_ok_and(|left| left >= ENDS_SOON) {
                    return self.ok(format!("{who}; the credentials are valid until {end:.0}"));
                }
                self.ok(who);
                let message =
                    format!("the credentials end at {end:.0}, and their source gave no later ones");
                self.add(AwsFinding::CredentialsEnd.about(&**arn, message));
            }
        }
    }
}
