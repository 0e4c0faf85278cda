//! Attaches, creates and removes the floating IP of a load balancer.

use std::net::IpAddr;

use ccm_core::provider::{CloudError, EventType, PlannedChange};
use openstack_api::neutron::{FloatingIp, FloatingIpCreate, FloatingIpUpdate, Network};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    api::Api,
    model::DesiredLoadBalancer,
    names,
    ownership::ServiceOwnership,
    plan::floating_ip::{AddressLookup, FloatingIpAction, FloatingIpInput, is_managed, plan},
    subnets::{FloatingSubnet, NamePattern, TagPattern},
    sync_state::{AttachedFloatingIp, LoadBalancerSyncState},
};
use crate::{
    client::{ErrorClass, OpenStackError},
    lb::observed::ObservedLoadBalancer,
};

/// Maximum number of actions in one sync: look up an address, attach it, confirm it.
const MAX_ATTEMPTS: usize = 5;
/// How long the external network that was found is cached.
const NETWORK_CACHE_TTL: std::time::Duration = std::time::Duration::from_secs(600);

/// Why a floating IP is created.
const CREATE_REASON: &str = "the Service has none";

/// The external network that was found, where none is configured.
#[derive(Debug, Default)]
pub(super) struct ExternalNetworkCache(Mutex<Option<(Instant, String)>>);

/// Input for the sync of one floating IP.
pub(super) struct FloatingIpSync<'a> {
    pub(super) api: Api<'a>,
    pub(super) cluster: &'a str,
    pub(super) networks: &'a ExternalNetworkCache,
    pub(super) desired: &'a DesiredLoadBalancer,
    pub(super) ownership: &'a ServiceOwnership,
}

/// What a sync would change.
pub(super) enum FloatingIpDiff {
    /// Nothing: the Service has this address.
    InSync(IpAddr),
    Change(PlannedChange),
}

