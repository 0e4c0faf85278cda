//! What every part of the provider works in: one account, region, VPC and cluster.

use std::sync::Arc;

use crate::{api::VpcId, client::Client, cluster::Cluster, config::SharedSettings};

/// Where the provider works. Cheap to clone.
#[derive(Clone)]
pub struct Scope {
    /// The way to AWS.
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
