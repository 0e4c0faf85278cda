//! How fast, how large and how forgetful the in-memory AWS is.

use std::time::Duration;

/// Times and sizes. `Default` is AWS without its delays: everything is there at once, except what drains.
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// How long an object that is made from now on is missing from describes. A shorter time than before holds for older ones,
    /// too.
    pub describe_lag: Duration,
    /// How long an object that is made from now on is not found by changes.
    pub change_lag: Duration,
    /// How long a load balancer is `provisioning`.
    pub provisioning: Duration,
    /// How long a target is `initial`.
    pub initial: Duration,
    /// How long network interfaces of a deleted load balancer stay.
    pub interfaces_linger: Duration,
    /// Most items of a page.
    pub page_size: usize,
    /// How long requests take: half of it before AWS does something, half of it after.
    pub latency: Duration,
    /// The VPCs are default ones, where a revocation of a rule that is not there is no error (and the others of the request are
    /// revoked), instead of `InvalidPermission.NotFound` for all.
    pub default_vpc: bool,
    /// Creating a load balancer or target group that is there already compares tags as well. AWS does not say whether it does;
    /// without, the answer may be somebody else's object.
    pub tags_are_settings: bool,
    /// What the account may have.
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
            default_vpc: false,
            tags_are_settings: false,
            quotas: Quotas::default(),
        }
    }
}

impl FakeOptions {
    /// AWS with the delays that it has on a usual day.
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

/// What an account may have.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each is what its name says; those of AWS by default")]
pub struct Quotas {
    pub load_balancers: usize,
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