impl FloatingIpSync<'_> {
    /// Syncs the floating IP and returns the address of the Service.
    pub(super) async fn sync(
        &self,
        state: &mut LoadBalancerSyncState,
        observed: &ObservedLoadBalancer,
    ) -> Result<IpAddr, CloudError> {
        let port = port_of(observed)?;
        let mut lookup = AddressLookup::NotDone;
        let mut is_listed = state.from_listing;
        // Each round plans one action and applies it, until nothing is left to do.
        for _ in 0..MAX_ATTEMPTS {
            let action = self.plan_action(state, observed, &lookup).await?;
            // A floating IP from a shared listing is read again before anything is changed.
            if is_listed && !matches!(action, FloatingIpAction::None(_)) {
                is_listed = false;
                state.floating_ip = AttachedFloatingIp::Unknown;
                continue;
            }
            match action {
                FloatingIpAction::None(address) => return Ok(address),
                FloatingIpAction::LookUp(address) => {
                    lookup = self.find_by_address(address).await?.into();
                }
                FloatingIpAction::Delete(id) => {
                    state.floating_ip = AttachedFloatingIp::Unknown;
                    self.api
                        .delete_floating_ip(&id, "the Service is internal")
                        .await?;
                    state.floating_ip = AttachedFloatingIp::None;
                }
                FloatingIpAction::Detach(id) => {
                    state.floating_ip = AttachedFloatingIp::Unknown;
                    let body = FloatingIpUpdate::detach();
                    self.api
                        .update_floating_ip(&id, &body, "the Service is internal")
                        .await?;
                    state.floating_ip = AttachedFloatingIp::None;
                }
                FloatingIpAction::Attach(id) => {
                    state.floating_ip = AttachedFloatingIp::Unknown;
                    let body = FloatingIpUpdate::attach(port);
                    let attached = self
                        .api
                        .update_floating_ip(&id, &body, "the Service asks for its address")
                        .await?;
                    state.floating_ip = Some(attached).into();
                }
                FloatingIpAction::Create(address) => {
                    let Some(network) = self.network().await? else {
                        let note = "no floating network is configured or found: the load balancer is internal";
                        self.api
                            .op
                            .event(EventType::Warning, "LoadBalancerForcedInternal", note);
                        return vip_address(observed);
                    };
                    state.floating_ip = AttachedFloatingIp::Unknown;
                    let created = self.create(&network, port, address).await?;
                    state.floating_ip = Some(created).into();
                }
            }
        }
        Err(CloudError::transient("the floating IP changes while it is reconciled"))
    }

    /// Returns what [`sync`](Self::sync) would change.
    pub(super) async fn diff(
        &self,
        state: &mut LoadBalancerSyncState,
        observed: &ObservedLoadBalancer,
    ) -> Result<FloatingIpDiff, CloudError> {
        let change = match self
            .plan_action(state, observed, &AddressLookup::NotDone)
            .await?
        {
            FloatingIpAction::None(address) => return Ok(FloatingIpDiff::InSync(address)),
            FloatingIpAction::Delete(id) => {
                planned("floating_ip_delete", &id, "the Service is internal")
            }
            FloatingIpAction::Detach(id) => {
                planned("floating_ip_update", &id, "the Service is internal")
            }
            FloatingIpAction::Attach(id) => {
                planned("floating_ip_update", &id, "the Service asks for its address")
            }
            FloatingIpAction::LookUp(address) => {
                planned("floating_ip_create", &address.to_string(), "the Service asks for it")
            }
            FloatingIpAction::Create(_) => {
                if self.network().await?.is_none() {
                    return Ok(FloatingIpDiff::InSync(vip_address(observed)?));
                }
                planned("floating_ip_create", &observed.load_balancer.name, CREATE_REASON)
            }
        };
        Ok(FloatingIpDiff::Change(change))
    }

    async fn plan_action(
        &self,
        state: &mut LoadBalancerSyncState,
        observed: &ObservedLoadBalancer,
        lookup: &AddressLookup,
    ) -> Result<FloatingIpAction, CloudError> {
        let vip = vip_address(observed)?;
        if matches!(state.floating_ip, AttachedFloatingIp::Unknown) && vip.is_ipv4() {
            let listed = self
                .api
                .floating_ips(&[("port_id", port_of(observed)?)])
                .await?;
            state.floating_ip = listed.into_iter().next().into();
        }
        plan(&FloatingIpInput {
            internal: self.desired.internal,
            owner: self.ownership.owner,
            keep: self.desired.floating_ip.keep,
            vip,
            requested: self.desired.floating_ip.address,
            current: state.floating_ip.get(),
            lookup,
        })
    }

    async fn find_by_address(&self, address: IpAddr) -> Result<Option<FloatingIp>, OpenStackError> {
        let listed = self
            .api
            .floating_ips(&[("floating_ip_address", &address.to_string())])
            .await?;
        Ok(listed
            .into_iter()
            .find(|found| found.floating_ip_address == Some(address)))
    }

    /// Returns the network that the floating IP comes from: the configured one, or else one that is
    /// found.
    async fn network(&self) -> Result<Option<String>, CloudError> {
        if let Some(configured) = &self.desired.floating_ip.network {
            return Ok(Some(configured.to_string()));
        }
        let cached = self.networks.0.lock().clone();
        if let Some((found_at, network)) = cached
            && found_at.elapsed() < NETWORK_CACHE_TTL
        {
            return Ok(Some(network));
        }
        for network in self.api.networks(&[("router:external", "true")]).await? {
            if network.external && !network.subnets.is_empty() && self.serves_ipv4(&network).await?
            {
                *self.networks.0.lock() = Some((Instant::now(), network.id.clone()));
                return Ok(Some(network.id));
            }
        }
        Ok(None)
    }

    /// Returns whether a network has an IPv4 subnet, or one that this project cannot see.
    async fn serves_ipv4(&self, network: &Network) -> Result<bool, OpenStackError> {
        let visible = self.api.subnets(&[("network_id", &network.id)]).await?;
        Ok(network.subnets.iter().any(|id| {
            let subnet = visible.iter().find(|subnet| subnet.id == *id);
            subnet.is_none_or(|subnet| subnet.ip_version == 4)
        }))
    }

    async fn create(
        &self,
        network: &str,
        port: &str,
        address: Option<IpAddr>,
    ) -> Result<FloatingIp, CloudError> {
        let owner = &self.desired.owner;
        let body = FloatingIpCreate {
            floating_network_id: network.into(),
            port_id: Some(port.into()),
            floating_ip_address: address,
            description: Some(
                names::floating_ip_description(self.cluster, &owner.namespace, &owner.name).into(),
            ),
            ..FloatingIpCreate::default()
        };
        match &self.desired.floating_ip.subnet {
            FloatingSubnet::Id(id) => {
                let subnet = self.api.subnet(id).await?;
                if subnet.is_none_or(|subnet| subnet.network_id != network) {
                    let message =
                        format!("floating subnet {id} is not one of floating network {network}");
                    return Err(CloudError::invalid_input(message));
                }
                let body = FloatingIpCreate { subnet_id: Some(id.to_string()), ..body };
                Ok(self.api.create_floating_ip(&body, CREATE_REASON).await?)
            }
            FloatingSubnet::Matching { name, tags } if address.is_none() => {
                self.create_in_matching_subnet(network, name, tags, body)
                    .await
            }
            // Neutron chooses a subnet.
            _ => Ok(self.api.create_floating_ip(&body, CREATE_REASON).await?),
        }
    }

    /// Creates a floating IP in the first matching subnet that has an address left.
    async fn create_in_matching_subnet(
        &self,
        network: &str,
        name: &str,
        tags: &str,
        body: FloatingIpCreate,
    ) -> Result<FloatingIp, CloudError> {
        let mut last_error = CloudError::invalid_input(format!(
            "no subnet of floating network {network} matches {name:?} with tags {tags:?}"
        ));
        for subnet_id in self.matching_subnets(network, name, tags).await? {
            let body = FloatingIpCreate { subnet_id: Some(subnet_id), ..body.clone() };
            match self.api.create_floating_ip(&body, CREATE_REASON).await {
                Ok(created) => return Ok(created),
                Err(error) if is_subnet_unusable(&error) => last_error = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(last_error)
    }

    /// Returns the IDs of the subnets that a name pattern and tags match.
    async fn matching_subnets(
        &self,
        network: &str,
        name: &str,
        tags: &str,
    ) -> Result<Vec<String>, CloudError> {
        let name = NamePattern::parse(name).map_err(CloudError::invalid_input)?;
        let tags = TagPattern::parse(tags);
        let tag_filter = tags.query();
        let mut query = vec![("network_id", network)];
        if let Some((key, value)) = &tag_filter {
            query.push((key, value));
        }
        let subnets = self.api.subnets(&query).await?;
        Ok(subnets
            .into_iter()
            .filter(|subnet| name.matches(&subnet.name) && tags.matches(&subnet.standard.tags))
            .map(|subnet| subnet.id)
            .collect())
    }
}

/// Returns whether another subnet may still have an address.
fn is_subnet_unusable(error: &OpenStackError) -> bool {
    matches!(error.class(), ErrorClass::Quota | ErrorClass::Conflict | ErrorClass::Invalid)
}

fn planned(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: object.into(),
        reason: reason.into(),
    }
}

