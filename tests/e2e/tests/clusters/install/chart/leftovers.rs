//! What is there beside what a release made.

use std::collections::BTreeSet;

use anyhow::Context as _;
use ccm_e2e::scenario::Scenario;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::{Discovery, verbs};

/// Resources that are others' to make and remove: the scenario's own, and what every process and
/// controller leaves.
const OTHERS: [&str; 5] = ["Event", "Node", "Endpoints", "EndpointSlice", "IPAddress"];

/// What comes by itself to every namespace, some time after it.
const OF_NAMESPACES: [&str; 2] = ["ConfigMap kube-root-ca.crt", "ServiceAccount default"];

/// Names of all objects of all kinds, apart from these.
pub(super) struct Leftovers(BTreeSet<String>);

impl Leftovers {
    pub(super) async fn find(scenario: &Scenario) -> anyhow::Result<Self> {
        let client = scenario.server.client();
        let discovery = Discovery::new(client.clone())
            .run()
            .await
            .context("ask for all kinds")?;
        let mut names = BTreeSet::new();
        for (resource, capabilities) in discovery
            .groups()
            .flat_map(kube::discovery::ApiGroup::recommended_resources)
        {
            if !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            for object in api.list(&ListParams::default()).await?.items {
                let metadata = object.metadata;
                let (namespace, name) =
                    (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
                let of_namespace = OF_NAMESPACES.contains(&&*format!("{} {name}", resource.kind));
                if !name.starts_with(&scenario.prefix())
                    && !OTHERS.contains(&&*resource.kind)
                    && !of_namespace
                {
                    names.insert(format!("{} {namespace}/{name}", resource.kind));
                }
            }
        }
        Ok(Self(names))
    }

    /// Nothing is there that was not there before, but for the Lease.
    pub(super) fn are_those_of(&self, before: &Self) -> anyhow::Result<()> {
        let lease = "Lease kube-system/cloud-controller-manager";
        anyhow::ensure!(self.0.contains(lease), "the Lease belongs to no release, and is gone");
        let mut new: Vec<_> = self.0.difference(&before.0).collect();
        new.retain(|name| *name != lease);
        anyhow::ensure!(new.is_empty(), "left behind: {new:?}");
        Ok(())
    }
}
