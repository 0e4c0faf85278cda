//! Where the process works and for which cluster: from the configuration, and where that says nothing, from the instance
//! that it runs on. With region, VPC and cluster ID configured nothing is asked, so that it works outside EC2.

use std::sync::{Arc, LazyLock};

use ccm_core::provider::{CloudError, ErrorKind, Op};
use regex::Regex;

use crate::{
    api::{
        AwsError, AwsErrorCause, InstanceId, Metadata, SubnetId, Tags, VpcId,
        ec2::{DescribeInstances, Instance},
    },
    client::Client,
    cluster::{CLUSTER_TAG_PREFIX, Cluster, LEGACY_CLUSTER_TAG},
    config::Settings,
};

/// Paths below `latest/meta-data/`.
const REGION: &str = "placement/region";
const ZONE: &str = "placement/availability-zone";
const INSTANCE_ID: &str = "instance-id";
const MACS: &str = "network/interfaces/macs/";

/// What the process has to know of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsEnvironment {
    /// Region, such as `us-west-2`.
    pub region: Arc<str>,
    /// The cluster's VPC.
    pub vpc: VpcId,
    /// `SubnetID`, or the subnet of the own instance where that had to be read.
    pub subnet: Option<SubnetId>,
    /// The cluster; without an ID where there is none to be found.
    pub cluster: Cluster,
}

/// What keeps the process from knowing itself.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The metadata service did not answer.
    #[error("cannot ask the instance metadata service for the {what}; outside EC2 set {key} in the cloud config")]
    NoMetadata {
        /// What it was asked for.
        what: &'static str,
        /// The key that makes the question unnecessary.
        key: &'static str,
        /// The failure.
        source: AwsError,
    },
    /// The metadata service knows no such thing.
    #[error("the instance metadata service knows no {what}; set {key} in the cloud config")]
    NotInMetadata {
        /// What it was asked for.
        what: &'static str,
        /// The key that makes the question unnecessary.
        key: &'static str,
    },
    /// The region cannot be derived from the zone.
    #[error("{0}")]
    Zone(String),
    /// The own instance cannot be described.
    #[error(
        "error finding instance {id}, whose tags name the cluster; with KubernetesClusterID in the cloud config they are not needed"
    )]
    Describe {
        /// The own instance.
        id: InstanceId,
        /// The failure.
        source: AwsError,
    },
    /// The own instance is not in the answer.
    #[error("error finding instance {0}, whose tags name the cluster: there is none in this region and account")]
    NoInstance(InstanceId),
    /// The tags contradict each other.
    #[error("tags of instance {id}: {why}")]
    Tags {
        /// The own instance.
        id: InstanceId,
        /// How.
        why: String,
    },
}

impl EnvironmentError {
    /// Tells whether the same question may have an answer later: AWS is down or throttles. That the metadata service does
    /// not answer is final, as it is outside EC2.
    pub fn is_transient(&self) -> bool {
        let Self::Describe { source, .. } = self else { return false };
        match &source.cause {
            AwsErrorCause::NotSent(_) => false,
            // Credentials that do not arrive have no answer either; they may, as those of a pod's identity do.
            _ => matches!(CloudError::from(source.clone()).kind(), ErrorKind::Transient | ErrorKind::Throttled),
        }
    }
}

/// Finds out everything; reads the own instance only for the cluster ID.
///
/// # Errors
/// Something is neither configured nor to be found. An instance without cluster tags is none: see
/// [`Cluster::id`].
pub async fn discover(
    settings: &Settings,
    client: &Client,
    metadata: &dyn Metadata,
    op: &Op,
) -> Result<AwsEnvironment, EnvironmentError> {
    let region = region(settings, metadata).await?;
    let (cluster, own) = match configured_cluster(settings) {
        Some(cluster) => (cluster, None),
        None => {
            let own = own_instance(client, metadata, op).await?;
            let cluster = cluster_of(&own.tags).map_err(|why| EnvironmentError::Tags { id: own.id.clone(), why })?;
            (cluster, Some(own))
        }
    };
    let (own_vpc, own_subnet) = own.map_or((None, None), |own| (own.vpc, own.subnet));
    let vpc = match settings.vpc.clone().or(own_vpc) {
        Some(vpc) => vpc,
        None => vpc_of_interfaces(metadata).await?,
    };
    Ok(AwsEnvironment { region, vpc, subnet: settings.subnet.clone().or(own_subnet), cluster })
}

