//! Tags of EC2 and Elastic Load Balancing.

use super::{
    error::{ApiResult, invalid, refuse},
    network::check_ec2_tags,
    state::{AccountState, CreationTime},
};
use crate::api::{Tags, ec2, elb};

/// Maximum number of names or ARNs in one request.
pub(super) const MOST_NAMED: usize = 20;

/// Maximum number of resources in one request to EC2.
const MOST_RESOURCES: usize = 1000;

/// Kind of request: describes and changes may disagree about whether a new object exists.
#[derive(Clone, Copy)]
enum Visibility {
    Describe,
    Change,
}

impl AccountState {
    pub(super) fn create_tags(&mut self, c: &ec2::CreateTags) -> ApiResult<()> {
        self.check_resources(&c.resources)?;
        let most = self.options.quotas.tags;
        for resource in &c.resources {
            if let Some(tags) = self.ec2_tags(resource) {
                check_ec2_tags(&c.tags, merged(tags, &c.tags), most)?;
            }
        }
        for resource in &c.resources {
            if let Some(tags) = self.ec2_tags(resource) {
                tags.extend(c.tags.clone());
            }
        }
        Ok(())
    }

    pub(super) fn delete_tags(&mut self, c: &ec2::DeleteTags) -> ApiResult<()> {
        self.check_resources(&c.resources)?;
        for resource in &c.resources {
            if let Some(tags) = self.ec2_tags(resource) {
                tags.retain(|key, value| c.tags.get(key) != Some(value));
            }
        }
        Ok(())
    }

    fn check_resources(&self, resources: &[Box<str>]) -> ApiResult<()> {
        if resources.is_empty() || resources.len() > MOST_RESOURCES {
            return refuse(
                "InvalidParameterValue",
                format!("From 1 to {MOST_RESOURCES} resources can be tagged"),
            );
        }
        let mut instances = Vec::new();
        for id in resources {
            let id: &str = id;
            let (known, code) = match id.split_once('-').map_or("", |(kind, _)| kind) {
                "i" => {
                    instances.push(id.into());
                    continue;
                }
                "sg" => {
                    let group = self.groups.get(&id.into());
                    (group.is_some_and(|group| group.created.found()), "InvalidGroup.NotFound")
                }
                "subnet" => (self.subnets.contains_key(&id.into()), "InvalidSubnetID.NotFound"),
                "rtb" => (self.tables.contains_key(&id.into()), "InvalidRouteTableID.NotFound"),
                "vpc" => (self.vpcs.contains_key(&id.into()), "InvalidVpcID.NotFound"),
                _ => (false, "InvalidID"),
            };
            if !known {
                return refuse(code, format!("The ID '{id}' is not valid"));
            }
        }
        self.known_instances(&instances, CreationTime::found)
    }

    pub(super) fn ec2_tags(&mut self, id: &str) -> Option<&mut Tags> {
        match id.split_once('-').map_or("", |(kind, _)| kind) {
            "i" => self.instances.get_mut(&id.into()).map(|it| &mut it.tags),
            "sg" => self.groups.get_mut(&id.into()).map(|it| &mut it.tags),
            "subnet" => self.subnets.get_mut(&id.into()).map(|it| &mut it.tags),
            "rtb" => self.tables.get_mut(&id.into()).map(|it| &mut it.tags),
            "vpc" => self.vpcs.get_mut(&id.into()).map(|it| &mut it.tags),
            _ => None,
        }
    }

    /// Returns true if an existing object has the requested tags, if the options compare tags.
    pub(super) fn same_tags(&self, have: &Tags, asked: &Tags) -> bool {
        !self.options.tags_are_settings || have == asked
    }

    pub(super) fn describe_elb_tags(
        &self,
        c: &elb::DescribeElbTags,
    ) -> ApiResult<Vec<(Box<str>, Tags)>> {
        check_arns(&c.arns)?;
        let tags = c
            .arns
            .iter()
            .map(|arn| Ok((arn.clone(), self.elb_tags(arn, Visibility::Describe)?.clone())));
        tags.collect()
    }

    pub(super) fn add_elb_tags(&mut self, c: &elb::AddElbTags) -> ApiResult<()> {
        check_arns(&c.arns)?;
        for arn in &c.arns {
            let have = self.elb_tags(arn, Visibility::Change)?;
            check_elb_tags(&c.tags, merged(have, &c.tags), self.options.quotas.tags)?;
        }
        self.each_elb_tags(&c.arns, |tags| tags.extend(c.tags.clone()));
        Ok(())
    }

    pub(super) fn remove_elb_tags(&mut self, c: &elb::RemoveElbTags) -> ApiResult<()> {
        check_arns(&c.arns)?;
        for arn in &c.arns {
            self.elb_tags(arn, Visibility::Change)?;
        }
        self.each_elb_tags(&c.arns, |tags| tags.retain(|key, _| !c.keys.contains(key)));
        Ok(())
    }

    pub(super) fn each_elb_tags(&mut self, arns: &[Box<str>], mut change: impl FnMut(&mut Tags)) {
        for arn in arns {
            let arn: &str = arn;
            let balancer = self.balancers.get_mut(&arn.into()).map(|it| &mut it.tags);
            let group = self
                .target_groups
                .get_mut(&arn.into())
                .map(|it| &mut it.tags);
            let listener = self.listeners.get_mut(&arn.into()).map(|it| &mut it.tags);
            if let Some(tags) = balancer.or(group).or(listener) {
                change(tags);
            }
        }
    }

    fn elb_tags(&self, arn: &str, view: Visibility) -> ApiResult<&Tags> {
        let kind = arn
            .rsplit(':')
            .next()
            .and_then(|path| path.split('/').next());
        match (kind, view) {
            (Some("loadbalancer"), Visibility::Describe) => {
                self.shown_balancer(&arn.into()).map(|it| &it.tags)
            }
            (Some("loadbalancer"), Visibility::Change) => {
                self.balancer(&arn.into()).map(|it| &it.tags)
            }
            (Some("targetgroup"), Visibility::Describe) => {
                self.shown_target_group(&arn.into()).map(|it| &it.tags)
            }
            (Some("targetgroup"), Visibility::Change) => {
                self.target_group(&arn.into()).map(|it| &it.tags)
            }
            (Some("listener"), Visibility::Describe) => {
                self.shown_listener(&arn.into()).map(|it| &it.tags)
            }
            (Some("listener"), Visibility::Change) => self.listener(&arn.into()).map(|it| &it.tags),
            _ => invalid(format!("'{arn}' is not a valid ARN")),
        }
    }
}

fn merged(have: &Tags, new: &Tags) -> usize {
    have.len() + new.keys().filter(|key| !have.contains_key(*key)).count()
}

fn check_arns(arns: &[Box<str>]) -> ApiResult<()> {
    match arns.len() {
        1..=MOST_NAMED => Ok(()),
        _ => invalid(format!("From 1 to {MOST_NAMED} resources can be given")),
    }
}

/// Checks the tags that a request adds to an object of Elastic Load Balancing.
pub(super) fn check_elb_tags(new: &Tags, total: usize, most: usize) -> ApiResult<()> {
    let allowed = |c: char| c.is_alphanumeric() || " +-=._:/@".contains(c);
    for (key, value) in new {
        let long = key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256;
        if long || !key.chars().all(allowed) || !value.chars().all(allowed) {
            return invalid(format!("The tag '{key}' has a key or value that is not valid"));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return invalid(format!("The tag key '{key}' is reserved"));
        }
    }
    if total > most {
        return refuse("TooManyTags", format!("The maximum number of tags is {most}"));
    }
    Ok(())
}
