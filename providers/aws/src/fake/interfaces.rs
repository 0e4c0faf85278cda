//! Network interfaces of load balancers.

use tokio::time::Instant;

use super::state::{AccountState, InterfaceOwner, NetworkInterface};
use crate::api::{EniId, SecurityGroupId, VpcId, elb::SubnetMapping};

impl AccountState {
    /// Updates the network interfaces of a load balancer after a change of its subnets or security
    /// groups.
    pub(super) fn place_interfaces_of(
        &mut self,
        holder: &InterfaceOwner,
        vpc: &VpcId,
        mappings: &[SubnetMapping],
        groups: &[SecurityGroupId],
    ) {
        let gone = Instant::now() + self.options.interfaces_linger;
        // First, update the existing interfaces; those in removed subnets linger for a while.
        for eni in self.enis.values_mut().filter(|eni| eni.holder == *holder) {
            if mappings.iter().any(|mapping| mapping.subnet == eni.subnet) {
                eni.groups = groups.to_vec();
            } else {
                eni.holder = InterfaceOwner::Leaving(gone);
            }
        }
        // Then create the missing ones.
        for mapping in mappings {
            if self
                .enis
                .values()
                .any(|eni| eni.holder == *holder && eni.subnet == mapping.subnet)
            {
                continue;
            }
            let asked = mapping.private_ipv4.map(|ip| ip.to_string().into());
            let eni = NetworkInterface {
                vpc: vpc.clone(),
                zone: self
                    .subnets
                    .get(&mapping.subnet)
                    .map(|subnet| subnet.zone.clone())
                    .unwrap_or_default(),
                private_dns_name: Box::default(),
                private_ips: asked
                    .or_else(|| self.pick_ip(&mapping.subnet))
                    .into_iter()
                    .collect(),
                ipv6: mapping
                    .ipv6
                    .iter()
                    .map(|ip| ip.to_string().into())
                    .collect(),
                prefixes: Vec::new(),
                groups: groups.to_vec(),
                source_dest_check: false,
                in_use: true,
                holder: holder.clone(),
                subnet: mapping.subnet.clone(),
            };
            let id = EniId::from(self.id("eni"));
            self.enis.insert(id.clone(), eni);
            let allocation = mapping.allocation.as_ref();
            if let Some(eip) = allocation.and_then(|id| self.eips.get_mut(id)) {
                eip.used_by = Some(id);
            }
        }
        self.advance();
    }

    /// Releases the network interfaces of a deleted load balancer, which linger for a while.
    pub(super) fn release_interfaces(&mut self, holder: &InterfaceOwner) {
        let gone = Instant::now() + self.options.interfaces_linger;
        for eni in self.enis.values_mut().filter(|eni| eni.holder == *holder) {
            eni.holder = InterfaceOwner::Leaving(gone);
        }
        self.advance();
    }
}
