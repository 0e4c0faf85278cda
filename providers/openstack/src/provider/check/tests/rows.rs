//! The misconfigurations, and the line that each must have.

use std::collections::BTreeMap;

use ccm_core::provider::Severity;
use openstack_local::api::{
    neutron::QuotaUpdate,
    octavia::{self as lb_api, LoadBalancerCreate, Patch},
};
use openstack_local::{
    keystone::{ApplicationCredential, Assignment, Target, User},
    neutron, octavia,
    state::{ApiError, CloudState, RequestContext},
};

use super::fixture::{CLUSTER, Fixture};

/// An ID that nothing has.
const NOWHERE: &str = "00000000-0000-4000-8000-000000000000";

/// A row: what is wrong, and the name, severity, object and advice of its line.
pub(super) type Row =
    (fn(&mut Fixture), &'static str, Severity, fn(&Fixture) -> String, &'static str);

fn nowhere(key: &str) -> String {
    format!("{key} {NOWHERE}")
}

pub(super) const ROWS: &[Row] = &[
    // The provider cannot be created.
    (
        |f| f.more += "[LoadBalancer]\nlb-method=x\ncreate-monitor=perhaps\n",
        "ConfigInvalid",
        Severity::Error,
        |_| String::new(),
        "correct the lines",
    ),
    (
        |f| set(&mut f.global, "password", "wrong"),
        "PasswordRejected",
        Severity::Error,
        |_| "user demo".to_owned(),
        "both domains for user demo",
    ),
    (
        |f| set(&mut f.global, "tenant-name", "elsewhere"),
        "PasswordRejected",
        Severity::Error,
        |_| "user demo".to_owned(),
        "needs a role in that project",
    ),
    (
        unknown_application_credential,
        "ApplicationCredentialRejected",
        Severity::Error,
        |_| "application credential ac-1".to_owned(),
        "see whether application credential ac-1 exists",
    ),
    (
        |f| application_credential(f, -1),
        "ApplicationCredentialRejected",
        Severity::Error,
        |_| "application credential ac-1".to_owned(),
        "has not expired",
    ),
    (
        expired_token,
        "TokenRejected",
        Severity::Error,
        |_| "the token".to_owned(),
        "replace the token, which is invalid or expired",
    ),
    (
        |f| set(&mut f.global, "region", "RegionTwo"),
        "ServiceMissing",
        Severity::Error,
        |_| "region \"RegionTwo\", interface public".to_owned(),
        "set region and os-endpoint-type",
    ),
    (
        unreachable_endpoint,
        "KeystoneUnreachable",
        Severity::Error,
        |_| "127.0.0.1".to_owned(),
        "check auth-url, the network to 127.0.0.1",
    ),
    (missing_ca_file, "ConnectionInvalid", Severity::Error, |_| String::new(), "ca-file"),
    // Credentials.
    (
        |f| application_credential(f, 10),
        "ApplicationCredentialExpires",
        Severity::Warning,
        |_| "application credential for-ccm".to_owned(),
        "in place of application credential for-ccm",
    ),
    (
        |f| {
            f.change(|state, ctx| {
                only_reader(state, ctx);
                Ok(())
            });
        },
        "ReadOnlyRole",
        Severity::Error,
        |_| "user demo".to_owned(),
        "give user demo the role member",
    ),
    // Services.
    (
        |f| f.fault = Some(("/network/v2.0/security-groups", 403)),
        "ReadRejected",
        Severity::Error,
        |_| "security groups".to_owned(),
        "may list security groups",
    ),
    (
        |f| f.fault = Some(("/network/v2.0/floatingips", 403)),
        "ReadRejected",
        Severity::Error,
        |_| "floating IPs".to_owned(),
        "may list floating IPs",
    ),
    (
        |f| f.fault = Some(("/network/v2.0/quotas", 400)),
        "ReadFailed",
        Severity::Warning,
        |_| "the quotas of the network service".to_owned(),
        "check again",
    ),
    (
        |f| f.fault = Some(("/compute", 503)),
        "ServiceUnreachable",
        Severity::Error,
        |_| "compute".to_owned(),
        "endpoint of compute in the catalog",
    ),
    // Octavia.
    (
        |f| set(&mut f.load_balancer, "lb-provider", "f5"),
        "DriverUnknown",
        Severity::Error,
        |_| "f5".to_owned(),
        "set lb-provider, now f5",
    ),
    (
        |f| set(&mut f.load_balancer, "flavor-id", NOWHERE),
        "FlavorUnknown",
        Severity::Error,
        |_| NOWHERE.to_owned(),
        "openstack loadbalancer flavor list",
    ),
    (
        |f| set(&mut f.load_balancer, "availability-zone", "moon"),
        "AvailabilityZoneUnknown",
        Severity::Error,
        |_| "moon".to_owned(),
        "correct availability-zone moon",
    ),
    // Networks.
    (
        |f| set(&mut f.load_balancer, "network-id", NOWHERE),
        "NetworkUnknown",
        Severity::Error,
        |_| nowhere("network-id"),
        "correct network-id 0",
    ),
    (
        |f| set(&mut f.load_balancer, "member-subnet-id", NOWHERE),
        "SubnetUnknown",
        Severity::Error,
        |_| nowhere("member-subnet-id"),
        "correct member-subnet-id 0",
    ),
    (
        internal_floating_network,
        "NetworkNotExternal",
        Severity::Error,
        |_| "floating-network-id".to_owned(),
        "set floating-network-id to an external network",
    ),
    (
        |f| f.more = format!("[Route]\nrouter-id={NOWHERE}\n"),
        "RouterUnknown",
        Severity::Error,
        |_| nowhere("router-id"),
        "correct router-id 0",
    ),
    (
        |f| f.more += "[Networking]\npublic-network-name=no-such\n",
        "NetworkNameUnknown",
        Severity::Warning,
        |_| "public-network-name no-such".to_owned(),
        "correct public-network-name no-such",
    ),
    // Quotas.
    (
        |f| {
            f.change(|s, ctx| {
                quota(s, ctx, QuotaUpdate { floatingip: Some(0), ..QuotaUpdate::default() })
            });
        },
        "QuotaUsedUp",
        Severity::Error,
        |_| "floating IPs".to_owned(),
        "raise the quota of floating IPs",
    ),
    (
        |f| {
            f.change(|s, ctx| {
                quota(
                    s,
                    ctx,
                    QuotaUpdate { security_group_rule: Some(0), ..QuotaUpdate::default() },
                )
            });
        },
        "QuotaUsedUp",
        Severity::Error,
        |_| "security group rules".to_owned(),
        "raise the quota of security group rules",
    ),
    (
        |f| f.change(no_load_balancers),
        "QuotaUsedUp",
        Severity::Error,
        |_| "load balancers".to_owned(),
        "raise the quota of load balancers",
    ),
    (
        |f| f.change(nearly_no_ports),
        "QuotaNearlyUsedUp",
        Severity::Warning,
        |_| "ports".to_owned(),
        "raise the quota of ports",
    ),
    // Other clusters.
    (
        |f| load_balancer_of(f, "kubernetes_b"),
        "ClusterNameAmbiguous",
        Severity::Warning,
        |_| "kubernetes_b".to_owned(),
        "of which kubernetes_b is no continuation",
    ),
    (
        same_name_in_another_project,
        "ClusterNameInOtherProject",
        Severity::Warning,
        |_| String::new(),
        "without the role admin",
    ),
];

