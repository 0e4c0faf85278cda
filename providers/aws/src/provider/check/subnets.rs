//! The subnets that load balancers may use.

use ccm_core::{check::list_names, provider::Severity};

use super::{AwsFinding, Checks};
use crate::{
    api::ec2::Subnet,
    lb::plan::subnets::{FREE_ADDRESSES, ROLE_INTERNAL, ROLE_PUBLIC},
    ownership_tags::Cluster,
};

impl Checks<'_> {
    /// Checks tags and free addresses of the subnets, if load balancers are made at all.
    pub(super) fn check_subnets(&mut self, subnets: &[Subnet]) {
        if self.cluster.services.is_none() || subnets.is_empty() {
            return;
        }
        let object = format!("VPC {}", self.scope.vpc);
        let cluster = &self.scope.cluster;
        let own = subnets
            .iter()
            .filter(|subnet| cluster.has(&subnet.tags))
            .count();
        let candidates: Vec<&Subnet> = subnets
            .iter()
            .filter(|subnet| cluster.has(&subnet.tags) || !Cluster::any(&subnet.tags))
            .collect();
        if candidates.is_empty() {
            if self.scope.settings.subnet.is_none() {
                let message = format!("all {} subnets have tags of other clusters", subnets.len());
                self.add(AwsFinding::SubnetsOfOtherClusters.about(object, message));
            }
            return;
        }
        if own == 0 {
            let message = format!("no subnet has the tag of cluster {}", cluster.id());
            self.add(AwsFinding::SubnetsUntagged.about(&object, message));
        }
        let has_role = |subnet: &&&Subnet| {
            [ROLE_PUBLIC, ROLE_INTERNAL]
                .iter()
                .any(|role| subnet.tags.contains_key(*role))
        };
        let with_role: Vec<&Subnet> = candidates.iter().filter(has_role).copied().collect();
        if with_role.is_empty() {
            let message = format!("no subnet has the tag {ROLE_PUBLIC} or {ROLE_INTERNAL}");
            self.add(AwsFinding::SubnetRolesMissing.about(&object, message));
        }
        self.check_free_addresses(if with_role.is_empty() {
            &candidates
        } else {
            &with_role
        });
    }

    fn check_free_addresses(&mut self, subnets: &[&Subnet]) {
        // A subnet without IPv4 has no free addresses of this family.
        let is_full = |s: &&&Subnet| s.cidr.is_some() && s.free_ips < FREE_ADDRESSES;
        let full: Vec<String> = subnets
            .iter()
            .filter(is_full)
            .map(|subnet| subnet.id.to_string())
            .collect();
        if full.is_empty() {
            return self.ok(format!("subnets for load balancers: {}", subnets.len()));
        }
        let names = list_names(&full);
        let message = format!("subnets with less than {FREE_ADDRESSES} free addresses: {names}");
        let finding = AwsFinding::SubnetFull.about(names, message);
        self.add(if full.len() == subnets.len() {
            finding.with_severity(Severity::Error)
        } else {
            finding
        });
    }
}
