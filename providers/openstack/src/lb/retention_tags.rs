//! Tags of load balancers that were let go or adopted.

use super::names;
use crate::api::octavia::LoadBalancer;

/// Tag of a load balancer that was let go and has not been adopted completely.
pub(super) const MARK: &str = "retained-load-balancer";
/// Prefix of a tag with the UID of a Service that let go. The security group of that Service is
/// still needed.
pub(super) const FORMER_UID: &str = "retained-by-uid-";
/// Prefix of a tag with the name that the load balancer had. Its listeners with this name as their tag
/// go with it.
pub(super) const FORMER_NAME: &str = "retained-from-";
/// Prefix of the tag with the UID of the Service that adopts the load balancer, or has adopted it.
pub(super) const ADOPTER_UID: &str = "adopted-by-uid-";

/// Returns true if a load balancer was let go, and has not been adopted completely.
pub(super) fn is_retained(load_balancer: &LoadBalancer) -> bool {
    load_balancer.tags.iter().any(|tag| tag == MARK)
}

/// Returns the UIDs of the Services that let go of a load balancer. There are none once it has been
/// adopted completely.
pub(super) fn former_uids(load_balancer: &LoadBalancer) -> impl Iterator<Item = &str> {
    let is_retained = is_retained(load_balancer);
    let tags = load_balancer.tags.iter().filter(move |_| is_retained);
    tags.filter_map(|tag| tag.strip_prefix(FORMER_UID))
}

/// Returns true if the Service with this UID let go of a load balancer.
pub(super) fn is_retained_by(load_balancer: &LoadBalancer, uid: &str) -> bool {
    former_uids(load_balancer).any(|former| former == uid)
}

/// Returns the UID of the Service that adopts a load balancer, or has adopted it.
pub(super) fn adopter_uid(load_balancer: &LoadBalancer) -> Option<&str> {
    let mut tags = load_balancer.tags.iter();
    tags.find_map(|tag| tag.strip_prefix(ADOPTER_UID))
}

/// Returns true if the Service with this UID adopts a load balancer, or has adopted it.
pub(super) fn is_adopted_by(load_balancer: &LoadBalancer, uid: &str) -> bool {
    adopter_uid(load_balancer) == Some(uid)
}

/// Returns true if another Service than the one with this UID adopts a load balancer, or has adopted it.
pub(super) fn is_adopted_by_other(load_balancer: &LoadBalancer, uid: &str) -> bool {
    adopter_uid(load_balancer).is_some_and(|adopter| adopter != uid)
}

/// Returns the tag of the load balancers that the Service with this UID let go of.
pub(super) fn former_uid_tag(uid: &str) -> String {
    format!("{FORMER_UID}{uid}")
}

/// Returns the tag of the load balancer that the Service with this UID adopts, or has adopted.
pub(super) fn adopter_uid_tag(uid: &str) -> String {
    format!("{ADOPTER_UID}{uid}")
}

/// Returns true if a tag only says who has adopted a load balancer.
pub(super) fn is_adopter_tag(tag: &str) -> bool {
    tag.starts_with(ADOPTER_UID)
}

/// Returns the tag of a load balancer that had this name.
pub(super) fn former_name_tag(name: &str) -> Box<str> {
    names::truncate(&format!("{FORMER_NAME}{name}"))
}

/// Returns the tags with the names that a load balancer had. There are none once it has been adopted
/// completely.
pub(super) fn former_name_tags(load_balancer: &LoadBalancer) -> Vec<Box<str>> {
    if !is_retained(load_balancer) {
        return Vec::new();
    }
    let tags = load_balancer.tags.iter();
    tags.filter(|tag| tag.starts_with(FORMER_NAME))
        .map(|tag| tag.as_str().into())
        .collect()
}
