//! Names of the objects of a Service: those that upstream gives, so that upstream's objects are
//! found again.
//!
//! A name must distinguish Services, clusters and settings within 32 characters, hence the hashes.
//! Their inputs are concatenated without separators, as upstream does.

use std::fmt::Write as _;

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

use super::model::ServiceKey;
use crate::{
    api::elb::{ElbProtocol, HealthProtocol, Scheme, TargetType},
    ownership_tags::Cluster,
};

/// Maximum length of the name of a load balancer or target group.
pub const MAX_NAME_LENGTH: usize = 32;

/// Checks a requested load balancer name, and returns an error message if it is invalid.
pub fn name_error(name: &str) -> Option<&'static str> {
    let has_valid_ends = !name.is_empty()
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.starts_with("internal-");
    if name.chars().count() > MAX_NAME_LENGTH {
        Some("load balancer name cannot be longer than 32 characters")
    } else if !has_valid_ends || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        Some(
            "load balancer name must consist of letters, digits and inner hyphens, and not begin with internal-",
        )
    } else {
        None
    }
}

/// Returns the name of a Service's load balancer: `a` and the UID without dashes, cut to 32
/// characters. The whole UID does not fit.
pub fn load_balancer(uid: &str) -> Box<str> {
    let name: String = std::iter::once('a')
        .chain(uid.chars().filter(|c| *c != '-'))
        .take(MAX_NAME_LENGTH)
        .collect();
    name.into()
}

/// Returns true if a name looks like one of [`load_balancer`] for a UID of Kubernetes. Proves nothing
/// about whose the load balancer is.
pub fn is_generated(name: &str) -> bool {
    name.len() == MAX_NAME_LENGTH
        && name.starts_with('a')
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Returns the name that the AWS load balancer controller gives, for a Service that is claimed from
/// it.
pub fn lbc_load_balancer(cluster: &Cluster, owner: &ServiceKey, scheme: Scheme) -> Box<str> {
    readable(owner, &sha256(&[cluster.id(), &owner.uid, scheme.as_str()]))
}

/// Returns the name of a load balancer with this ARN, which ends in `loadbalancer/<type>/<name>/<id>`;
/// `None` if AWS would reject it.
pub fn of_arn(arn: &str) -> Option<&str> {
    let name = arn.rsplit('/').nth(1)?;
    name_error(name).is_none().then_some(name)
}

/// Returns the name in the ARN that a Service adopts; `None` if it is also one of these names of its own.
pub fn adopted_only<'a>(own: &[Box<str>], adopted_arn: Option<&'a str>) -> Option<&'a str> {
    let name = adopted_arn.and_then(of_arn)?;
    let is_own = own.iter().any(|own| **own == *name);
    (!is_own).then_some(name)
}

/// The settings that distinguish the target groups of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetGroupName {
    /// Port of the Service.
    pub port: u16,
    /// Node port, or the port of the target group for address targets.
    pub target_port: u16,
    /// Protocol of the target group.
    pub protocol: ElbProtocol,
    /// Type of its targets.
    pub target_type: TargetType,
    /// Protocol and interval of its health check at creation.
    pub health: Option<(HealthProtocol, u32)>,
}

/// Returns the name of a new target group.
pub fn target_group(cluster: &Cluster, owner: &ServiceKey, of: &TargetGroupName) -> Box<str> {
    let mut hash = Sha1::new();
    hash.update(cluster.id());
    hash.update(&*owner.namespace);
    hash.update(&*owner.name);
    hash.update(of.port.to_string());
    hash.update(of.target_port.to_string());
    hash.update(of.protocol.as_str());
    hash.update(of.target_type.as_str());
    let (protocol, interval) = of
        .health
        .map_or(("", 0), |(protocol, interval)| (protocol.as_str(), interval));
    hash.update(protocol);
    hash.update(interval.to_string());
    readable(owner, &hex(&hash.finalize()))
}

/// Returns the name of a new target group while another one has `name` and cannot be changed as
/// desired.
pub fn another_target_group(owner: &ServiceKey, name: &str) -> Box<str> {
    readable(owner, &hex(&Sha1::new().chain_update(name).finalize()))
}

/// Returns the name of a Service's managed security group; the cluster's name is the one in
/// `--cluster-name`, as upstream.
pub fn security_group(cluster_name: &str, owner: &ServiceKey) -> Box<str> {
    readable(owner, &sha256(&[cluster_name, &owner.name, &owner.namespace, &owner.uid]))
}

/// Returns the name of the security group that all load balancers share.
pub fn shared_security_group(cluster_name: &str) -> Box<str> {
    let sanitized: String = cluster_name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(232)
        .collect();
    format!("k8s-traffic-{sanitized}-{}", &sha256(&[cluster_name])[..10]).into()
}

/// Returns the name prefix of a Service's target groups: `k8s-<namespace>-<name>-`, each part cut.
pub fn prefix(owner: &ServiceKey) -> String {
    format!("k8s-{}-{}-", prefix_part(&owner.namespace), prefix_part(&owner.name))
}

fn prefix_part(text: &str) -> String {
    text.chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8)
        .collect()
}

fn readable(owner: &ServiceKey, hash: &str) -> Box<str> {
    format!("{}{}", prefix(owner), &hash[..10]).into()
}

fn sha256(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
