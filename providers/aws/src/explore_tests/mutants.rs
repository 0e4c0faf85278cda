//! Bugs, to see that they are found: a way to AWS that does to requests and answers what a provider
//! could do wrong.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::faulty_transport::FaultyTransport;
use crate::{
    api::{
        Action, AwsError, AwsErrorCause, Call, Page, Reply, RequestClass, Tags, Transport,
        ec2::{CreateRoute, DeleteRoute},
        elb::{AddElbTags, DeregisterTargets, DescribeTargetHealth},
    },
    client::ErrorClass,
};

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Load balancers and target groups get their tags after they are made.
    TagsLate,
    /// Each load balancer and target group gets a name of its own, and no tags by which it could be
    /// found.
    NewNames,
    /// Everything that has the name of the Service is taken for its.
    NamesAlone,
    /// A rule that could not be granted is forgotten.
    RuleForgotten,
    /// A full set of targets is registered after the old one was taken out.
    TargetsCleared,
    /// Who is told to come back later takes what was asked for as absent.
    ThrottledAsAbsent,
    /// A change without an answer counts as made.
    UnansweredAsDone,
    /// Security groups that are in use count as deleted.
    InUseAsDone,
    /// Tags of listeners are not read, and put on again and again.
    NeverEqual,
    /// A route is replaced by one deletion and one creation.
    RouteMoved,
    /// Any error about an instance counts as its absence.
    ErrorAsGone,
}

/// The way to AWS with a bug.
pub(super) struct MutantTransport {
    bug: Bug,
    lane: Arc<FaultyTransport>,
    number: Mutex<u32>,
}

impl MutantTransport {
    pub(super) fn new(bug: Bug, lane: Arc<FaultyTransport>) -> Self {
        Self { bug, lane, number: Mutex::default() }
    }

    async fn tags_late(&self, call: Call) -> Result<Reply, AwsError> {
        let (call, tags) = without_tags(call);
        let reply = self.lane.send(call).await?;
        let arn: Box<str> = match &reply {
            Reply::CreateLoadBalancer(balancer) => balancer.arn.as_str().into(),
            Reply::CreateTargetGroup(group) => group.arn.as_str().into(),
            _ => return Ok(reply),
        };
        self.lane
            .send(Call::AddElbTags(AddElbTags { arns: vec![arn], tags }))
            .await?;
        Ok(reply)
    }

    async fn new_names(&self, mut call: Call) -> Result<Reply, AwsError> {
        let number = {
            let mut number = self.number.lock();
            *number += 1;
            *number
        };
        match &mut call {
            Call::CreateLoadBalancer(c) => c.name = format!("a{number}").into(),
            Call::CreateTargetGroup(c) => c.name = format!("k8s-{number}").into(),
            _ => {}
        }
        self.tags_late(call).await
    }

    async fn targets_cleared(&self, call: Call) -> Result<Reply, AwsError> {
        let Call::RegisterTargets(mut all) = call else {
            return self.lane.send(call).await;
        };
        let asked = DescribeTargetHealth { arn: all.arn.clone() };
        if let Reply::DescribeTargetHealth(health) =
            self.lane.send(Call::DescribeTargetHealth(asked)).await?
        {
            let old: Vec<_> = health.into_iter().map(|one| one.target).collect();
            if !old.is_empty() {
                let clear = DeregisterTargets { arn: all.arn.clone(), targets: old.clone() };
                self.lane.send(Call::DeregisterTargets(clear)).await?;
                all.targets.extend(old);
            }
        }
        self.lane.send(Call::RegisterTargets(all)).await
    }

    async fn route_moved(&self, call: Call) -> Result<Reply, AwsError> {
        let Call::ReplaceRoute(c) = call else {
            return self.lane.send(call).await;
        };
        let delete = DeleteRoute { table: c.table.clone(), destination: c.destination };
        self.lane.send(Call::DeleteRoute(delete)).await?;
        let create = CreateRoute { table: c.table, destination: c.destination, target: c.target };
        self.lane.send(Call::CreateRoute(create)).await?;
        Ok(Reply::ReplaceRoute(()))
    }
}

