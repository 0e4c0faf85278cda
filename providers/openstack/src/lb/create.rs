//! Creates a load balancer.

use std::{collections::BTreeSet, net::IpAddr};

use ccm_core::{
    k8s::IpFamily,
    provider::{CloudError, Op},
};

use super::{
    api::Api,
    body::{self, VipSubnets},
    model::DesiredLoadBalancer,
    observed::ObservedLoadBalancer,
    plan,
    reconcile::{LoadBalancerReconciler, ReconcileStop},
    reconcile_input::ReconcileInput,
    sync_state::{AttachedFloatingIp, LoadBalancerSyncState},
};
use crate::api::neutron::Subnet;

impl LoadBalancerReconciler {
    /// Creates the load balancer. It has its name and its tag from the start, so the next sync
    /// finds it even if this one is interrupted.
    pub(super) async fn create_load_balancer(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let desired = input.desired;
        if input.backends.is_empty() && !has_requested_location(desired) {
            let message = "no node has an address, and neither subnet nor network of the load balancer is configured";
            return Err(CloudError::invalid_input(message).into());
        }
        self.check_certificates(api, desired).await?;
        let (first_subnet, second_subnet) = Self::find_vip_subnets(api, input).await?;
        let mut families = BTreeSet::from([desired.family.unwrap_or(IpFamily::V4)]);
        if second_subnet.is_some() {
            families.extend(
                desired
                    .create_settings
                    .second_vip
                    .as_ref()
                    .map(|vip| vip.family),
            );
        }
        let desired = &*plan::for_address_families(desired, &families);
        let body = body::load_balancer(
            desired,
            &input.members(),
            VipSubnets {
                first: first_subnet.as_deref(),
                second: second_subnet.as_deref(),
            },
            self.features,
            self.settings.serial_api_calls,
        );
        state.unfinished = true;
        let tree = api
            .create_load_balancer(&body, "there is none")
            .await
            .map_err(|error| self.rejection(op, error))?;
        state.created_id = Some(tree.load_balancer.id.as_str().into());
        // Some drivers create the children later. Then they are read when they are needed.
        let has_all_listeners = tree.listeners.len() == body.listeners.len();
        state.children_known = body.listeners.is_empty() || has_all_listeners;
        state.observed = Some(ObservedLoadBalancer::from_tree(tree));
        state.record_own_change(self.sync_states.rounds.now());
        // A new port cannot have a floating IP, so there is nothing to read.
        if desired.create_settings.port.is_none() {
            state.floating_ip = AttachedFloatingIp::None;
        }
        Ok(())
    }

    /// Finds the subnets of the first and the second VIP. The first is `None` if it is configured, or if
    /// Octavia chooses it.
    ///
    /// The second one is the Service's own, or the only one of its address family in the network of the
    /// first VIP. It is `None` if no second VIP is desired, if there is not exactly one such subnet, or
    /// if the first VIP is in it, because Octavia allows one address in each subnet.
    async fn find_vip_subnets(
        api: Api<'_>,
        input: &ReconcileInput<'_>,
    ) -> Result<(Option<Box<str>>, Option<Box<str>>), ReconcileStop> {
        let desired = input.desired;
        // Without a configured subnet or network, the VIP is put into the subnet of the nodes.
        let first = if has_requested_location(desired) {
            None
        } else {
            Some(Self::find_node_subnet(api, input).await?.into())
        };
        let Some(second) = &desired.create_settings.second_vip else {
            return Ok((first, None));
        };
        // First, find out where the first VIP will be. A Service with a port of its own has no second.
        let Some(mut location) = VipLocation::find(api, desired, first.as_deref()).await? else {
            return Ok((first, second.subnet.clone()));
        };
        // Octavia prefers IPv4 in a network, also for a Service whose first family is IPv6.
        let mut pinned = None;
        if location.subnet.is_none() && location.address.is_none() {
            pinned = location.only_subnet(desired.family.unwrap_or(IpFamily::V4));
            location.subnet.clone_from(&pinned);
        }
        // Then choose another subnet.
        let chosen = match &second.subnet {
            Some(named) => Some(named.clone()),
            None => location.only_subnet(second.family),
        };
        match chosen.filter(|chosen| !location.is_in(chosen)) {
            Some(chosen) => Ok((first.or(pinned), Some(chosen))),
            None => Ok((first, None)),
        }
    }

