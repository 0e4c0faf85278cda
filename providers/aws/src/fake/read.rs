//! Reads the account in tests, regardless of faults and delays.

use ipnet::IpNet;

use super::{FakeAws, groups, listeners, state::InterfaceOwner};
use crate::api::{
    AllocationId, EniId, InstanceId, LoadBalancerArn, RouteTableId, SecurityGroupId, Tags,
    TargetGroupArn,
    classic::{ClassicAttributes, ClassicLoadBalancer},
    ec2::{self, Rule},
    elb::{self, Attributes},
};

impl FakeAws {
    /// Returns all load balancers.
    pub fn load_balancers(&self) -> Vec<elb::LoadBalancer> {
        let state = self.state.lock();
        state
            .balancers
            .iter()
            .map(|(arn, balancer)| state.show_balancer(arn, balancer))
            .collect()
    }

    /// Returns the load balancer with a name.
    pub fn load_balancer(&self, name: &str) -> Option<elb::LoadBalancer> {
        self.load_balancers()
            .into_iter()
            .find(|balancer| *balancer.name == *name)
    }

    /// Returns all target groups.
    pub fn target_groups(&self) -> Vec<elb::TargetGroup> {
        let state = self.state.lock();
        state
            .target_groups
            .iter()
            .map(|(arn, group)| state.show_target_group(arn, group))
            .collect()
    }

    /// Returns the targets of a target group as `id:port`, without those that are draining.
    pub fn targets(&self, arn: &TargetGroupArn) -> Vec<String> {
        let state = self.state.lock();
        let targets = state
            .target_groups
            .get(arn)
            .into_iter()
            .flat_map(|group| &group.targets);
        let kept = targets.filter(|(_, target)| target.draining.is_none());
        kept.map(|((id, port), _)| format!("{id}:{port}")).collect()
    }

    /// Returns the listeners of a load balancer, by port.
    pub fn listeners(&self, arn: &LoadBalancerArn) -> Vec<elb::Listener> {
        let state = self.state.lock();
        let of = state
            .listeners
            .iter()
            .filter(|(_, listener)| listener.load_balancer == *arn);
        let mut shown: Vec<_> = of
            .map(|(arn, listener)| listeners::show(arn, listener))
            .collect();
        shown.sort_by_key(|listener| listener.port);
        shown
    }

    /// Returns all security groups.
    pub fn security_groups(&self) -> Vec<ec2::SecurityGroup> {
        self.state
            .lock()
            .groups
            .iter()
            .map(|(id, group)| groups::show(id, group))
            .collect()
    }

    /// Returns the ingress rules of a security group, sorted.
    pub fn rules(&self, id: &SecurityGroupId) -> Vec<Rule> {
        self.state
            .lock()
            .groups
            .get(id)
            .map(|group| group.ingress.clone())
            .unwrap_or_default()
    }

    /// Returns the tags of an object, by ID or ARN.
    pub fn tags(&self, object: &str) -> Tags {
        let mut state = self.state.lock();
        let mut found = Tags::new();
        let ec2 = state.ec2_tags(object).cloned();
        state.each_elb_tags(&[object.into()], |tags| found = tags.clone());
        ec2.unwrap_or(found)
    }

    /// Returns true if there is an object with this ID, ARN or name of a classic load balancer.
    pub fn exists(&self, object: &str) -> bool {
        let mut state = self.state.lock();
        let mut found = state.ec2_tags(object).is_some() || state.classics.contains_key(object);
        state.each_elb_tags(&[object.into()], |_| found = true);
        found
    }

    /// Returns the instance to which a network interface is attached.
    pub fn instance_of(&self, id: &EniId) -> Option<InstanceId> {
        match &self.state.lock().enis.get(id)?.holder {
            InterfaceOwner::Instance(instance, _) => Some(instance.clone()),
            _ => None,
        }
    }

    /// Returns the attributes of a load balancer, target group or listener.
    pub fn attributes(&self, arn: &str) -> Attributes {
        let state = self.state.lock();
        let balancer = state.balancers.get(&arn.into()).map(|it| &it.attributes);
        let group = state
            .target_groups
            .get(&arn.into())
            .map(|it| &it.attributes);
        let listener = state.listeners.get(&arn.into()).map(|it| &it.attributes);
        balancer.or(group).or(listener).cloned().unwrap_or_default()
    }

    /// Returns the capacity units that are reserved for a load balancer.
    pub fn capacity_units(&self, arn: &LoadBalancerArn) -> Option<u32> {
        let state = self.state.lock();
        Some(state.balancers.get(arn)?.capacity_units)
    }

    /// Returns the routes of a table to instances or interfaces, by destination.
    pub fn routes(&self, id: &RouteTableId) -> Vec<ec2::Route> {
        let state = self.state.lock();
        let routes = state
            .tables
            .get(id)
            .into_iter()
            .flat_map(|table| &table.routes);
        let mut shown: Vec<_> = routes
            .map(|route| state.show_route(route))
            .filter(|it| it.gateway.is_none())
            .collect();
        shown.sort_by_key(|route| route.destination.as_ref().map(IpNet::to_string));
        shown
    }

    /// Returns true if the source/destination check of an instance's first interface is on; `None`
    /// without interface.
    pub fn source_dest_check(&self, id: &InstanceId) -> Option<bool> {
        let state = self.state.lock();
        let eni = state.instances.get(id)?.enis.first()?;
        state.enis.get(eni).map(|eni| eni.source_dest_check)
    }

    /// Returns the IP address of an allocation, and whether it is in use.
    pub fn address(&self, id: &AllocationId) -> Option<(Box<str>, bool)> {
        self.state
            .lock()
            .eips
            .get(id)
            .map(|eip| (eip.ip.clone(), eip.used_by.is_some()))
    }

    /// Returns all classic load balancers.
    pub fn classics(&self) -> Vec<ClassicLoadBalancer> {
        let state = self.state.lock();
        state
            .classics
            .iter()
            .map(|(name, classic)| state.show_classic(name, classic))
            .collect()
    }

    /// Returns attributes and tags of a classic load balancer, or none if it does not exist.
    pub fn classic_settings(&self, name: &str) -> (ClassicAttributes, Tags) {
        let state = self.state.lock();
        let classic = state.classics.get(name);
        classic.map_or_else(Default::default, |classic| {
            (classic.attributes.clone(), classic.tags.clone())
        })
    }
}
