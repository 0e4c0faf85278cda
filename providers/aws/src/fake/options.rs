//! Delays, sizes, quotas and inconsistency of the in-memory AWS.

use std::time::Duration;

use crate::api::sts::CredentialsLifetime;

/// Delays and sizes. `Default` is AWS without its delays: everything takes effect at once, except
/// draining.
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// Time for which an object that is created from now on is missing from describes. A shorter
    /// time than before also applies to older objects.
    pub describe_lag: Duration,
    /// Time for which changes do not find an object that is created from now on.
    pub change_lag: Duration,
    /// Time for which a load balancer is `provisioning`.
    pub provisioning: Duration,
    /// Time for which a target is `initial`.
    pub initial: Duration,
    /// Time for which the network interfaces of a deleted load balancer remain.
    pub interfaces_linger: Duration,
    /// Maximum number of items per page.
    pub page_size: usize,
    /// Duration of a request: half before AWS carries it out, half after.
    pub latency: Duration,
    /// Network Load Balancers have host names like those of classic ones, as on some clouds with an
    /// AWS-compatible API.
    pub classic_host_names: bool,
    /// The VPCs are default ones. There, revoking a missing rule is not an error, and the other
    /// rules of the request are revoked; elsewhere, the whole request fails with
    /// `InvalidPermission.NotFound`.
    pub default_vpc: bool,
    /// Creating a load balancer or target group that exists already also compares the tags. AWS
    /// does not document whether it does; if not, the answer may be an object that somebody else
    /// created.
    pub tags_are_settings: bool,
    /// The lifetime of the credentials.
    pub credentials: CredentialsLifetime,
    /// Quotas of the account.
    pub quotas: Quotas,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            describe_lag: Duration::ZERO,
            change_lag: Duration::ZERO,
            provisioning: Duration::ZERO,
            initial: Duration::ZERO,
            interfaces_linger: Duration::ZERO,
            page_size: 1000,
            latency: Duration::ZERO,
            classic_host_names: false,
            default_vpc: false,
            tags_are_settings: false,
            credentials: CredentialsLifetime::Unknown,
            quotas: Quotas::default(),
        }
    }
}

impl FakeOptions {
    /// Returns the typical delays of the real AWS.
    pub fn realistic() -> Self {
        Self {
            describe_lag: Duration::from_secs(1),
            provisioning: Duration::from_secs(120),
            initial: Duration::from_secs(30),
            interfaces_linger: Duration::from_secs(180),
            latency: Duration::from_millis(100),
            ..Self::default()
        }
    }
}

/// Quotas of an account.
#[derive(Clone, Debug)]
#[expect(
    missing_docs,
    reason = "each is what its name says; those of AWS by default"
)]
pub struct Quotas {
    pub load_balancers: usize,
    pub classic_load_balancers: usize,
    pub classic_listeners: usize,
    pub classic_policies: usize,
    pub listeners_per_load_balancer: usize,
    pub certificates_per_load_balancer: usize,
    pub target_groups: usize,
    pub targets_per_target_group: usize,
    pub registrations_per_target: usize,
    pub tags: usize,
    pub security_groups_per_vpc: usize,
    pub rules_per_security_group: usize,
    pub security_groups_per_interface: usize,
    pub routes_per_table: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            load_balancers: 50,
            classic_load_balancers: 20,
            classic_listeners: 100,
            classic_policies: 100,
            listeners_per_load_balancer: 50,
            certificates_per_load_balancer: 25,
            target_groups: 3000,
            targets_per_target_group: 1000,
            registrations_per_target: 1000,
            tags: 50,
            security_groups_per_vpc: 2500,
            rules_per_security_group: 60,
            security_groups_per_interface: 5,
            routes_per_table: 50,
        }
    }
}