/// Deletes the floating IP of a load balancer that is about to be deleted, if it was created for a
/// Service.
pub(super) async fn release(api: Api<'_>, port: &str) -> Result<(), OpenStackError> {
    for floating_ip in api.floating_ips(&[("port_id", port)]).await? {
        if is_managed(&floating_ip) {
            api.delete_floating_ip(&floating_ip.id, "its Service is deleted")
                .await?;
        }
    }
    Ok(())
}

/// Deletes the floating IP that was created for a Service whose load balancer is deleted already.
pub(super) async fn release_leftover(
    api: Api<'_>,
    description: &str,
) -> Result<(), OpenStackError> {
    for floating_ip in api.floating_ips(&[("description", description)]).await? {
        if floating_ip.standard.description == description && floating_ip.port_id.is_none() {
            api.delete_floating_ip(&floating_ip.id, "its Service and load balancer are deleted")
                .await?;
        }
    }
    Ok(())
}

fn port_of(observed: &ObservedLoadBalancer) -> Result<&str, CloudError> {
    let port = observed.load_balancer.vip_port_id.as_deref();
    port.ok_or_else(|| {
        CloudError::transient(format!(
            "load balancer {} has no port yet",
            observed.load_balancer.id
        ))
    })
}

/// Returns the address of the VIP.
pub(super) fn vip_address(observed: &ObservedLoadBalancer) -> Result<IpAddr, CloudError> {
    let vip = observed
        .load_balancer
        .vip_address
        .as_deref()
        .and_then(|text| text.parse().ok());
    vip.ok_or_else(|| {
        CloudError::transient(format!(
            "load balancer {} has no address yet",
            observed.load_balancer.id
        ))
    })
}
