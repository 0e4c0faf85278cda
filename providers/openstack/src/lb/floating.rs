//! Gives a balancer its floating IP, or takes it away.

use std::net::IpAddr;

use ccm_core::provider::{CloudError, EventKind, PlannedChange};
use openstack_api::neutron::{FloatingIp, FloatingIpCreate, FloatingIpUpdate, Network};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    api::Api,
    memory::{Attached, Known},
    model::Wanted,
    names,
    ownership::Standing,
    plan::floating::{Decision, Situation, decide, is_ours},
    seen::Seen,
    subnets::{FloatingSubnet, NamePattern, TagPattern},
};
use crate::client::{Meaning, OsError};

/// How often it is decided anew: look for an address, take it, show it.
const ROUNDS: usize = 5;
/// How long the external network that was found counts.
const NETWORK_AGE: std::time::Duration = std::time::Duration::from_secs(600);

/// The external network, where nobody names one.
#[derive(Debug, Default)]
pub(super) struct Networks(Mutex<Option<(Instant, String)>>);

/// A floating IP in the making.
pub(super) struct Matter<'a> {
    pub(super) api: Api<'a>,
    pub(super) cluster: &'a str,
    pub(super) networks: &'a Networks,
    pub(super) wanted: &'a Wanted,
    pub(super) standing: &'a Standing,
}

