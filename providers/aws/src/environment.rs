//! Discovers region, VPC and cluster from the configuration, or else from the instance on which the
//! process runs. If region, VPC and cluster ID are configured, no request is sent, so the process
//! can run outside EC2.

use std::sync::{Arc, LazyLock};

use ccm_core::provider::{CloudError, ErrorKind, Op};
use regex::Regex;

use crate::{
    api::{
        AwsError, AwsErrorCause, InstanceId, Metadata, SubnetId, Tags, VpcId,
        ec2::{DescribeInstances, Instance},
    },
    client::Client,
    config::Settings,
    ownership_tags::{CLUSTER_TAG_PREFIX, Cluster, LEGACY_CLUSTER_TAG},
};

/// Paths of the instance metadata service, below `latest/meta-data/`.
const REGION_PATH: &str = "placement/region";
const ZONE_PATH: &str = "placement/availability-zone";
const INSTANCE_ID_PATH: &str = "instance-id";
const MACS_PATH: &str = "network/interfaces/macs/";

/// Region, VPC and cluster for which the process works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsEnvironment {
    /// Region, such as `us-west-2`.
    pub region: Arc<str>,
    /// The cluster's VPC.
    pub vpc: VpcId,
    /// Configured `SubnetID`, or else the subnet of the process' own instance if it was described.
    pub subnet: Option<SubnetId>,
    /// The cluster. Its ID is empty if none was found.
    pub cluster: Cluster,
}

/// Error of discovering the environment.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The metadata service did not answer.
    #[error(
        "cannot read the {what} from the instance metadata service; outside EC2, set {key} in the cloud config"
    )]
    NoMetadata {
        /// The value that was requested.
        what: &'static str,
        /// Configuration key that makes the request unnecessary.
        key: &'static str,
        /// Error of the request.
        source: AwsError,
    },
    /// The metadata service does not have the value.
    #[error("the instance metadata service returned no {what}; set {key} in the cloud config")]
    NotInMetadata {
        /// The value that was requested.
        what: &'static str,
        /// Configuration key that makes the request unnecessary.
        key: &'static str,
    },
    /// The region cannot be derived from the zone.
    #[error("{0}")]
    Zone(String),
    /// The process' own instance cannot be described.
    #[error(
        "error finding instance {id}, whose tags name the cluster; with KubernetesClusterID in the cloud config they are not needed"
    )]
    Describe {
        /// ID of the process' own instance.
        id: InstanceId,
        /// Error of the request.
        source: AwsError,
    },
    /// The process' own instance is missing from the answer.
    #[error(
        "error finding instance {0}, whose tags name the cluster: it does not exist in this region and account"
    )]
    NoInstance(InstanceId),
    /// The instance's tags contradict each other.
    #[error("tags of instance {id}: {reason}")]
    Tags {
        /// ID of the process' own instance.
        id: InstanceId,
        /// Description of the contradiction.
        reason: String,
    },
}

impl EnvironmentError {
    /// Returns true if a retry may succeed, because AWS is unavailable or throttles. If the
    /// metadata service does not answer, a retry would not help, because this is normal outside
    /// EC2.
    pub fn is_transient(&self) -> bool {
        let Self::Describe { source, .. } = self else {
            return false;
        };
        match &source.cause {
            AwsErrorCause::NotSent(_) => false,
            // Missing credentials count as a missing answer. They may become available later, for
            // example those of a pod identity.
            _ => matches!(
                CloudError::from(source.clone()).kind(),
                ErrorKind::Transient | ErrorKind::Throttled
            ),
        }
    }
}

/// Discovers the environment. Describes the process' own instance only if the cluster ID is not
/// configured.
///
/// # Errors
/// Returns an error if region, VPC or instance are neither configured nor found, or if cluster tags
/// contradict each other. If the instance has no cluster tags, the cluster's ID is empty.
pub async fn discover(
    settings: &Settings,
    client: &Client,
    metadata: &dyn Metadata,
    op: &Op,
) -> Result<AwsEnvironment, EnvironmentError> {
    let region = discover_region(settings, metadata).await?;
    let mut vpc = settings.vpc.clone();
    let mut subnet = settings.subnet.clone();
    let cluster = match configured_cluster(settings) {
        Some(cluster) => cluster,
        None => {
            let instance = describe_own_instance(client, metadata, op).await?;
            let cluster = parse_cluster_tags(&instance.tags)
                .map_err(|reason| EnvironmentError::Tags { id: instance.id, reason })?;
            // The configuration takes precedence over the values of the own instance.
            vpc = vpc.or(instance.vpc);
            subnet = subnet.or(instance.subnet);
            cluster
        }
    };
    let vpc = match vpc {
        Some(vpc) => vpc,
        None => read_vpc(metadata).await?,
    };
    Ok(AwsEnvironment { region, vpc, subnet, cluster })
}

