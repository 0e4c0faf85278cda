//! Nodes and their instances in the mock cloud.

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
    /// Returns the trait's default of 100 nodes per call and four calls in flight.
    fn limits(&self) -> BatchLimits {
        BatchLimits::default()
    }

    /// Describes instances with one cloud call, or none if all provider IDs belong to other clouds.
    /// Always queries the cloud, so every `max_age` is satisfied.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        // First, translate the queries. Nodes of other clouds get an error without a query.
        let mut cloud_queries = Vec::new();
        let mut errors = Vec::with_capacity(queries.len());
        for query in queries {
            match to_cloud_query(query) {
                Ok(cloud_query) => {
                    cloud_queries.push(cloud_query);
                    errors.push(None);
                }
                Err(error) => errors.push(Some(error)),
            }
        }
        // Then query the cloud.
        let answers = if cloud_queries.is_empty() {
            Vec::new()
        } else {
            op.run(self.api.describe_instances(&cloud_queries)).await?
        };
        if answers.len() != cloud_queries.len() {
            return Err(CloudError::transient(format!(
                "the mock cloud answered {} of {} queries",
                answers.len(),
                cloud_queries.len()
            )));
        }
        // Finally, merge answers and errors in the order of the queries.
        let mut answers = answers.into_iter();
        let mut statuses = Vec::with_capacity(queries.len());
        for error in errors {
            statuses.push(match error {
                Some(error) => Err(error),
                // The number of answers was checked above.
                None => match answers.next() {
                    Some(answer) => answer.map(to_status),
                    None => Err(CloudError::transient("an answer is missing")),
                },
            });
        }
        Ok(statuses)
    }
}

fn to_cloud_query(query: &InstanceQuery) -> Result<CloudInstanceQuery, CloudError> {
    let node = &query.node;
    match node.provider_id.as_deref() {
        Some(id) if scheme_of(id) != Some(SCHEME) => {
            let message = format!(
                "describe instance of node {}: provider ID {id:?} does not belong to this cloud",
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

fn to_status(instance: Option<Instance>) -> InstanceStatus {
    let Some(instance) = instance else {
        return InstanceStatus::NotFound;
    };
    let power_state = match instance.power_state {
        CloudPowerState::Running => PowerState::Running,
        CloudPowerState::Stopped => PowerState::Stopped,
        CloudPowerState::Terminated => PowerState::Terminated,
    };
    let meta = InstanceMetadata {
        provider_id: Some(instance.provider_id.into()),
        instance_type: non_empty(instance.instance_type),
        zone: non_empty(instance.zone),
        region: non_empty(instance.region),
        addresses: instance
            .addresses
            .into_iter()
            .map(NodeAddress::from)
            .collect(),
        additional_labels: instance
            .additional_labels
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect(),
    };
    InstanceStatus::Found { power_state, meta }
}

fn non_empty(text: String) -> Option<Box<str>> {
    if text.is_empty() {
        None
    } else {
        Some(text.into())
    }
}
