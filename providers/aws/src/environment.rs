//! Discovers region, VPC and cluster: from the configuration, or else from the instance on which
//! the process runs. If region, VPC and cluster ID are configured, no request is sent, so the
//! process can run outside EC2.

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

/// Paths below `latest/meta-data/`.
const REGION: &str = "placement/region";
const ZONE: &str = "placement/availability-zone";
const INSTANCE_ID: &str = "instance-id";
const MACS: &str = "network/interfaces/macs/";

/// Where the process runs and for which cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsEnvironment {
    /// Region, such as `us-west-2`.
    pub region: Arc<str>,
    /// The cluster's VPC.
    pub vpc: VpcId,
    /// `SubnetID`, or the subnet of the process' own instance if that was read.
    pub subnet: Option<SubnetId>,
    /// The cluster; its ID is empty if none was found.
    pub cluster: Cluster,
}

/// Why the environment could not be discovered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The metadata service did not answer.
    #[error(
        "cannot ask the instance metadata service for the {what}; outside EC2 set {key} in the cloud config"
    )]
    NoMetadata {
        /// The value that was requested.
        what: &'static str,
        /// Configuration key that makes the request unnecessary.
        key: &'static str,
        /// The error.
        source: AwsError,
    },
    /// The metadata service does not have the value.
    #[error("the instance metadata service knows no {what}; set {key} in the cloud config")]
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
        /// The error.
        source: AwsError,
    },
    /// The process' own instance is missing from the answer.
    #[error(
        "error finding instance {0}, whose tags name the cluster: there is none in this region and account"
    )]
    NoInstance(InstanceId),
    /// The tags contradict each other.
    #[error("tags of instance {id}: {why}")]
    Tags {
        /// ID of the process' own instance.
        id: InstanceId,
        /// The contradiction.
        why: String,
    },
}

impl EnvironmentError {
    /// Returns whether a retry may succeed, because AWS is unavailable or throttles. A metadata
    /// service that does not answer is final, because that is the normal case outside EC2.
    pub fn is_transient(&self) -> bool {
        let Self::Describe { source, .. } = self else {
            return false;
        };
        match &source.cause {
            AwsErrorCause::NotSent(_) => false,
            // Missing credentials count as no answer. They may arrive later, for example those of a
            // pod identity.
            _ => matches!(
                CloudError::from(source.clone()).kind(),
                ErrorKind::Transient | ErrorKind::Throttled
            ),
        }
    }
}

/// Discovers the environment; describes the process' own instance only if the cluster ID is not
/// configured.
///
/// # Errors
/// Region, VPC or instance are neither configured nor found, or cluster tags contradict each other.
/// An instance without cluster tags is not an error: see [`Cluster::id`].
pub async fn discover(
    settings: &Settings,
    client: &Client,
    metadata: &dyn Metadata,
    op: &Op,
) -> Result<AwsEnvironment, EnvironmentError> {
    let region = region(settings, metadata).await?;
    let mut vpc = settings.vpc.clone();
    let mut subnet = settings.subnet.clone();
    let cluster = match configured_cluster(settings) {
        Some(cluster) => cluster,
        None => {
            let instance = own_instance(client, metadata, op).await?;
            let cluster = cluster_of(&instance.tags)
                .map_err(|why| EnvironmentError::Tags { id: instance.id, why })?;
            // The configuration wins over what the own instance says.
            vpc = vpc.or(instance.vpc);
            subnet = subnet.or(instance.subnet);
            cluster
        }
    };
    let vpc = match vpc {
        Some(vpc) => vpc,
        None => vpc_of_interfaces(metadata).await?,
    };
    Ok(AwsEnvironment { region, vpc, subnet, cluster })
}

/// Returns the configured region, or else the one that the metadata service returns.
///
/// # Errors
/// The metadata service does not answer, or has no region.
pub async fn region(
    settings: &Settings,
    metadata: &dyn Metadata,
) -> Result<Arc<str>, EnvironmentError> {
    let what = "region";
    let key = "Region";
    if let Some(region) = &settings.region {
        return Ok((&**region).into());
    }
    if let Some(region) = get_metadata(metadata, REGION, what, key).await? {
        return Ok(region.into());
    }
    match get_metadata(metadata, ZONE, what, key).await? {
        Some(zone) => region_of_zone(&zone)
            .map(Into::into)
            .map_err(EnvironmentError::Zone),
        None => Err(EnvironmentError::NotInMetadata { what, key }),
    }
}

/// Derives the region from the name of a zone, which may be a Local Zone or Wavelength Zone.
///
/// # Errors
/// The name is not a zone's.
pub fn region_of_zone(zone: &str) -> Result<Box<str>, String> {
    static REGION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^([a-zA-Z]+-)+\d+").expect("a regular expression"));
    match REGION.find(zone) {
        Some(region) => Ok(region.as_str().into()),
        None => Err(format!("invalid AZ: {zone}")),
    }
}

fn configured_cluster(settings: &Settings) -> Option<Cluster> {
    let tag = settings.cluster_tag.as_deref();
    // If both are set, they are equal.
    let id = tag.or(settings.cluster_id.as_deref())?;
    Some(Cluster::new(id, tag.is_some()))
}

/// Reads the cluster from the tags of an instance; its ID is empty if there are none.
///
/// # Errors
/// The tags contradict each other.
fn cluster_of(tags: &Tags) -> Result<Cluster, String> {
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

async fn own_instance(
    client: &Client,
    metadata: &dyn Metadata,
    op: &Op,
) -> Result<Instance, EnvironmentError> {
    let what = "instance ID";
    let key = "KubernetesClusterID";
    let id = get_metadata(metadata, INSTANCE_ID, what, key)
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

/// Returns the VPC of the first interface that has one.
async fn vpc_of_interfaces(metadata: &dyn Metadata) -> Result<VpcId, EnvironmentError> {
    let what = "VPC";
    let key = "VPC";
    let macs = get_metadata(metadata, MACS, what, key)
        .await?
        .unwrap_or_default();
    for line in macs.lines() {
        let mac = line.trim().trim_end_matches('/');
        if mac.is_empty() {
            continue;
        }
        let path = format!("{MACS}{mac}/vpc-id");
        if let Some(vpc) = get_metadata(metadata, &path, what, key).await? {
            return Ok(vpc.into());
        }
    }
    Err(EnvironmentError::NotInMetadata { what, key })
}

/// Queries the metadata service; an empty answer counts as `None`.
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