/// Returns the configured region, or else reads it from the metadata service.
///
/// # Errors
/// Returns an error if the metadata service does not answer, or has no region.
pub async fn discover_region(
    settings: &Settings,
    metadata: &dyn Metadata,
) -> Result<Arc<str>, EnvironmentError> {
    let what = "region";
    let key = "Region";
    if let Some(region) = &settings.region {
        return Ok((&**region).into());
    }
    if let Some(region) = get_metadata(metadata, REGION_PATH, what, key).await? {
        return Ok(region.into());
    }
    match get_metadata(metadata, ZONE_PATH, what, key).await? {
        Some(zone) => region_of_zone(&zone)
            .map(Into::into)
            .map_err(EnvironmentError::Zone),
        None => Err(EnvironmentError::NotInMetadata { what, key }),
    }
}

/// Derives the region from the name of a zone, which may be a Local Zone or Wavelength Zone.
///
/// # Errors
/// Returns an error if the name is not the name of a zone.
pub fn region_of_zone(zone: &str) -> Result<Box<str>, String> {
    static REGION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^([a-zA-Z]+-)+\d+").expect("a regular expression"));
    match REGION.find(zone) {
        Some(region) => Ok(region.as_str().into()),
        None => Err(format!("invalid AZ: {zone}")),
    }
}

/// Returns the configured cluster, if there is one.
fn configured_cluster(settings: &Settings) -> Option<Cluster> {
    let tag = settings.cluster_tag.as_deref();
    // If both keys are set, their values are equal.
    let id = tag.or(settings.cluster_id.as_deref())?;
    Some(Cluster::new(id, tag.is_some()))
}

/// Parses the cluster tags of an instance. Without cluster tags, the cluster's ID is empty.
///
/// # Errors
/// Returns an error if the tags contradict each other.
fn parse_cluster_tags(tags: &Tags) -> Result<Cluster, String> {
    let mut ids = tags
        .keys()
        .filter_map(|key| key.strip_prefix(CLUSTER_TAG_PREFIX))
        .filter(|id| !id.is_empty());
    let id = ids.next();
    if let Some(first) = id
        && let Some(second) = ids.next()
    {
        return Err(format!(
            "Found multiple cluster tags with prefix {CLUSTER_TAG_PREFIX} ({first:?} and {second:?})"
        ));
    }
    let legacy_id = match tags.get(LEGACY_CLUSTER_TAG) {
        Some(legacy_id) if !legacy_id.is_empty() => legacy_id,
        _ => return Ok(Cluster::new(id.unwrap_or_default(), false)),
    };
    if let Some(id) = id
        && *id != **legacy_id
    {
        return Err(format!("clusterID tags did not match: {id:?} vs {legacy_id:?}"));
    }
    Ok(Cluster::new(&**legacy_id, true))
}

/// Describes the instance on which the process runs.
async fn describe_own_instance(
    client: &Client,
    metadata: &dyn Metadata,
    op: &Op,
) -> Result<Instance, EnvironmentError> {
    let what = "instance ID";
    let key = "KubernetesClusterID";
    let id = get_metadata(metadata, INSTANCE_ID_PATH, what, key)
        .await?
        .ok_or(EnvironmentError::NotInMetadata { what, key })?;
    let id = InstanceId::from(id);
    let request = DescribeInstances { ids: vec![id.clone()], ..DescribeInstances::default() };
    let page = client
        .read(op, request)
        .await
        .map_err(|source| EnvironmentError::Describe { id: id.clone(), source })?;
    page.items
        .into_iter()
        .find(|instance| instance.id == id)
        .ok_or(EnvironmentError::NoInstance(id))
}

/// Reads the VPC from the metadata service. Returns that of the first interface in a VPC.
async fn read_vpc(metadata: &dyn Metadata) -> Result<VpcId, EnvironmentError> {
    let what = "VPC";
    let key = "VPC";
    let macs = get_metadata(metadata, MACS_PATH, what, key)
        .await?
        .unwrap_or_default();
    for line in macs.lines() {
        let mac = line.trim().trim_end_matches('/');
        if mac.is_empty() {
            continue;
        }
        let path = format!("{MACS_PATH}{mac}/vpc-id");
        if let Some(vpc) = get_metadata(metadata, &path, what, key).await? {
            return Ok(vpc.into());
        }
    }
    Err(EnvironmentError::NotInMetadata { what, key })
}

/// Reads a value from the metadata service. Returns `None` if the value is missing or empty.
async fn get_metadata(
    metadata: &dyn Metadata,
    path: &str,
    what: &'static str,
    key: &'static str,
) -> Result<Option<String>, EnvironmentError> {
    let text = metadata
        .get(path)
        .await
        .map_err(|source| EnvironmentError::NoMetadata { what, key, source })?
        .unwrap_or_default();
    match text.trim() {
        "" => Ok(None),
        text => Ok(Some(text.to_owned())),
    }
}

#[cfg(test)]
mod tests;
