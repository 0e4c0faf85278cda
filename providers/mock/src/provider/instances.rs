use async_trait::async_trait;
use ccm_core::{
    k8s::NodeAddress,
    provider::{
        BatchLimits, CloudError, InstanceMetadata, InstanceQuery, InstanceStatus, Instances, Op,
        PowerState,
    },
};

use super::MockProvider;
use crate::cloud::{
    CloudInstanceQuery, Instance, PowerState as CloudPowerState,
    provider_id::{SCHEME, scheme_of},
};

#[async_trait]
impl Instances for MockProvider {
    /// The trait's default: 100 nodes per call, four calls in flight.
    fn limits(&self) -> BatchLimits {
        BatchLimits::default()
    }

    /// Always queries the cloud, so every `max_age` is satisfied. Costs one cloud call, or none if
    /// all provider IDs are of other clouds.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let asked: Vec<_> = queries.iter().map(to_query).collect();
        let known: Vec<CloudInstanceQuery> = asked
            .iter()
            .filter_map(|query| query.as_ref().ok().cloned())
            .collect();
        let mut answers = if known.is_empty() {
            Vec::new()
        } else {
            op.run(self.api.describe_instances(&known)).await?
        };
        if answers.len() != known.len() {
            let got = answers.len();
            let want = known.len();
            return Err(CloudError::transient(format!(
                "the mock cloud answered {got} of {want} queries"
            )));
        }
        let mut answers = answers.drain(..);
        let next = |query: Result<CloudInstanceQuery, CloudError>| {
            query?;
            // The number of answers was checked above.
            answers
                .next()
                .unwrap_or_else(|| Err(CloudError::transient("an answer is missing")))
                .map(to_presence)
        };
        Ok(asked.into_iter().map(next).collect())
    }
}

fn to_query(query: &InstanceQuery) -> Result<CloudInstanceQuery, CloudError> {
    let node = &query.node;
    match node.provider_id.as_deref() {
        Some(id) if scheme_of(id) != Some(SCHEME) => {
            let message = format!(
                "describe instance of node {}: provider ID {id:?} is not of this cloud",
                node.name
            );
            Err(CloudError::invalid_input(message))
        }
        id => Ok(CloudInstanceQuery {
            node: node.name.to_string(),
            provider_id: id.map(str::to_owned),
        }),
    }
}

fn to_presence(instance: Option<Instance>) -> InstanceStatus {
    let Some(instance) = instance else {
        return InstanceStatus::NotFound;
    };
    let power = match instance.power_state {
        CloudPowerState::Running => PowerState::Running,
        CloudPowerState::Stopped => PowerState::Stopped,
        CloudPowerState::Terminated => PowerState::Terminated,
    };
    let some = |text: String| (!text.is_empty()).then(|| text.into_boxed_str());
    let meta = InstanceMetadata {
        provider_id: Some(instance.provider_id.into()),
        instance_type: some(instance.instance_type),
        zone: some(instance.zone),
        region: some(instance.region),
        addresses: instance
            .addresses
            .into_iter()
            .map(NodeAddress::from)
            .collect(),
        additional_labels: instance
            .additional_labels
            .into_iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect(),
    };
    InstanceStatus::Found { power_state: power, meta }
}