impl Matter<'_> {
    /// Brings it in line and returns the address of the Service.
    pub(super) async fn settle(&self, known: &mut Known, seen: &Seen) -> Result<IpAddr, CloudError> {
        let port = port_of(seen)?;
        let mut found: Option<Option<FloatingIp>> = None;
        let mut looked = !known.shared;
        for _ in 0..ROUNDS {
            let decision = self.decide(known, seen, found.as_ref()).await?;
            // What was read in common is looked at again before anything is changed.
            if !looked && !matches!(decision, Decision::Show(_)) {
                (looked, known.floating) = (true, Attached::Unread);
                continue;
            }
            let why = "the Service";
            match decision {
                Decision::Show(address) => return Ok(address),
                Decision::Look(address) => found = Some(self.look(address).await?),
                Decision::Delete(id) => {
                    known.floating = Attached::Unread;
                    self.api.delete_floating_ip(&id, &format!("{why} is internal")).await?;
                    known.floating = Attached::Nothing;
                }
                Decision::Detach(id) => {
                    known.floating = Attached::Unread;
                    let body = FloatingIpUpdate::detach();
                    self.api.update_floating_ip(&id, &body, &format!("{why} is internal")).await?;
                    known.floating = Attached::Nothing;
                }
                Decision::Attach(id) => {
                    known.floating = Attached::Unread;
                    let body = FloatingIpUpdate::attach(port);
                    let why = format!("{why} asks for its address");
                    known.floating = Some(self.api.update_floating_ip(&id, &body, &why).await?).into();
                }
                Decision::Create(address) => match self.network().await? {
                    Some(network) => {
                        known.floating = Attached::Unread;
                        known.floating = Some(self.create(&network, port, address).await?).into();
                    }
                    None => {
                        let note = "no floating network is configured or found: the load balancer is internal";
                        self.api.op.event(EventKind::Warning, "LoadBalancerForcedInternal", note);
                        return vip_of(seen);
                    }
                },
            }
        }
        Err(CloudError::transient("the floating IP changes while it is brought in line"))
    }

    /// Says what [`settle`](Self::settle) would do.
    pub(super) async fn compare(
        &self,
        known: &mut Known,
        seen: &Seen,
    ) -> Result<(Option<IpAddr>, Vec<PlannedChange>), CloudError> {
        let planned = |operation: &str, object: &str, reason: &str| PlannedChange {
            operation: operation.into(),
            object: object.into(),
            reason: reason.into(),
        };
        let internal = "the Service is internal";
        Ok(match self.decide(known, seen, None).await? {
            Decision::Show(address) => (Some(address), Vec::new()),
            Decision::Delete(id) => (None, vec![planned("floating_ip_delete", &id, internal)]),
            Decision::Detach(id) => (None, vec![planned("floating_ip_update", &id, internal)]),
            Decision::Attach(id) => {
                (None, vec![planned("floating_ip_update", &id, "the Service asks for its address")])
            }
            Decision::Look(address) => {
                (None, vec![planned("floating_ip_create", &address.to_string(), "the Service asks for it")])
            }
            Decision::Create(_) if self.network().await?.is_none() => (Some(vip_of(seen)?), Vec::new()),
            Decision::Create(_) => {
                (None, vec![planned("floating_ip_create", &seen.balancer.name, "the Service has none")])
            }
        })
    }

    async fn decide(
        &self,
        known: &mut Known,
        seen: &Seen,
        found: Option<&Option<FloatingIp>>,
    ) -> Result<Decision, CloudError> {
        let vip = vip_of(seen)?;
        if matches!(known.floating, Attached::Unread) && vip.is_ipv4() {
            let listed = self.api.floating_ips(&[("port_id", port_of(seen)?)]).await?;
            known.floating = listed.into_iter().next().into();
        }
        decide(&Situation {
            internal: self.wanted.internal,
            owner: self.standing.owner,
            keep: self.wanted.floating.keep,
            vip,
            asked: self.wanted.floating.address,
            current: known.floating.get(),
            found: found.map(Option::as_ref),
        })
    }

    async fn look(&self, address: IpAddr) -> Result<Option<FloatingIp>, OsError> {
        let listed = self.api.floating_ips(&[("floating_ip_address", &address.to_string())]).await?;
        Ok(listed.into_iter().find(|found| found.floating_ip_address == Some(address)))
    }

    /// Returns the network that the floating IP comes from; that which is found where none is named.
    async fn network(&self) -> Result<Option<String>, CloudError> {
        if let Some(named) = &self.wanted.floating.network {
            return Ok(Some(named.to_string()));
        }
        let last = self.networks.0.lock().clone();
        if let Some((_, network)) = last.filter(|(at, _)| at.elapsed() < NETWORK_AGE) {
            return Ok(Some(network));
        }
        let listed = self.api.networks(&[("router:external", "true")]).await?;
        for network in listed.into_iter().filter(|network| network.external && !network.subnets.is_empty()) {
            if self.serves_ipv4(&network).await? {
                *self.networks.0.lock() = Some((Instant::now(), network.id.clone()));
                return Ok(Some(network.id));
            }
        }
        Ok(None)
    }

    /// Tells whether a network has a subnet of IPv4, or one that this project may not see.
    async fn serves_ipv4(&self, network: &Network) -> Result<bool, OsError> {
        let visible = self.api.subnets(&[("network_id", &network.id)]).await?;
        let suits =
            |id: &String| visible.iter().find(|subnet| subnet.id == *id).is_none_or(|subnet| subnet.ip_version == 4);
        Ok(network.subnets.iter().any(suits))
    }

    async fn create(&self, network: &str, port: &str, address: Option<IpAddr>) -> Result<FloatingIp, CloudError> {
        let owner = &self.wanted.owner;
        let body = FloatingIpCreate {
            floating_network_id: network.into(),
            port_id: Some(port.into()),
            floating_ip_address: address,
            description: Some(names::floating_ip_description(self.cluster, &owner.namespace, &owner.name).into()),
            ..FloatingIpCreate::default()
        };
        let why = "the Service has none";
        match &self.wanted.floating.subnet {
            FloatingSubnet::Id(id) => {
                let subnet = self.api.subnet(id).await?;
                if subnet.is_none_or(|subnet| subnet.network_id != network) {
                    let message = format!("floating subnet {id} is not one of floating network {network}");
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
                        // It has no address left; another one may.
                        Err(error)
                            if matches!(error.meaning(), Meaning::Quota | Meaning::Conflict | Meaning::Invalid) =>
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

    async fn matching(&self, network: &str, name: &str, tags: &str) -> Result<Vec<String>, CloudError> {
        let pattern = NamePattern::parse(name).map_err(CloudError::invalid_input)?;
        let tags = TagPattern::parse(tags);
        let by_tags = tags.query();
        let mut query = vec![("network_id", network)];
        query.extend(by_tags.as_ref().map(|(key, value)| (*key, &**value)));
        let listed = self.api.subnets(&query).await?;
        let fits =
            listed.into_iter().filter(|subnet| pattern.matches(&subnet.name) && tags.matches(&subnet.standard.tags));
        Ok(fits.map(|subnet| subnet.id).collect())
    }
}

/// Deletes the floating IP of a balancer that is about to go, if it was made for a Service.
pub(super) async fn release(api: Api<'_>, port: &str) -> Result<(), OsError> {
    for floating in api.floating_ips(&[("port_id", port)]).await?.iter().filter(|floating| is_ours(floating)) {
        api.delete_floating_ip(&floating.id, "its Service is gone").await?;
    }
    Ok(())
}

/// Deletes the floating IP that was made for a Service whose balancer is gone already.
pub(super) async fn release_left(api: Api<'_>, description: &str) -> Result<(), OsError> {
    let listed = api.floating_ips(&[("description", description)]).await?;
    let left =
        listed.iter().filter(|floating| floating.standard.description == description && floating.port_id.is_none());
    for floating in left {
        api.delete_floating_ip(&floating.id, "its Service and load balancer are gone").await?;
    }
    Ok(())
}

fn port_of(seen: &Seen) -> Result<&str, CloudError> {
    let port = seen.balancer.vip_port_id.as_deref();
    port.ok_or_else(|| CloudError::transient(format!("load balancer {} has no port yet", seen.balancer.id)))
}

/// Returns the address of the VIP.
pub(super) fn vip_of(seen: &Seen) -> Result<IpAddr, CloudError> {
    let vip = seen.balancer.vip_address.as_deref().and_then(|text| text.parse().ok());
    vip.ok_or_else(|| CloudError::transient(format!("load balancer {} has no address yet", seen.balancer.id)))
}