pub(super) fn set(keys: &mut BTreeMap<&'static str, String>, key: &'static str, value: &str) {
    keys.insert(key, value.to_owned());
}

fn unknown_application_credential(f: &mut Fixture) {
    for key in ["username", "password", "tenant-name", "domain-id"] {
        f.global.remove(key);
    }
    set(&mut f.global, "application-credential-id", "ac-1");
    set(&mut f.global, "application-credential-secret", "wrong");
}

/// An application credential that ends in so many days. Its secret is the user's password.
fn application_credential(f: &mut Fixture, days: i64) {
    let password = f.global["password"].clone();
    unknown_application_credential(f);
    set(&mut f.global, "application-credential-secret", &password);
    f.change(move |state, ctx| {
        let user = user(state, "demo");
        let roles = state.keystone.roles.iter();
        let member = roles
            .filter(|role| role.name == "member")
            .map(|role| role.id.clone());
        let credential = ApplicationCredential {
            id: "ac-1".to_owned(),
            name: "for-ccm".to_owned(),
            description: None,
            user_id: user.id,
            project_id: ctx.project.to_string(),
            role_ids: member.collect(),
            expires_at: Some(ctx.now + jiff::SignedDuration::from_hours(24 * days)),
            unrestricted: false,
            secret: user.password.expect("it has a password"),
        };
        state.keystone.application_credentials.put(credential);
        Ok(())
    });
}

