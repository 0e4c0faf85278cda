//! Attaches, creates and removes the floating IP of a load balancer.

use std::{net::IpAddr, time::Duration};

use ccm_core::provider::{CloudError, EventType, PlannedChange, SharedRead};
use openstack_api::neutron::{FloatingIpCreate, FloatingIpUpdate};

use super::{
    api::Api,
    model::DesiredLoadBalancer,
    names,
    ownership::ServiceOwnership,
    plan::floating_ip::{
        AddressLookup, FloatingIpAction, FloatingIpInput, is_managed, plan_floating_ip,
    },
    subnets::{FloatingSubnet, NamePattern, TagPattern},
    sync_state::AttachedFloatingIp,
};
use crate::{
    api::neutron::{FloatingIp, Network},
    client::{ErrorClass, OpenStackError},
    lb::observed::ObservedLoadBalancer,
};

/// Maximum number of plans in one sync. The longest sequence reads the floating IP again, looks up
/// an address, attaches it and confirms that.
const MAX_ATTEMPTS: usize = 5;
/// Maximum age of the external network that was found.
const MAX_NETWORK_AGE: Duration = Duration::from_secs(600);

/// Reason for the creation of a floating IP, for logs and dry runs.
const CREATE_REASON: &str = "the Service has none";

/// The ID of the external network that was found, for clouds where none is configured.
pub(super) type ExternalNetwork = SharedRead<Option<Box<str>>>;

/// Syncs the floating IP of one load balancer.
pub(super) struct FloatingIpSync<'a> {
    pub(super) api: Api<'a>,
    pub(super) cluster: &'a str,
    pub(super) external_network: &'a ExternalNetwork,
    pub(super) desired: &'a DesiredLoadBalancer,
    pub(super) observed: &'a ObservedLoadBalancer,
    pub(super) ownership: &'a ServiceOwnership,
}

/// Result of a dry run.
pub(super) enum FloatingIpDiff {
    /// Nothing has to change, and the Service has this address.
    InSync(IpAddr),
    /// The next sync would do this.
    Change(PlannedChange),
}

impl FloatingIpSync<'_> {
    /// Syncs the floating IP and returns the address of the Service. Updates `attached`, the
    /// floating IP in the sync state. `is_listed` is true when that comes from a shared listing.
    pub(super) async fn sync(
        &self,
        attached: &mut AttachedFloatingIp,
        mut is_listed: bool,
    ) -> Result<IpAddr, CloudError> {
        let port = vip_port(self.observed)?;
        let mut lookup = AddressLookup::NotDone;
        // Each round plans one action and applies it, until nothing is left to do.
        for _ in 0..MAX_ATTEMPTS {
            let action = self.plan_action(attached, &lookup).await?;
            // A floating IP from a shared listing is read again before a change.
            if is_listed && !matches!(action, FloatingIpAction::None(_)) {
                is_listed = false;
                *attached = AttachedFloatingIp::Unknown;
                continue;
            }
            // During each change the floating IP is unknown: after an error it is read again.
            match action {
                FloatingIpAction::None(address) => return Ok(address),
                FloatingIpAction::LookUp(address) => {
                    lookup = self.find_by_address(address).await?.into();
                }
                FloatingIpAction::Delete(id) => {
                    *attached = AttachedFloatingIp::Unknown;
                    self.api
                        .delete_floating_ip(&id, "the Service is internal")
                        .await?;
                    *attached = AttachedFloatingIp::None;
                }
                FloatingIpAction::Detach(id) => {
                    *attached = AttachedFloatingIp::Unknown;
                    let body = FloatingIpUpdate::detach();
                    self.api
                        .update_floating_ip(&id, &body, "the Service is internal")
                        .await?;
                    *attached = AttachedFloatingIp::None;
                }
                FloatingIpAction::Attach(id) => {
                    *attached = AttachedFloatingIp::Unknown;
                    let body = FloatingIpUpdate::attach(port);
                    let updated = self
                        .api
                        .update_floating_ip(&id, &body, "the Service asks for its address")
                        .await?;
                    *attached = Some(updated).into();
                }
                FloatingIpAction::Create(address) => {
                    let Some(network) = self.external_network().await? else {
                        let note = "no floating network is configured or found: the load balancer is internal";
                        self.api
                            .op
                            .event(EventType::Warning, "LoadBalancerForcedInternal", note);
                        return vip_address(self.observed);
                    };
                    *attached = AttachedFloatingIp::Unknown;
                    let created = self.create(&network, port, address).await?;
                    *attached = Some(created).into();
                }
            }
        }
        Err(CloudError::transient("the floating IP changes while it is reconciled"))
    }

    /// Compares desired and observed state, and returns what [`sync`](Self::sync) would change.
    pub(super) async fn diff(
        &self,
        attached: &mut AttachedFloatingIp,
    ) -> Result<FloatingIpDiff, CloudError> {
        let action = self.plan_action(attached, &AddressLookup::NotDone).await?;
        let change = match action {
            FloatingIpAction::None(address) => return Ok(FloatingIpDiff::InSync(address)),
            FloatingIpAction::Delete(id) => {
                planned_change("floating_ip_delete", &id, "the Service is internal")
            }
            FloatingIpAction::Detach(id) => {
                planned_change("floating_ip_update", &id, "the Service is internal")
            }
            FloatingIpAction::Attach(id) => {
                planned_change("floating_ip_update", &id, "the Service asks for its address")
            }
            FloatingIpAction::LookUp(address) => planned_change(
                "floating_ip_create",
                &address.to_string(),
                "the Service asks for it",
            ),
            FloatingIpAction::Create(_) => {
                if self.external_network().await?.is_none() {
                    return Ok(FloatingIpDiff::InSync(vip_address(self.observed)?));
                }
                let name = &self.observed.load_balancer.name;
                planned_change("floating_ip_create", name, CREATE_REASON)
            }
        };
        Ok(FloatingIpDiff::Change(change))
    }

    /// Plans the next action. Reads the floating IP first if it is not known.
    async fn plan_action(
        &self,
        attached: &mut AttachedFloatingIp,
        lookup: &AddressLookup,
    ) -> Result<FloatingIpAction, CloudError> {
        let vip = vip_address(self.observed)?;
        if matches!(attached, AttachedFloatingIp::Unknown) && vip.is_ipv4() {
            let listed = self
                .api
                .floating_ips(&[("port_id", vip_port(self.observed)?)])
                .await?;
            *attached = listed.into_iter().next().into();
        }
        plan_floating_ip(&FloatingIpInput {
            internal: self.desired.internal,
            owner: self.ownership.owner,
            keep: self.desired.floating_ip.keep,
            vip,
            requested: self.desired.floating_ip.address,
            current: attached.get(),
            lookup,
        })
    }

    /// Finds the floating IP of this project with an address. Another project's is not to be taken from
    /// it, which an administrator could do.
    async fn find_by_address(&self, address: IpAddr) -> Result<Option<FloatingIp>, OpenStackError> {
        let listed = self
            .api
            .own_floating_ips(&[("floating_ip_address", &address.to_string())])
            .await?;
        Ok(listed
            .into_iter()
            .find(|found| found.floating_ip_address == Some(address)))
    }

    /// Returns the network that floating IPs come from: the configured one, or else the external
    /// network that was found. Returns `None` if the cloud has none.
    async fn external_network(&self) -> Result<Option<Box<str>>, CloudError> {
        if let Some(configured) = &self.desired.floating_ip.network {
            return Ok(Some(configured.clone()));
        }
        let found = self
            .external_network
            .get(self.api.op, MAX_NETWORK_AGE, self.find_external_network())
            .await?;
        if found.is_none() {
            // Look again for the next Service.
            self.external_network.invalidate();
        }
        Ok(Option::clone(&found))
    }

    /// Finds the first external network with an IPv4 subnet.
    async fn find_external_network(&self) -> Result<Option<Box<str>>, CloudError> {
        let networks = self.api.networks(&[("router:external", "true")]).await?;
        for network in &networks.rows {
            if network.external && !network.subnets.is_empty() && self.serves_ipv4(network).await? {
                return Ok(Some(network.id.as_str().into()));
            }
        }
        // A network that cannot be read may be the one.
        networks.complete()?;
        Ok(None)
    }

    /// Returns true if a network has an IPv4 subnet, or one that is invisible to this project and
    /// so may be IPv4.
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

    /// Creates a floating IP in the first matching subnet where Neutron accepts it.
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
        for subnet_id in self.find_matching_subnets(network, name, tags).await? {
            let body = FloatingIpCreate { subnet_id: Some(subnet_id), ..body.clone() };
            match self.api.create_floating_ip(&body, CREATE_REASON).await {
                Ok(created) => return Ok(created),
                Err(error) if is_subnet_unusable(&error) => last_error = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(last_error)
    }

    /// Finds the subnets of a network that match a name pattern and tags, and returns their IDs.
    async fn find_matching_subnets(
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
            .filter(|subnet| name.matches(&subnet.name) && tags.matches(&subnet.tags))
            .map(|subnet| subnet.id)
            .collect())
    }
}

