//! The scope that all parts of the provider share: one account, region, VPC and cluster.

use std::sync::Arc;

use crate::{api::VpcId, client::Client, config::SharedSettings, ownership_tags::Cluster};

/// Client, cluster, region, VPC and settings of the provider. Cheap to clone.
#[derive(Clone)]
pub struct Scope {
    /// Client for AWS.
    pub client: Client,
    /// The cluster.
    pub cluster: Cluster,
    /// Region, such as `us-west-2`.
    pub region: Arc<str>,
    /// The cluster's VPC.
    pub vpc: VpcId,
    /// The configuration.
    pub settings: SharedSettings,
}
