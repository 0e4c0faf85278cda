//! Load balancers of the cloud as the kit sees them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{IpFamily, Protocol, ServiceView},
    provider::CloudProvider,
};
use ccm_testkit::conformance::{AllowedSources, CloudLoadBalancer, LoadBalancerCloud};
use openstack_local::api::octavia::{Listener, LoadBalancer, Member};
use openstack_local::{octavia, state::CloudState};
use serde::Serialize;
use serde_json::Value;

use super::{OpenStackAdapter, THEIRS};

/// What begins the names of annotations.
const PREFIX: &str = "loadbalancer.openstack.org/";
/// What time and members alone bring about.
const PASSING: [&str; 7] = [
    "provisioning_status",
    "operating_status",
    "status",
    "created_at",
    "updated_at",
    "revision_number",
    "members",
];

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter()
        .map(|(suffix, value)| (format!("{PREFIX}{suffix}"), (*value).to_owned()))
        .collect()
}

#[async_trait]
impl LoadBalancerCloud for OpenStackAdapter {
    async fn load_balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>> {
        let mut names = self.names();
        names.extend(self.six().await?);
        let shown = |state: &CloudState| {
            let balancers = state.octavia.load_balancers.iter().map(|row| &row.body);
            balancers
                .map(|balancer| View::of(state, balancer).show(state, &names))
                .collect()
        };
        self.site().read_state(shown).await
    }

    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        self.site().read_state(objects).await
    }

    /// The configured subnet has IPv4 addresses, so a Service with IPv6 alone names another one.
    fn wish(&self, mut service: ServiceView) -> ServiceView {
        if *service.ip_families == [IpFamily::V6] {
            let place = self.place();
            let subnet = place.ipv6_subnet.as_str();
            for (key, value) in pairs(&[("subnet-id", subnet), ("member-subnet-id", subnet)]) {
                service
                    .annotations
                    .insert(key.as_str().into(), value.as_str().into());
            }
        }
        service
    }

    async fn serves_both_families(&self, balancer: &CloudLoadBalancer) -> anyhow::Result<bool> {
        Ok(balancer.addresses.iter().any(|a| a.contains(':'))
            && balancer.addresses.iter().any(|a| a.contains('.')))
    }

    fn settings(&self) -> Vec<(String, String)> {
        let mut settings = pairs(&[
            ("connection-limit", "100"),
            ("timeout-client-data", "60000"),
            ("lb-method", "LEAST_CONNECTIONS"),
            ("enable-health-monitor", "true"),
            ("proxy-protocol", "true"),
            ("x-forwarded-for", "true"),
        ]);
        settings.push((
            "service.beta.kubernetes.io/openstack-internal-load-balancer".to_owned(),
            "true".to_owned(),
        ));
        settings
    }

    /// What upstream does not understand it leaves out, and so do we, with a remark. These are
    /// refused.
    fn bad_annotations(&self) -> Vec<(String, String)> {
        pairs(&[
            ("class", "unknown"),
            ("timeout-client-data", "-7"),
            ("health-monitor-max-retries", "77"),
            ("connection-limit", "-3"),
            ("floating-subnet", "~("),
        ])
    }

    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        self.provider(THEIRS).await.map(Some)
    }

    /// Closes a port.
    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        let site = self.site();
        let damaged = site.change(|state, ctx| {
            let listeners = state.octavia.listeners.iter();
            let found = listeners
                .map(|row| &row.body)
                .find(|listener| listener.loadbalancers.iter().any(|lb| lb.id == id));
            let found = found.map(|listener| listener.id.clone());
            found
                .map(|listener| octavia::listeners::delete(state, ctx, &listener))
                .transpose()
        });
        Ok(damaged.await?.is_some())
    }

    async fn activate_after(&self, time: Duration) -> anyhow::Result<bool> {
        self.site()
            .change(|state, _| {
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                octavia::settings::Settings::change(state, |settings| settings.pending_ms = ms);
                Ok(())
            })
            .await?;
        Ok(true)
    }

    fn free_address(&self) -> Option<String> {
        Some(self.place().free)
    }
}

/// A load balancer with what belongs to it.
struct View<'a> {
    balancer: &'a LoadBalancer,
    listeners: Vec<&'a Listener>,
}

impl<'a> View<'a> {
    fn of(state: &'a CloudState, balancer: &'a LoadBalancer) -> Self {
        let all = state.octavia.listeners.iter().map(|row| &row.body);
        let own =
            all.filter(|listener| listener.loadbalancers.iter().any(|lb| lb.id == balancer.id));
        Self { balancer, listeners: own.collect() }
    }

