//! Sketch of the OpenStack provider.

mod api;
mod instances;
mod load_balancer;
mod routes;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{Api, ApiError, Features};
use ccm_core::{
    k8s::{NodeFields, NodeView},
    provider::{CloudError, CloudProvider, Instances, Inventory, LoadBalancers, NodeClaim, Op, Routes},
};

/// The provider. What the cloud offers is asked once, by the constructor.
pub(crate) struct OpenStack {
    api: Arc<dyn Api>,
    region: Box<str>,
    features: Features,
}

impl OpenStack {
    /// Asks the cloud what it offers. Async and fallible, before leader election.
    pub(crate) async fn connect(api: Arc<dyn Api>, region: &str) -> Result<Self, ApiError> {
        let features = api.features().await?;
        Ok(Self { api, region: region.into(), features })
    }

    /// Hands out the client for one request that changes something.
    fn writer(&self, op: &Op) -> Result<&dyn Api, CloudError> {
        op.may_write()?;
        Ok(&*self.api)
    }

    /// Reads the server id out of a provider ID. A server of another region is an error, so that its node is never
    /// taken for gone.
    fn server_id<'a>(&self, text: &'a str) -> Result<&'a str, CloudError> {
        let id = ProviderId::parse(text)?;
        if id.region.is_empty() || *id.region == *self.region {
            return Ok(id.server);
        }
        Err(CloudError::invalid_input(format!("provider ID {text:?} is of another region than {:?}", self.region)))
    }
}

/// A parsed provider ID: `openstack://<region>/<id>`, the region mostly empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProviderId<'a> {
    pub(crate) region: &'a str,
    pub(crate) server: &'a str,
}

impl<'a> ProviderId<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, CloudError> {
        let rest = if text.contains("://") { text.strip_prefix("openstack://") } else { Some(text) };
        rest.and_then(|rest| rest.split_once('/'))
            .filter(|(_, server)| !server.is_empty() && !server.contains('/'))
            .map(|(region, server)| Self { region, server })
            .ok_or_else(|| {
                let message = format!("provider ID {text:?} is not of the form openstack://region/InstanceID");
                CloudError::invalid_input(message)
            })
    }
}

impl CloudProvider for OpenStack {
    fn name(&self) -> &'static str {
        "openstack"
    }

    fn claims_node(&self, node: &NodeView) -> NodeClaim {
        match node.provider_id.as_deref().and_then(|id| id.split_once("://")) {
            Some((scheme, _)) if scheme != "openstack" => NodeClaim::Foreign,
            _ => NodeClaim::Ours,
        }
    }

    fn node_fields(&self) -> NodeFields {
        // `node-selector` names any label; the system UUID is the server's id where the kubelet set no provider ID.
        NodeFields { all_labels: true, system_uuid: true, ..NodeFields::default() }
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        self.features.extra_routes.then_some(self as &dyn Routes)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}
