//! The account, region, VPC and cluster that all parts of the provider share.

use std::sync::Arc;

use crate::{api::VpcId, client::Client, config::SharedSettings, ownership_tags::Cluster};

/// Client, cluster, region, VPC and settings of the provider. Cheap to clone.
#[derive(Clone)]
pub struct Scope {
    /// Client for AWS.
    pub client: Client,
    /// The cluster and its ownership tags.
    pub cluster: Cluster,
    /// Region, such as `us-west-2`.
    pub region: Arc<str>,
    /// The cluster's VPC.
    pub vpc: VpcId,
    /// The validated cloud config.
    pub settings: SharedSettings,
}
