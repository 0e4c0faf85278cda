//! The security groups of load balancers.

use ccm_core::{check::list_names, k8s::ServiceView};

use super::{AwsFinding, Checks, Observed};
use crate::{
    api::ec2::SecurityGroup,
    lb::{model::ServiceKey, names, security_groups::classic_group_name},
    ownership_tags::Cluster,
};

impl Checks<'_> {
    /// Reports the own security groups of load balancers that have no tag of any cluster. Old versions
    /// of upstream created a group first and tagged it then, if they were allowed to.
    pub(super) fn check_balancer_groups(&mut self, observed: &Observed) {
        let cluster_id = self.scope.cluster.id();
        if cluster_id.is_empty() {
            return;
        }
        let mut untagged = Vec::new();
        for service in self.cluster.services.into_iter().flatten() {
            let groups = observed.groups.values();
            let own = groups.filter(|group| self.is_group_of(group, service));
            for group in own.filter(|group| !Cluster::any(&group.tags)) {
                untagged.push(group.id.to_string());
            }
        }
        if untagged.is_empty() {
            return;
        }
        let message = format!(
            "security groups of load balancers without the tag of cluster {cluster_id}: \
             aws ec2 create-tags --resources {} --tags Key=kubernetes.io/cluster/{cluster_id},Value=owned",
            untagged.join(" ")
        );
        self.add(AwsFinding::BalancerGroupUntagged.about(list_names(&untagged), message));
    }

    /// Returns true if a group has the name of the one for the load balancer of a Service.
    fn is_group_of(&self, group: &SecurityGroup, service: &ServiceView) -> bool {
        let owner = ServiceKey {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            uid: service.uid.clone(),
        };
        let classic = classic_group_name(&names::load_balancer(&service.uid));
        let network = names::security_group(self.op.cluster_name(), &owner);
        *group.name == *classic || *group.name == *network
    }
}
