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
    plan::floating_ip::{FloatingIpAction, FloatingIpInput, is_managed, plan},
    subnets::{FloatingSubnet, NamePattern, TagPattern},
    sync_state::{AttachedFloatingIp, LoadBalancerSyncState},
};
use crate::{
    client::{ErrorClass, OpenStackError},
    lb::observed::ObservedLoadBalancer,
};

/// Maximum number of decisions in one sync: look up an address, attach it, confirm it.
const MAX_ATTEMPTS: usize = 5;
/// How long the external network that was found is cached.
const NETWORK_CACHE_TTL: std::time::Duration = std::time::Duration::from_secs(600);

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

impl FloatingIpSync<'_> {
    /// Syncs the floating IP and returns the address of the Service.
    pub(super) async fn sync(
        &self,
        state: &mut LoadBalancerSyncState,
        observed: &ObservedLoadBalancer,
    ) -> Result<IpAddr, CloudError> {
        let port = port_of(observed)?;
        let mut found: Option<Option<FloatingIp>> = None;
        let mut looked = !state.from_listing;
        for _ in 0..MAX_ATTEMPTS {
            let decision = self.decide(state, observed, found.as_ref()).await?;
            // A floating IP from a shared listing is read again before anything is changed.
            if !looked && !matches!(decision, FloatingIpAction::None(_)) {
                looked = true;
                state.floating_ip = AttachedFloatingIp::Unknown;
                continue;
            }
            let why = "the Service";
            // Then apply the decision and decide again, until nothing is left to do.
            match decision {
                FloatingIpAction::None(address) => return Ok(address),
                FloatingIpAction::LookUp(address) => {
                    found = Some(self.find_by_address(address).await?);
                }
                FloatingIpAction::Delete(id) => {
                    state.floating_ip = AttachedFloatingIp::Unknown;
                    self.api
                        .delete_floating_ip(&id, &format!("{why} is internal"))
                        .await?;
                    state.floating_ip = AttachedFloatingIp::None;
                }
                FloatingIpAction::Detach(id) => {
                    state.floating_ip = AttachedFloatingIp::Unknown;
                    let body = FloatingIpUpdate::detach();
                    self.api
                        .update_floating_ip(&id, &body, &format!("{why} is internal"))
                        .await?;
                    state.floating_ip = AttachedFloatingIp::None;
                }
                FloatingIpAction::Attach(id) => {
                    state.floating_ip = AttachedFloatingIp::Unknown;
                    let body = FloatingIpUpdate::attach(port);
                    let why = format!("{why} asks for its address");
                    state.floating_ip =
                        Some(self.api.update_floating_ip(&id, &body, &why).await?).into();
                }
                FloatingIpAction::Create(address) => match self.network().await? {
                    Some(network) => {
                        state.floating_ip = AttachedFloatingIp::Unknown;
                        state.floating_ip =
                            Some(self.create(&network, port, address).await?).into();
                    }
                    None => {
                        let note = "no floating network is configured or found: the load balancer is internal";
                        self.api
                            .op
                            .event(EventType::Warning, "LoadBalancerForcedInternal", note);
                        return vip_address(observed);
                    }
                },
            }
        }
        Err(CloudError::transient("the floating IP changes while it is brought in line"))
    }

    /// Returns what [`sync`](Self::sync) would change, and the address if nothing would.
    pub(super) async fn diff(
        &self,
        state: &mut LoadBalancerSyncState,
        observed: &ObservedLoadBalancer,
    ) -> Result<(Option<IpAddr>, Vec<PlannedChange>), CloudError> {
        let planned = |operation: &str, object: &str, reason: &str| PlannedChange {
            operation: operation.into(),
            object: object.into(),
            reason: reason.into(),
        };
        let internal = "the Service is internal";
        Ok(match self.decide(state, observed, None).await? {
            FloatingIpAction::None(address) => (Some(address), Vec::new()),
            FloatingIpAction::Delete(id) => {
                (None, vec![planned("floating_ip_delete", &id, internal)])
            }
            FloatingIpAction::Detach(id) => {
                (None, vec![planned("floating_ip_update", &id, internal)])
            }
            FloatingIpAction::Attach(id) => {
                (None, vec![planned("floating_ip_update", &id, "the Service asks for its address")])
            }
            FloatingIpAction::LookUp(address) => (
                None,
                vec![planned(
                    "floating_ip_create",
                    &address.to_string(),
                    "the Service asks for it",
                )],
            ),
            FloatingIpAction::Create(_) if self.network().await?.is_none() => {
                (Some(vip_address(observed)?), Vec::new())
            }
            FloatingIpAction::Create(_) => (
                None,
                vec![planned(
                    "floating_ip_create",
                    &observed.load_balancer.name,
                    "the Service has none",
                )],
            ),
        })
    }

    async fn decide(
        &self,
        state: &mut LoadBalancerSyncState,
        observed: &ObservedLoadBalancer,
        found: Option<&Option<FloatingIp>>,
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
            found: found.map(Option::as_ref),
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
        if let Some(named) = &self.desired.floating_ip.network {
            return Ok(Some(named.to_string()));
        }
        let last = self.networks.0.lock().clone();
        if let Some((_, network)) = last.filter(|(at, _)| at.elapsed() < NETWORK_CACHE_TTL) {
            return Ok(Some(network));
        }
        let listed = self.api.networks(&[("router:external", "true")]).await?;
        for network in listed
            .into_iter()
            .filter(|network| network.external && !network.subnets.is_empty())
        {
            if self.serves_ipv4(&network).await? {
                *self.networks.0.lock() = Some((Instant::now(), network.id.clone()));
                return Ok(Some(network.id));
            }
        }
        Ok(None)
    }

    /// Returns whether a network has an IPv4 subnet, or one that this project cannot see.
    async fn serves_ipv4(&self, network: &Network) -> Result<bool, OpenStackError> {
        let visible = self.api.subnets(&[("network_id", &network.id)]).await?;
        let suits = |id: &String| {
            visible
                .iter()
                .find(|subnet| subnet.id == *id)
                .is_none_or(|subnet| subnet.ip_version == 4)
        };
        Ok(network.subnets.iter().any(suits))
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
        let why = "the Service has none";
        // Then choose the subnet: a given one, the matching ones in turn, or whichever Neutron
        // takes.
        match &self.desired.floating_ip.subnet {
            FloatingSubnet::Id(id) => {
                let subnet = self.api.subnet(id).await?;
                if subnet.is_none_or(|subnet| subnet.network_id != network) {
                    let message =
                        format!("floating subnet {id} is not one of floating network {network}");
                    return Err(CloudError::invalid_input(message));
                }
                let body = FloatingIpCreate { subnet_id: Some(id.to_string()), ..body };
                Ok(self.api.create_floating_ip(&body, why).await?)
            }
            FloatingSubnet::Matching { name, tags } if address.is_none() => {
                let candidates = self.matching(network, name, tags).await?;
                let mut last = None;
                for subnet_id in candidates {
                    let body = FloatingIpCreate { subnet_id: Some(subnet_id), ..body.clone() };
                    match self.api.create_floating_ip(&body, why).await {
                        Ok(made) => return Ok(made),
                        // This subnet has no address left; another one may.
                        Err(error)
                            if matches!(
                                error.class(),
                                ErrorClass::Quota | ErrorClass::Conflict | ErrorClass::Invalid
                            ) =>
                        {
                            last = Some(error);
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(last.map_or_else(
                    || {
                        CloudError::invalid_input(format!(
                            "no subnet of floating network {network} matches {name:?} with tags {tags:?}"
                        ))
                    },
                    CloudError::from,
                ))
            }
            _ => Ok(self.api.create_floating_ip(&body, why).await?),
        }
    }

    async fn matching(
        &self,
        network: &str,
        name: &str,
        tags: &str,
    ) -> Result<Vec<String>, CloudError> {
        let pattern = NamePattern::parse(name).map_err(CloudError::invalid_input)?;
        let tags = TagPattern::parse(tags);
        let by_tags = tags.query();
        let mut query = vec![("network_id", network)];
        query.extend(by_tags.as_ref().map(|(key, value)| (*key, &**value)));
        let listed = self.api.subnets(&query).await?;
        let fits = listed
            .into_iter()
            .filter(|subnet| pattern.matches(&subnet.name) && tags.matches(&subnet.standard.tags));
        Ok(fits.map(|subnet| subnet.id).collect())
    }
}

/// Deletes the floating IP of a load balancer that is about to be deleted, if it was created for a
/// Service.
pub(super) async fn release(api: Api<'_>, port: &str) -> Result<(), OpenStackError> {
    for floating in api
        .floating_ips(&[("port_id", port)])
        .await?
        .iter()
        .filter(|floating| is_managed(floating))
    {
        api.delete_floating_ip(&floating.id, "its Service is gone")
            .await?;
    }
    Ok(())
}

/// Deletes the floating IP that was created for a Service whose load balancer is deleted already.
pub(super) async fn release_leftover(
    api: Api<'_>,
    description: &str,
) -> Result<(), OpenStackError> {
    let listed = api.floating_ips(&[("description", description)]).await?;
    let left = listed.iter().filter(|floating| {
        floating.standard.description == description && floating.port_id.is_none()
    });
    for floating in left {
        api.delete_floating_ip(&floating.id, "its Service and load balancer are gone")
            .await?;
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
