//! Elastic Load Balancing: classic load balancers.

use super::{
    error::{ApiResult, invalid, refuse},
    lists::page,
    state::{AccountState, Classic},
    tags::MOST_NAMED,
};
use crate::api::{InstanceId, Page, Tags, elb};

const UNKNOWN: &str = "LoadBalancerNotFound";

impl AccountState {
    pub(super) fn describe_classic(
        &self,
        c: &elb::DescribeClassic,
    ) -> ApiResult<Page<elb::ClassicLoadBalancer>> {
        for name in &c.names {
            self.classic(name)?;
        }
        let found = self
            .classics
            .iter()
            .filter(|(name, _)| c.names.is_empty() || c.names.contains(name));
        let found = found.map(|(name, classic)| {
            let shown = elb::ClassicLoadBalancer {
                name: name.clone(),
                dns_name: classic.dns_name.clone(),
                instances: classic.instances.clone(),
                security_groups: classic.groups.clone(),
                created: Some(self.timestamp(classic.created.at)),
            };
            (name.to_string(), shown)
        });
        page(
            found.collect(),
            c.token.as_deref(),
            self.options.page_size.min(400),
            "ValidationError",
        )
    }

    pub(super) fn describe_classic_tags(
        &self,
        c: &elb::DescribeClassicTags,
    ) -> ApiResult<Vec<(Box<str>, Tags)>> {
        if !(1..=MOST_NAMED).contains(&c.names.len()) {
            return invalid(format!("From 1 to {MOST_NAMED} load balancers can be given"));
        }
        c.names
            .iter()
            .map(|name| Ok((name.clone(), self.classic(name)?.tags.clone())))
            .collect()
    }

    pub(super) fn register_classic(&mut self, c: &elb::RegisterClassic) -> ApiResult<()> {
        self.classic(&c.name)?;
        let unknown = |id: &&InstanceId| {
            self.instances
                .get(*id)
                .is_none_or(|instance| instance.terminated.is_some())
        };
        if let Some(id) = c.instances.iter().find(unknown) {
            return refuse("InvalidInstance", format!("Could not find EC2 instance {id}"));
        }
        if let Some(classic) = self.classics.get_mut(&c.name) {
            classic.instances.extend(c.instances.iter().cloned());
            classic.instances.sort();
            classic.instances.dedup();
        }
        Ok(())
    }

    pub(super) fn deregister_classic(&mut self, c: &elb::DeregisterClassic) -> ApiResult<()> {
        self.classic(&c.name)?;
        if let Some(classic) = self.classics.get_mut(&c.name) {
            classic.instances.retain(|id| !c.instances.contains(id));
        }
        Ok(())
    }

    pub(super) fn delete_classic(&mut self, c: &elb::DeleteClassic) {
        self.classics.remove(&c.name);
    }

    fn classic(&self, name: &str) -> ApiResult<&Classic> {
        match self.classics.get(name) {
            Some(classic) => Ok(classic),
            None => refuse(UNKNOWN, format!("There is no ACTIVE Load Balancer named '{name}'")),
        }
    }
}
