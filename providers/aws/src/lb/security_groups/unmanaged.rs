//! Tells the owner of a Service which rules have to be added by hand, because a security group is
//! not ours.

use std::{collections::BTreeSet, net::IpAddr};

use super::{UnmanagedGroups, plan::summary};
use crate::{api::ec2::Rule, lb::security_groups::desired_rules::is_mtu};

/// How many items a note lists: a note has at most 1 kB.
const FEW: usize = 5;

/// Describes what has to be opened by hand, and to whom.
pub(in crate::lb) fn unmanaged_note(left: &UnmanagedGroups, missing: &BTreeSet<IpAddr>) -> String {
    let mut what = Vec::new();
    if !left.groups.is_empty() {
        let groups = list_first(left.groups.iter());
        what.push(format!(
            "security groups of pods that are not tagged for this cluster are left alone: {groups}"
        ));
    }
    if !missing.is_empty() {
        what.push(format!(
            "no network interface in the VPC has the addresses {}",
            list_first(missing.iter())
        ));
    }
    let rules: Vec<Rule> = left
        .rules
        .iter()
        .filter(|rule| !is_mtu(rule))
        .cloned()
        .collect();
    if rules.is_empty() {
        what.join("; ")
    } else {
        format!("{}; let there in: {}", what.join("; "), summary(&rules))
    }
}

/// Lists the first few items.
fn list_first<T: ToString>(all: impl ExactSizeIterator<Item = T>) -> String {
    let more = all.len().saturating_sub(FEW);
    let first: Vec<_> = all.take(FEW).map(|one| one.to_string()).collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{more}", first.join(", "))
}