#[async_trait]
impl Transport for MutantTransport {
    async fn send(&self, call: Call) -> Result<Reply, AwsError> {
        let action = call.action();
        match self.bug {
            Bug::TagsLate => self.tags_late(call).await,
            Bug::NewNames => self.new_names(call).await,
            Bug::TargetsCleared => self.targets_cleared(call).await,
            Bug::RouteMoved => self.route_moved(call).await,
            Bug::NamesAlone => {
                let mut reply = self.lane.send(call).await?;
                if let Reply::DescribeElbTags(all) = &mut reply {
                    let theirs = |tags: &Tags| tags.contains_key("kubernetes.io/cluster/theirs");
                    for (_, tags) in all.iter_mut().filter(|(_, tags)| theirs(tags)) {
                        tags.remove("kubernetes.io/cluster/theirs");
                        tags.insert("kubernetes.io/cluster/test".into(), "owned".into());
                    }
                }
                Ok(reply)
            }
            Bug::RuleForgotten => match self.lane.send(call).await {
                Err(_) if action == Action::AuthorizeSecurityGroupIngress => {
                    Ok(Reply::AuthorizeSecurityGroupIngress(()))
                }
                answer => answer,
            },
            Bug::ThrottledAsAbsent => match self.lane.send(call).await {
                Err(error) if ErrorClass::from_code(error.code()) == ErrorClass::Throttled => {
                    nothing(action).ok_or(error)
                }
                answer => answer,
            },
            Bug::UnansweredAsDone => match self.lane.send(call).await {
                Err(error)
                    if matches!(error.cause, AwsErrorCause::NoResponse(_))
                        && action.class() == RequestClass::Write =>
                {
                    done(action).ok_or(error)
                }
                answer => answer,
            },
            Bug::InUseAsDone => match self.lane.send(call).await {
                Err(error) if error.has_code("DependencyViolation") => {
                    Ok(Reply::DeleteSecurityGroup(()))
                }
                answer => answer,
            },
            Bug::NeverEqual => {
                let mut reply = self.lane.send(call).await?;
                if let Reply::DescribeElbTags(all) = &mut reply {
                    all.iter_mut()
                        .filter(|(arn, _)| arn.contains(":listener/"))
                        .for_each(|(_, tags)| tags.clear());
                }
                Ok(reply)
            }
            Bug::ErrorAsGone => self.lane.send(call).await.map_err(|error| match action {
                Action::DescribeInstances => {
                    AwsError::response(action, 400, "InvalidInstanceID.NotFound", "as if")
                }
                _ => error,
            }),
        }
    }
}

fn without_tags(mut call: Call) -> (Call, Tags) {
    let tags = match &mut call {
        Call::CreateLoadBalancer(c) => std::mem::take(&mut c.tags),
        Call::CreateTargetGroup(c) => std::mem::take(&mut c.tags),
        _ => Tags::new(),
    };
    (call, tags)
}

/// The answer that there is nothing.
fn nothing(action: Action) -> Option<Reply> {
    Some(match action {
        Action::DescribeLoadBalancers => Reply::DescribeLoadBalancers(Page::only(Vec::new())),
        Action::DescribeTargetGroups => Reply::DescribeTargetGroups(Page::only(Vec::new())),
        _ => return None,
    })
}

/// The answer to a change that answers nothing.
fn done(action: Action) -> Option<Reply> {
    Some(match action {
        Action::RegisterTargets => Reply::RegisterTargets(()),
        Action::DeregisterTargets => Reply::DeregisterTargets(()),
        Action::AuthorizeSecurityGroupIngress => Reply::AuthorizeSecurityGroupIngress(()),
        Action::RevokeSecurityGroupIngress => Reply::RevokeSecurityGroupIngress(()),
        Action::DeleteLoadBalancer => Reply::DeleteLoadBalancer(()),
        Action::DeleteTargetGroup => Reply::DeleteTargetGroup(()),
        Action::ModifyLoadBalancerAttributes => Reply::ModifyLoadBalancerAttributes(()),
        Action::CreateTags => Reply::CreateTags(()),
        Action::CreateRoute => Reply::CreateRoute(()),
        Action::DeleteRoute => Reply::DeleteRoute(()),
        _ => return None,
    })
}