/// Returns true if a floating IP cannot be created in this subnet, so that the next one is tried.
fn is_subnet_unusable(error: &OpenStackError) -> bool {
    matches!(error.class(), ErrorClass::Quota | ErrorClass::Conflict | ErrorClass::Invalid)
}

fn planned_change(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: object.into(),
        reason: reason.into(),
    }
}

/// Deletes the floating IP on the VIP's port of a load balancer that is about to be deleted. One
/// that a user created stays. If `cluster` is set, so does one that was created for another cluster.
pub(super) async fn release(
    api: Api<'_>,
    port: &str,
    cluster: Option<&str>,
) -> Result<(), OpenStackError> {
    let is_of_cluster = |floating_ip: &FloatingIp| {
        cluster.is_none_or(|cluster| {
            let suffix = format!(" from cluster {cluster}");
            floating_ip.description.ends_with(&suffix)
        })
    };
    for floating_ip in api.floating_ips(&[("port_id", port)]).await? {
        if is_managed(&floating_ip) && is_of_cluster(&floating_ip) {
            api.delete_floating_ip(&floating_ip.id, "its Service is deleted")
                .await?;
        }
    }
    Ok(())
}

/// Deletes the floating IP of a Service whose load balancer is already deleted. It has no port any
/// more, so it is found by its description. It must have one of the addresses that the Service
/// shows, because another cluster of the same name has the same descriptions.
pub(super) async fn release_leftover(
    api: Api<'_>,
    description: &str,
    addresses: &[IpAddr],
) -> Result<(), OpenStackError> {
    for floating_ip in api
        .own_floating_ips(&[("description", description)])
        .await?
    {
        let address = floating_ip.floating_ip_address;
        if floating_ip.description == description
            && floating_ip.port_id.is_none()
            && address.is_some_and(|address| addresses.contains(&address))
        {
            api.delete_floating_ip(&floating_ip.id, "its Service and load balancer are deleted")
                .await?;
        }
    }
    Ok(())
}

fn vip_port(observed: &ObservedLoadBalancer) -> Result<&str, CloudError> {
    let port = observed.load_balancer.vip_port_id.as_deref();
    port.ok_or_else(|| {
        CloudError::transient(format!(
            "load balancer {} has no port yet",
            observed.load_balancer.id
        ))
    })
}

/// Returns the address of the VIP, or an error while Octavia has not assigned one.
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
