//! Describes to the owner of a Service which rules must be added by hand, because we do not manage
//! the security group.

use std::{collections::BTreeSet, net::IpAddr};

use super::{UnmanagedGroups, plan::summary};
use crate::{api::ec2::Rule, lb::security_groups::desired_rules::is_mtu};

/// Maximum number of items that a note lists. A note has at most 1 kB.
const MAX_LISTED: usize = 5;

/// Describes the security groups, addresses and rules that must be opened by hand.
pub(in crate::lb) fn describe_unmanaged(
    unmanaged: &UnmanagedGroups,
    missing_addresses: &BTreeSet<IpAddr>,
) -> String {
    let mut parts = Vec::new();
    if !unmanaged.groups.is_empty() {
        let groups = list_first(unmanaged.groups.iter());
        parts.push(format!(
            "security groups of pods that are not tagged for this cluster are left alone: {groups}"
        ));
    }
    if !missing_addresses.is_empty() {
        parts.push(format!(
            "no network interface in the VPC has the addresses {}",
            list_first(missing_addresses.iter())
        ));
    }
    let text = parts.join("; ");
    let rules: Vec<Rule> = unmanaged
        .rules
        .iter()
        .filter(|rule| !is_mtu(rule))
        .cloned()
        .collect();
    if rules.is_empty() {
        text
    } else {
        format!("{text}; rules to add there: {}", summary(&rules))
    }
}

/// Lists the first few items.
fn list_first<T: ToString>(items: impl ExactSizeIterator<Item = T>) -> String {
    let omitted = items.len().saturating_sub(MAX_LISTED);
    let listed: Vec<_> = items
        .take(MAX_LISTED)
        .map(|item| item.to_string())
        .collect();
    let list = listed.join(", ");
    if omitted > 0 {
        format!("{list} and {omitted} more")
    } else {
        list
    }
}