/// Returns the region that is configured, or asks the metadata service for it.
///
/// # Errors
/// It does not answer, or knows none.
pub async fn region(settings: &Settings, metadata: &dyn Metadata) -> Result<Arc<str>, EnvironmentError> {
    let (what, key) = ("region", "Region");
    if let Some(region) = &settings.region {
        return Ok((&**region).into());
    }
    if let Some(region) = get_metadata(metadata, REGION, what, key).await? {
        return Ok(region.into());
    }
    match get_metadata(metadata, ZONE, what, key).await? {
        Some(zone) => region_of_zone(&zone).map(Into::into).map_err(EnvironmentError::Zone),
        None => Err(EnvironmentError::NotInMetadata { what, key }),
    }
}

/// Derives the region from the name of a zone, local and wavelength ones included.
///
/// # Errors
/// The name is not that of a zone.
pub fn region_of_zone(zone: &str) -> Result<Box<str>, String> {
    static REGION: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^([a-zA-Z]+-)+\d+").expect("a regular expression"));
    match REGION.find(zone) {
        Some(region) => Ok(region.as_str().into()),
        None => Err(format!("invalid AZ: {zone}")),
    }
}

fn configured_cluster(settings: &Settings) -> Option<Cluster> {
    let tag = settings.cluster_tag.as_deref();
    // They are equal where both are there.
    let id = tag.or(settings.cluster_id.as_deref())?;
    Some(Cluster::new(id, tag.is_some()))
}

/// Reads the cluster from the tags of an instance; it has no ID when there are none.
///
/// # Errors
/// They contradict each other.
fn cluster_of(tags: &Tags) -> Result<Cluster, String> {
    let mut ids = tags.keys().filter_map(|key| key.strip_prefix(CLUSTER_TAG_PREFIX)).filter(|id| !id.is_empty());
    let id = ids.next();
    if let (Some(one), Some(two)) = (id, ids.next()) {
        return Err(format!("Found multiple cluster tags with prefix {CLUSTER_TAG_PREFIX} ({one:?} and {two:?})"));
    }
    let legacy = tags.get(LEGACY_CLUSTER_TAG).map(|id| &**id).filter(|id| !id.is_empty());
    match (id, legacy) {
        (Some(id), Some(legacy)) if id != legacy => Err(format!("clusterID tags did not match: {id:?} vs {legacy:?}")),
        (id, legacy) => Ok(Cluster::new(id.or(legacy).unwrap_or_default(), legacy.is_some())),
    }
}

async fn own_instance(client: &Client, metadata: &dyn Metadata, op: &Op) -> Result<Instance, EnvironmentError> {
    let (what, key) = ("instance ID", "KubernetesClusterID");
    let id =
        get_metadata(metadata, INSTANCE_ID, what, key).await?.ok_or(EnvironmentError::NotInMetadata { what, key })?;
    let id = InstanceId::from(id);
    let request = DescribeInstances { ids: vec![id.clone()], ..DescribeInstances::default() };
    let answer = client.read(op, request).await;
    let page = answer.map_err(|source| EnvironmentError::Describe { id: id.clone(), source })?;
    page.items.into_iter().find(|instance| instance.id == id).ok_or(EnvironmentError::NoInstance(id))
}

/// The first interface that has a VPC decides.
async fn vpc_of_interfaces(metadata: &dyn Metadata) -> Result<VpcId, EnvironmentError> {
    let (what, key) = ("VPC", "VPC");
    let macs = get_metadata(metadata, MACS, what, key).await?.unwrap_or_default();
    for mac in macs.lines().map(|mac| mac.trim().trim_end_matches('/')).filter(|mac| !mac.is_empty()) {
        if let Some(vpc) = get_metadata(metadata, &format!("{MACS}{mac}/vpc-id"), what, key).await? {
            return Ok(vpc.into());
        }
    }
    Err(EnvironmentError::NotInMetadata { what, key })
}

/// Asks the metadata service; an empty answer is none.
async fn get_metadata(
    metadata: &dyn Metadata,
    path: &str,
    what: &'static str,
    key: &'static str,
) -> Result<Option<String>, EnvironmentError> {
    let answer = metadata.get(path).await;
    let text = answer.map_err(|source| EnvironmentError::NoMetadata { what, key, source })?;
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests;