    /// Checks that the listeners' certificate exists, before a listener refers to it. Only Barbican
    /// can be queried.
    pub(super) async fn check_certificates(
        &self,
        api: Api<'_>,
        desired: &DesiredLoadBalancer,
    ) -> Result<(), ReconcileStop> {
        let Some(reference) = desired
            .listeners
            .iter()
            .find_map(|listener| listener.tls_container.as_deref())
        else {
            return Ok(());
        };
        if !self.settings.barbican || api.has_certificate(reference).await? {
            return Ok(());
        }
        Err(CloudError::invalid_input(format!("certificate {reference} does not exist")).into())
    }

    /// Finds the subnet of the first node that names its server: the subnet with the address that
    /// the load balancer will send to.
    async fn find_node_subnet(
        api: Api<'_>,
        input: &ReconcileInput<'_>,
    ) -> Result<String, ReconcileStop> {
        let Some((server, address)) = input
            .backends
            .iter()
            .find_map(|backend| Some((backend.server.as_deref()?, backend.address)))
        else {
            let message = "no node has an OpenStack provider ID, and neither subnet nor network is configured";
            return Err(CloudError::transient(message).into());
        };
        for port in api.ports_of(&[server]).await? {
            for fixed_ip in port.fixed_ips {
                if fixed_ip.ip_address == address {
                    return Ok(fixed_ip.subnet_id);
                }
            }
        }
        let message = format!("no port of server {server} has the address {address}");
        Err(CloudError::transient(message).into())
    }
}

/// Location of the first VIP.
struct VipLocation {
    /// Subnet, or `None` if Octavia chooses one of the network.
    subnet: Option<Box<str>>,
    /// Address that the Service requests for the VIP.
    address: Option<IpAddr>,
    /// Subnets of the network that this project sees.
    network_subnets: Vec<Subnet>,
}

impl VipLocation {
    /// Finds the location. Returns `None` if it is not known. `subnet` is the one that was found if
    /// none is configured.
    async fn find(
        api: Api<'_>,
        desired: &DesiredLoadBalancer,
        subnet: Option<&str>,
    ) -> Result<Option<Self>, ReconcileStop> {
        let create_settings = &desired.create_settings;
        let subnet = create_settings.subnet.as_deref().or(subnet);
        let mut network = create_settings.network.clone();
        if network.is_none()
            && let Some(id) = subnet
            && let Some(found) = api.subnet(id).await?
        {
            network = Some(found.network_id.into());
        }
        let Some(network) = network else {
            return Ok(None);
        };
        let network_subnets = api.subnets(&[("network_id", &*network)]).await?;
        Ok(Some(Self {
            subnet: subnet.map(Into::into),
            address: create_settings.address,
            network_subnets,
        }))
    }

    /// Returns the subnet of an address family, if there is exactly one.
    fn only_subnet(&self, family: IpFamily) -> Option<Box<str>> {
        let mut of_family = self
            .network_subnets
            .iter()
            .filter(|subnet| subnet.ip_version == version(family));
        match (of_family.next(), of_family.next()) {
            (Some(only), None) => Some(only.id.as_str().into()),
            _ => None,
        }
    }

    /// Returns true if the VIP is in a subnet, or may be because Octavia chooses. Then it is in one of
    /// the address's family, or in an IPv4 subnet if there is one.
    fn is_in(&self, id: &str) -> bool {
        if let Some(subnet) = &self.subnet {
            return **subnet == *id;
        }
        let subnets = self.network_subnets.iter();
        let has_ipv4 = subnets.clone().any(|subnet| subnet.ip_version == 4);
        let is_ipv4 = self.address.map_or(has_ipv4, |address| address.is_ipv4());
        subnets
            .filter(|subnet| (subnet.ip_version == 4) == is_ipv4)
            .any(|subnet| subnet.id == id)
    }
}

fn version(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 6,
    }
}

/// Returns true if the Service or the configuration names the port, subnet or network of the VIP.
fn has_requested_location(desired: &DesiredLoadBalancer) -> bool {
    let create_settings = &desired.create_settings;
    create_settings.port.is_some()
        || create_settings.subnet.is_some()
        || create_settings.network.is_some()
}
