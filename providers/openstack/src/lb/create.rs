//! Creates a load balancer.

use std::collections::BTreeSet;

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
        // Without a configured subnet or network, the VIP is put into the subnet of the nodes.
        let subnet = if has_requested_location(desired) {
            None
        } else {
            Some(Self::find_node_subnet(api, input).await?)
        };
        let second_subnet = Self::find_second_subnet(api, desired, subnet.as_deref()).await?;
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
            VipSubnets { first: subnet.as_deref(), second: second_subnet.as_deref() },
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

    /// Finds the subnet of the second VIP: the Service's own, or the only one of the address family in
    /// the network of the first VIP. Returns `None` if no second VIP is desired, or if there is not
    /// exactly one such subnet. `subnet` is that of the first VIP if none is configured.
    async fn find_second_subnet(
        api: Api<'_>,
        desired: &DesiredLoadBalancer,
        subnet: Option<&str>,
    ) -> Result<Option<Box<str>>, ReconcileStop> {
        let create_settings = &desired.create_settings;
        let Some(second) = &create_settings.second_vip else {
            return Ok(None);
        };
        if let Some(named) = &second.subnet {
            return Ok(Some(named.clone()));
        }
        // First, find the network of the first VIP.
        let mut network = create_settings.network.clone();
        if let Some(id) = create_settings.subnet.as_deref().or(subnet)
            && network.is_none()
            && let Some(found) = api.subnet(id).await?
        {
            network = Some(found.network_id.into());
        }
        let Some(network) = network else {
            return Ok(None);
        };
        // Then look for its subnets of the other family.
        let version = match second.family {
            IpFamily::V4 => "4",
            IpFamily::V6 => "6",
        };
        let query = [("network_id", &*network), ("ip_version", version)];
        let found = api.subnets(&query).await?;
        Ok(match &found[..] {
            [only] => Some(only.id.as_str().into()),
            _ => None,
        })
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

/// Returns true if the Service or the configuration names the port, subnet or network of the VIP.
fn has_requested_location(desired: &DesiredLoadBalancer) -> bool {
    let create_settings = &desired.create_settings;
    create_settings.port.is_some()
        || create_settings.subnet.is_some()
        || create_settings.network.is_some()
}
