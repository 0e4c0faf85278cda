//! What the cloud holds, read past the provider.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use ccm_aws::api::{
    InstanceId, Request, Tags, Transport,
    ec2::{DescribeInstances, DescribeSecurityGroups, InstanceState},
    elb::{
        DescribeElbTags, DescribeListenerAttributes, DescribeListeners,
        DescribeLoadBalancerAttributes, DescribeLoadBalancers, DescribeTargetGroupAttributes,
        DescribeTargetGroups, DescribeTargetHealth, Listener, LoadBalancer, TargetGroup,
        TargetHealth,
    },
};

/// Most ARNs whose tags are asked for at once.
const MOST_ARNS: usize = 20;

/// Asks AWS, past scripts. Nothing that the kit makes needs a second page.
pub(super) struct AccountInspector(pub(super) Arc<dyn Transport>);

impl AccountInspector {
    pub(super) async fn ask<R: Request>(&self, request: R) -> anyhow::Result<R::Reply> {
        let reply = self
            .0
            .send(request.into_call())
            .await
            .with_context(|| R::ACTION.name())?;
        R::from_reply(reply).with_context(|| format!("{}: another answer", R::ACTION.name()))
    }

    /// Returns the instances that are not terminated, by network interface.
    pub(super) async fn interfaces(&self) -> anyhow::Result<BTreeMap<String, InstanceId>> {
        let mut interfaces = BTreeMap::new();
        for instance in self.ask(DescribeInstances::default()).await?.items {
            if instance.state != Some(InstanceState::Terminated) {
                let own = instance
                    .interfaces
                    .iter()
                    .map(|eni| (eni.id.to_string(), instance.id.clone()));
                interfaces.extend(own);
            }
        }
        Ok(interfaces)
    }

    pub(super) async fn balancers(&self) -> anyhow::Result<Vec<LoadBalancer>> {
        Ok(self.ask(DescribeLoadBalancers::default()).await?.items)
    }

    pub(super) async fn listeners(&self, of: &LoadBalancer) -> anyhow::Result<Vec<Listener>> {
        Ok(self
            .ask(DescribeListeners { load_balancer: of.arn.clone(), token: None })
            .await?
            .items)
    }

    pub(super) async fn groups(&self) -> anyhow::Result<Vec<TargetGroup>> {
        Ok(self.ask(DescribeTargetGroups::default()).await?.items)
    }

    /// Returns the targets of a group, without those that are leaving.
    pub(super) async fn targets(&self, of: &TargetGroup) -> anyhow::Result<Vec<TargetHealth>> {
        let health = self
            .ask(DescribeTargetHealth { arn: of.arn.clone() })
            .await?;
        Ok(health
            .into_iter()
            .filter(|target| &*target.state != "draining")
            .collect())
    }

    async fn tags(&self, arns: &[Box<str>]) -> anyhow::Result<BTreeMap<Box<str>, Tags>> {
        let mut tags = BTreeMap::new();
        for arns in arns.chunks(MOST_ARNS) {
            tags.extend(self.ask(DescribeElbTags { arns: arns.to_vec() }).await?);
        }
        Ok(tags)
    }

    /// Lists everything that load balancers are made of. Each rule of a security group is a thing
    /// of its own, because those of nodes are shared by all load balancers.
    pub(super) async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let mut objects: BTreeMap<Box<str>, String> = BTreeMap::new();
        for balancer in self.balancers().await? {
            for listener in self.listeners(&balancer).await? {
                let attributes = self
                    .ask(DescribeListenerAttributes { arn: listener.arn.clone() })
                    .await?;
                objects.insert((&*listener.arn).into(), format!("{listener:?} {attributes:?}"));
            }
            let attributes = self
                .ask(DescribeLoadBalancerAttributes { arn: balancer.arn.clone() })
                .await?;
            let arn = (&*balancer.arn).into();
            // What time alone brings about is left out.
            let still = LoadBalancer { state: None, state_reason: Box::default(), ..balancer };
            objects.insert(arn, format!("{still:?} {attributes:?}"));
        }
        for group in self.groups().await? {
            let attributes = self
                .ask(DescribeTargetGroupAttributes { arn: group.arn.clone() })
                .await?;
            objects.insert((&*group.arn).into(), format!("{group:?} {attributes:?}"));
        }
        let tags = self
            .tags(&objects.keys().cloned().collect::<Vec<_>>())
            .await?;
        let tagged = objects.into_iter().map(|(arn, text)| {
            let tags = tags.get(&arn).cloned().unwrap_or_default();
            (arn.to_string(), format!("{text} {tags:?}"))
        });
        let mut objects: BTreeMap<_, _> = tagged.collect();
        for group in self.ask(DescribeSecurityGroups::default()).await?.items {
            for rule in &group.ingress {
                let id =
                    format!("{} {} {:?} {:?}", group.id, rule.protocol, rule.ports, rule.source);
                objects.insert(id, rule.description.to_string());
            }
            let text =
                format!("{} {} {:?} {:?}", group.name, group.description, group.vpc, group.tags);
            objects.insert(group.id.to_string(), text);
        }
        Ok(objects)
    }
}
