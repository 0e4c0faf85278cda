//! Sketch of the AWS provider.

mod api;
mod instances;
mod load_balancer;
mod routes;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::Api;
use ccm_core::{
    config::ControllerInfo,
    k8s::{NodeFields, NodeView},
    provider::{
        CloudError, CloudProvider, ExtraController, Instances, Inventory, LoadBalancers, NodeClaim, Op,
        ProviderContext, Routes,
    },
};

/// What the binary declares to the command line beside the standard controllers.
pub(crate) const TAGGING: ControllerInfo = ControllerInfo {
    name: "tagging-controller",
    aliases: &["tagging"],
    client_name: "node-controller",
    enabled_by_default: false,
};

/// The provider: the client and a few constants, no state about objects.
pub(crate) struct Aws {
    api: Arc<dyn Api>,
    region: String,
}

impl Aws {
    pub(crate) fn new(api: Arc<dyn Api>) -> Self {
        Self { api, region: "us-west-2".to_owned() }
    }

    /// Hands out the client for one request that changes something.
    fn writer(&self, op: &Op) -> Result<&dyn Api, CloudError> {
        op.may_write()?;
        Ok(&*self.api)
    }
}

/// What a provider ID names. Two id spaces, hence an enum: an instance id is never looked up among interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProviderId {
    Instance(Box<str>),
    Fargate(Box<str>),
}

impl ProviderId {
    /// Parses `aws:///<zone>/<id>`, `aws:///<id>` and a bare id. The zone is not trusted for anything.
    pub(crate) fn parse(text: &str) -> Result<Self, CloudError> {
        let invalid = || CloudError::invalid_input(format!("provider ID {text:?} does not name an EC2 instance"));
        let path = match text.split_once("://") {
            Some(("aws", rest)) => rest.split_once('/').ok_or_else(invalid)?.1,
            Some(_) => return Err(invalid()),
            None => text,
        };
        let tokens: Vec<&str> = path.trim_matches('/').split('/').collect();
        match tokens.as_slice() {
            [id] | [_, id] | [_, _, id] if id.len() > 2 && id.starts_with("i-") => Ok(Self::Instance(Box::from(*id))),
            [id] | [_, id] | [_, _, id] if id.starts_with("fargate-") => Ok(Self::Fargate(Box::from(*id))),
            _ => Err(invalid()),
        }
    }
}

impl CloudProvider for Aws {
    fn name(&self) -> &'static str {
        "aws"
    }

    fn claims_node(&self, node: &NodeView) -> NodeClaim {
        match node.provider_id.as_deref().and_then(|id| id.split_once("://")) {
            Some((scheme, _)) if scheme != "aws" => NodeClaim::Foreign,
            // A bare id, and a node that no cloud has named yet, may be ours.
            _ => NodeClaim::Ours,
        }
    }

    fn node_fields(&self) -> NodeFields {
        NodeFields {
            // `target-node-labels` names any label.
            all_labels: true,
            labels: BTreeSet::from(["eks.amazonaws.com/compute-type".into(), "topology.k8s.aws/zone-id".into()]),
            ..NodeFields::default()
        }
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }

    fn controllers(&self) -> Vec<ExtraController> {
        let api = self.api.clone();
        vec![ExtraController::new(TAGGING.name, move |cx| tag_nodes(api, cx))]
    }
}

/// Tags the instances of nodes. The framework's index replaces a watch of the provider's own: listing it costs one
/// reference per node.
async fn tag_nodes(api: Arc<dyn Api>, cx: ProviderContext) -> Result<(), CloudError> {
    let mut tagged = BTreeSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(5));
    while cx.cancel.run_until_cancelled(ticks.tick()).await.is_some() {
        for node in cx.nodes.list() {
            let Some(Ok(ProviderId::Instance(id))) = node.provider_id.as_deref().map(ProviderId::parse) else {
                continue;
            };
            if !tagged.contains(&id) {
                cx.gate.may_write()?;
                api.create_tags(&id, &[("kubernetes.io/cluster/kubernetes", "owned")]).await?;
                tagged.insert(id);
            }
        }
    }
    Ok(())
}
