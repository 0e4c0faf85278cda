//! Quotas of the project, with what is left of them.

use super::{Checks, OpenStackFinding, is_unreachable};
use crate::{
    api::{
        neutron::{QuotaDetail, QuotaDetails},
        octavia,
    },
    client::{Call, Request},
};

impl Checks<'_> {
    /// Checks what is left of the quotas that Services need.
    pub(super) async fn check_quotas(&mut self, project: &str) {
        let balancers = self.settings.load_balancer.as_ref();
        let Some(manages_groups) = balancers.map(|settings| settings.manage_security_groups) else {
            return;
        };
        let path = ["quotas", project, "details.json"];
        let request = Request::new(Call::NetworkQuotaGet, &path);
        match self.client.get::<QuotaDetails>(self.op, &request).await {
            Ok(quota) => {
                self.check_quota("floating IPs", quota.floatingip);
                self.check_quota("ports", quota.port);
                if manages_groups {
                    self.check_quota("security groups", quota.security_group);
                    self.check_quota("security group rules", quota.security_group_rule);
                }
            }
            // Without the extension quota_details, what is left is not known.
            Err(error) if error.is_not_found() || is_unreachable(&error) => {}
            Err(error) => self.add_unknown("the quotas of the network service", &error),
        }
    }

    /// Checks the quota of load balancers, of which the project has so many.
    pub(super) async fn check_load_balancer_quota(&mut self, project: &str, used: usize) {
        let path = ["quotas", project];
        let request = Request::new(Call::LbQuotaGet, &path);
        match self.client.get::<octavia::Quota>(self.op, &request).await {
            Ok(quota) => {
                let limit = quota.loadbalancer.or(quota.load_balancer).unwrap_or(-1);
                let used = i64::try_from(used).unwrap_or(i64::MAX);
                self.check_quota("load balancers", Some(QuotaDetail { limit, used, reserved: 0 }));
            }
            Err(error) if is_unreachable(&error) => {}
            Err(error) => self.add_unknown("the quotas of the load-balancer service", &error),
        }
    }

    /// Reports what is left of a quota, unless the service does not show it.
    fn check_quota(&mut self, object: &str, quota: Option<QuotaDetail>) {
        let Some(QuotaDetail { limit, used, reserved }) = quota else {
            return;
        };
        let taken = used.saturating_add(reserved);
        if limit < 0 {
            return self.ok(format!("{object}: {taken} in use, no quota"));
        }
        let message = format!("{object}: {taken} of {limit} in use");
        let left = limit.saturating_sub(taken);
        if left <= 0 {
            self.add(OpenStackFinding::QuotaUsedUp.about(object, message));
        } else if left <= limit / 10 {
            self.add(OpenStackFinding::QuotaNearlyUsedUp.about(object, message));
        } else {
            self.ok(message);
        }
    }
}