fn user(state: &CloudState, name: &str) -> User {
    let mut users = state.keystone.users.iter();
    User::clone(
        users
            .find(|user| user.name == name)
            .expect("the user is there"),
    )
}

fn expired_token(f: &mut Fixture) {
    for key in ["username", "password"] {
        f.global.remove(key);
    }
    set(&mut f.global, "token", "gAAAAA-expired");
}

fn unreachable_endpoint(f: &mut Fixture) {
    f.uses_sockets = true;
    // The port of discard, where nothing listens.
    set(&mut f.global, "auth-url", "http://127.0.0.1:9/v3");
}

fn missing_ca_file(f: &mut Fixture) {
    f.uses_sockets = true;
    set(&mut f.global, "ca-file", "/nonexistent/ca.pem");
}

fn only_reader(state: &mut CloudState, ctx: &RequestContext) {
    let user = user(state, "demo");
    let roles = state.keystone.roles.iter();
    let member = roles
        .filter(|role| role.name == "member")
        .map(|role| role.id.clone());
    for role in member.collect::<Vec<_>>() {
        let target = Target::Project(ctx.project.to_string());
        state
            .keystone
            .assignments
            .remove(&Assignment::key_of(&user.id, &role, &target));
    }
}

fn internal_floating_network(f: &mut Fixture) {
    let network = f.stage.network.clone();
    set(&mut f.load_balancer, "floating-network-id", &network);
}

fn quota(
    state: &mut CloudState,
    ctx: &RequestContext,
    update: QuotaUpdate,
) -> Result<(), ApiError> {
    neutron::quotas::update(state, ctx, &ctx.project, &update).map(drop)
}

fn no_load_balancers(state: &mut CloudState, ctx: &RequestContext) -> Result<(), ApiError> {
    let update = lb_api::QuotaUpdate {
        loadbalancer: Patch::Set(0),
        ..lb_api::QuotaUpdate::default()
    };
    octavia::quotas::update(state, ctx, &ctx.project, &update).map(drop)
}

/// Leaves one of the ports of the quota.
fn nearly_no_ports(state: &mut CloudState, ctx: &RequestContext) -> Result<(), ApiError> {
    let used = neutron::quotas::details(state, &ctx.project).port.used;
    let limit = (used + 1).max(10);
    for _ in used..limit - 1 {
        let networks = state.neutron.networks.iter();
        let network = networks
            .filter(|network| !network.external)
            .map(|n| n.id.clone())
            .next();
        let port = openstack_local::api::neutron::PortCreate {
            network_id: network.unwrap_or_default(),
            ..Default::default()
        };
        neutron::ports::create(state, ctx, port)?;
    }
    quota(state, ctx, QuotaUpdate { port: Some(limit), ..QuotaUpdate::default() })
}

/// Creates a load balancer of a cluster with this name.
pub(super) fn load_balancer_of(f: &mut Fixture, cluster: &str) {
    let create = LoadBalancerCreate {
        name: Some(format!("kube_service_{cluster}_shop_web")),
        vip_subnet_id: Some(f.subnet.clone()),
        ..LoadBalancerCreate::default()
    };
    f.change(move |state, ctx| octavia::load_balancers::create(state, ctx, create).map(drop));
}

/// The project of the cluster is that of the administrator, who also sees the one of `demo`.
fn same_name_in_another_project(f: &mut Fixture) {
    load_balancer_of(f, CLUSTER);
    let password = f
        .stage
        .cloud
        .credentials()
        .password("admin")
        .unwrap()
        .expose()
        .to_owned();
    set(&mut f.global, "username", "admin");
    set(&mut f.global, "tenant-name", "admin");
    set(&mut f.global, "password", &password);
}