    fn show(&self, state: &CloudState, names: &BTreeMap<String, String>) -> CloudLoadBalancer {
        CloudLoadBalancer {
            id: self.balancer.id.clone(),
            ports: self
                .listeners
                .iter()
                .map(|listener| (protocol(listener), listener.protocol_port))
                .collect(),
            members: self.members(state, names),
            clients: self.clients(),
            addresses: self.addresses(state),
        }
    }

    /// Returns the nodes that get traffic. One that does not get that of every port is not shown as
    /// one that does.
    fn members(&self, state: &CloudState, names: &BTreeMap<String, String>) -> BTreeSet<String> {
        let mut ports: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
        for listener in &self.listeners {
            for member in members(state, listener) {
                let node = names
                    .get(&member.address)
                    .cloned()
                    .unwrap_or_else(|| member.address.clone());
                ports
                    .entry(node)
                    .or_default()
                    .insert(listener.protocol_port);
            }
        }
        let all: BTreeSet<_> = self
            .listeners
            .iter()
            .map(|listener| listener.protocol_port)
            .collect();
        let shown = |(node, at): (String, BTreeSet<u16>)| {
            if at == all {
                node
            } else {
                format!("{node} at {at:?}")
            }
        };
        ports.into_iter().map(shown).collect()
    }

    fn clients(&self) -> AllowedSources {
        let mut networks = BTreeSet::new();
        for listener in &self.listeners {
            match listener.allowed_cidrs.as_deref() {
                None | Some([]) => return AllowedSources::Everybody,
                Some(some) => networks.extend(
                    some.iter()
                        .filter_map(|network| network.parse::<ipnet::IpNet>().ok()),
                ),
            }
        }
        AllowedSources::Only(networks)
    }

    fn addresses(&self, state: &CloudState) -> BTreeSet<String> {
        let port = self.balancer.vip_port_id.as_deref();
        let floating = state
            .neutron
            .floating_ips
            .iter()
            .filter(|ip| ip.port_id.is_some() && ip.port_id.as_deref() == port);
        let floating = floating
            .filter_map(|ip| ip.floating_ip_address)
            .map(|ip| ip.to_string());
        let additional = self.balancer.additional_vips.iter();
        let additional = additional.filter_map(|vip| vip.ip_address.clone());
        floating
            .chain(self.balancer.vip_address.clone())
            .chain(additional)
            .collect()
    }
}

fn protocol(listener: &Listener) -> Protocol {
    match listener.protocol.to_string().as_str() {
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

/// Returns where a listener's connections go.
pub(crate) fn members<'a>(
    state: &'a CloudState,
    listener: &'a Listener,
) -> impl Iterator<Item = &'a Member> {
    let pool = listener.default_pool_id.as_deref();
    let rows = state
        .octavia
        .members
        .iter()
        .filter(move |row| Some(&*row.pool) == pool);
    rows.map(|row| &row.body)
}

/// Lists everything that load balancers are made of.
fn objects(state: &CloudState) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut add = |kind: &str, id: &str, row: &dyn Fn() -> Value| {
        drop(all.insert(name(kind, id), still(row())));
    };
    let (octavia, neutron) = (&state.octavia, &state.neutron);
    octavia
        .load_balancers
        .iter()
        .for_each(|row| add("", &row.body.id, &|| value(&row.body)));
    octavia
        .listeners
        .iter()
        .for_each(|row| add("listener", &row.body.id, &|| value(&row.body)));
    octavia
        .pools
        .iter()
        .for_each(|row| add("pool", &row.body.id, &|| value(&row.body)));
    octavia
        .monitors
        .iter()
        .for_each(|row| add("monitor", &row.body.id, &|| value(&row.body)));
    neutron
        .floating_ips
        .iter()
        .for_each(|row| add("floating IP", &row.id, &|| value(&**row)));
    neutron
        .security_groups
        .iter()
        .for_each(|row| add("group", &row.id, &|| value(&**row)));
    neutron
        .security_group_rules
        .iter()
        .for_each(|row| add("rule", &row.id, &|| value(&**row)));
    let vips = neutron
        .ports
        .iter()
        .filter(|port| !port.device_owner.starts_with("compute:"));
    vips.for_each(|row| add("port", &row.id, &|| value(&**row)));
    all
}

/// Names a thing; load balancers by their IDs alone.
fn name(kind: &str, id: &str) -> String {
    if kind.is_empty() {
        id.to_owned()
    } else {
        format!("{kind} {id}")
    }
}

fn value(row: &impl Serialize) -> Value {
    serde_json::to_value(row).unwrap_or_default()
}

/// Writes down what does not pass by itself.
fn still(mut value: Value) -> String {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| !PASSING.contains(&name.as_str()));
    }
    value.to_string()
}
