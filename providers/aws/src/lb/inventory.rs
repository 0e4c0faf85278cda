//! Lists and deletes the load balancers, target groups and security groups that the cluster owns,
//! to find orphans.

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind, Inventory, Op, OwnedObject, Owner, Progress};

use crate::{
    api::{
        AwsError, Filter, LoadBalancerArn, SecurityGroupId, Tags, TargetGroupArn,
        ec2::{DescribeNetworkInterfaces, DescribeSecurityGroups, SecurityGroup},
        elb::{
            DeleteLoadBalancer, DeleteTargetGroup, DescribeLoadBalancerAttributes,
            DescribeLoadBalancers, DescribeTargetGroups, MAX_TAGGED,
        },
    },
    lb::{
        NetworkLoadBalancers,
        classic::inventory::CLASSIC_LOAD_BALANCER,
        model::ServiceKey,
        observe::listing,
        retry_delay,
        security_groups::{self, classic::service_of_group},
    },
    ownership_tags::{ADOPTER_TAG, OTHER_CONTROLLER_TAG, RETAINED_TAG, SERVICE_TAG},
};

const LOAD_BALANCER: &str = "load balancer";
const TARGET_GROUP: &str = "target group";
const SECURITY_GROUP: &str = "security group";

#[async_trait]
impl Inventory for NetworkLoadBalancers {
    /// Returns the ID in the ownership tags, which does not depend on `--cluster-name`.
    fn cluster_id(&self, _: &Op) -> Box<str> {
        self.reconciler.scope.cluster.id().into()
    }

    /// Lists objects with the cluster's tag with value `owned` and the name of a Service. Other
    /// objects with the cluster's tag, such as security groups of nodes, were not created for
    /// Services.
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let listing = self.reconciler.observer.listings.fresh(op).await?;
        let mut owned = Vec::new();
        for load_balancer in &listing.load_balancers {
            let arn = load_balancer.arn.as_str();
            if let Some(owner) = listing.tags.get(arn).and_then(|tags| self.owner(tags)) {
                let object = owned_object(LOAD_BALANCER, arn, owner);
                owned.push(OwnedObject { created: load_balancer.created, ..object });
            }
        }
        for group in &listing.target_groups {
            let arn = group.arn.as_str();
            if let Some(owner) = listing.tags.get(arn).and_then(|tags| self.owner(tags)) {
                owned.push(owned_object(TARGET_GROUP, arn, owner));
            }
        }
        for group in self.list_security_groups(op).await? {
            if let Some(owner) = self.group_owner(&group) {
                owned.push(owned_object(SECURITY_GROUP, &group.id, owner));
            }
        }
        owned.extend(self.list_owned_classics(op).await?);
        Ok(owned)
    }

    /// Reads one page of each kind of object, and the tags of a few of them.
    async fn check_readable(&self, op: &Op) -> Result<(), CloudError> {
        let scope = &self.reconciler.scope;
        let load_balancers = scope
            .client
            .read(op, DescribeLoadBalancers::default())
            .await?;
        let target_groups = scope
            .client
            .read(op, DescribeTargetGroups::default())
            .await?;
        let arns = load_balancers.items.iter().map(|found| found.arn.as_str());
        let arns = arns.chain(target_groups.items.iter().map(|found| found.arn.as_str()));
        listing::list_tags(scope, op, arns.take(MAX_TAGGED).map(Into::into).collect()).await?;
        if let Some(request) = self.cluster_groups() {
            scope.client.read(op, request).await?;
        }
        self.check_classics_readable(op).await
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let scope = &self.reconciler.scope;
        if &*object.kind == SECURITY_GROUP {
            return self.delete_security_group(op, object).await;
        }
        if &*object.kind == CLASSIC_LOAD_BALANCER {
            return self.delete_owned_classic(op, object).await;
        }
        let tags = listing::list_tags(scope, op, vec![object.id.clone()]).await?;
        match tags.get(&object.id) {
            Some(tags) => self.check_owner(object, tags)?,
            None => return Ok(Progress::Done),
        }
        let reason = "no Service needs it";
        let deleted = match &*object.kind {
            LOAD_BALANCER => {
                let arn = LoadBalancerArn::from(&*object.id);
                self.check_protection(op, &arn).await?;
                // Remove the rules in security groups of nodes first. They contain the name of the
                // load balancer, and could not be identified without it.
                if let Some(name) = load_balancer_name(&object.id) {
                    self.reconciler
                        .deps
                        .security_groups
                        .remove_node_rules(op, name)
                        .await?;
                }
                scope
                    .client
                    .write(op, DeleteLoadBalancer { arn }, reason)
                    .await
            }
            TARGET_GROUP => {
                let arn = TargetGroupArn::from(&*object.id);
                scope
                    .client
                    .write(op, DeleteTargetGroup { arn }, reason)
                    .await
            }
            other => {
                return Err(CloudError::invalid_input(format!(
                    "cannot delete {}: unknown kind {other}",
                    object.id
                )));
            }
        };
        deletion_progress(op, object, deleted)
    }
}

impl NetworkLoadBalancers {
    /// Lists the security groups of the VPC with the cluster's tag; none if the cluster has no ID.
    async fn list_security_groups(&self, op: &Op) -> Result<Vec<SecurityGroup>, CloudError> {
        let scope = &self.reconciler.scope;
        let Some(request) = self.cluster_groups() else {
            return Ok(Vec::new());
        };
        let mut groups: Vec<SecurityGroup> = scope
            .client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await?;
        groups.retain(|group| group.vpc.as_ref() == Some(&scope.vpc));
        Ok(groups)
    }

    /// Returns the request for security groups with the cluster's tag; `None` if the cluster has no
    /// ID.
    fn cluster_groups(&self) -> Option<DescribeSecurityGroups> {
        let filters = vec![self.reconciler.scope.cluster.filter()?];
        Some(DescribeSecurityGroups { filters, ..DescribeSecurityGroups::default() })
    }

    /// Returns the owner of an object according to its tags; `None` if it was not created for a
    /// Service.
    pub(super) fn owner(&self, tags: &Tags) -> Option<Owner> {
        // What is kept is nobody's, also while it is being let go or adopted.
        let is_kept = tags.contains_key(RETAINED_TAG);
        if !self.reconciler.scope.cluster.owns(tags)
            || tags.contains_key(OTHER_CONTROLLER_TAG)
            || is_kept
        {
            return None;
        }
        let (namespace, name) = tags.get(SERVICE_TAG)?.split_once('/')?;
        Some(Owner::Service {
            namespace: namespace.into(),
            name: name.into(),
            uid: tags.get(ADOPTER_TAG).cloned(),
        })
    }

    /// Checks that an object still belongs to the Service for which it was listed.
    pub(super) fn check_owner(&self, object: &OwnedObject, tags: &Tags) -> Result<(), CloudError> {
        if self.owner(tags).as_ref() == Some(&object.owner) {
            return Ok(());
        }
        let message =
            format!("{} {} no longer belongs to the same Service", object.kind, object.id);
        Err(CloudError::new(ErrorKind::Conflict, message))
    }

    /// Checks that a load balancer has no deletion protection, before anything of it is removed.
    async fn check_protection(&self, op: &Op, arn: &LoadBalancerArn) -> Result<(), CloudError> {
        let request = DescribeLoadBalancerAttributes { arn: arn.clone() };
        let attributes = match self.reconciler.scope.client.read(op, request).await {
            Err(error) if listing::is_not_found(&error) => return Ok(()),
            result => result?,
        };
        let protection = attributes.get("deletion_protection.enabled");
        if protection.is_some_and(|value| &**value == "true") {
            let message = format!("load balancer {arn} has deletion protection");
            return Err(
                CloudError::new(ErrorKind::Conflict, message).with_reason("DeletionProtected")
            );
        }
        Ok(())
    }

    /// Returns true if a load balancer or a network interface has a security group.
    pub(super) async fn is_group_used(
        &self,
        op: &Op,
        id: &SecurityGroupId,
    ) -> Result<bool, CloudError> {
        let scope = &self.reconciler.scope;
        // The interfaces of a new load balancer may not show yet.
        let load_balancers = listing::list_load_balancers(scope, op).await?;
        if load_balancers
            .iter()
            .any(|load_balancer| load_balancer.security_groups.contains(id))
        {
            return Ok(true);
        }
        let filters = vec![Filter::new("group-id", [&**id])];
        let request = DescribeNetworkInterfaces { filters, token: None };
        let interfaces = scope
            .client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await?;
        Ok(!interfaces.is_empty())
    }

    async fn delete_security_group(
        &self,
        op: &Op,
        object: &OwnedObject,
    ) -> Result<Progress, CloudError> {
        let id = SecurityGroupId::from(&*object.id);
        let request =
            DescribeSecurityGroups { ids: vec![id.clone()], ..DescribeSecurityGroups::default() };
        let found = match self.reconciler.scope.client.read(op, request).await {
            Ok(page) => page.items.into_iter().find(|group| group.id == id),
            Err(error) if error.has_code("InvalidGroup.NotFound") => None,
            Err(error) => return Err(error.into()),
        };
        let Some(group) = found else {
            return Ok(Progress::Done);
        };
        if service_of_group(&group).is_some() {
            return self.delete_owned_classic_group(op, object, &group).await;
        }
        self.check_owner(object, &group.tags)?;
        // The rules that refer to the group are removed before the group. Whoever still uses the
        // group needs them, such as a load balancer with deletion protection.
        if self.is_group_used(op, &id).await? {
            return Ok(security_groups::in_use(op, &id));
        }
        let Owner::Service { namespace, name, uid } = &object.owner else {
            return Ok(Progress::Done);
        };
        let owner = ServiceKey {
            namespace: (&**namespace).into(),
            name: (&**name).into(),
            uid: uid.clone().unwrap_or_default(),
        };
        self.reconciler
            .deps
            .security_groups
            .clean_up_detached(op, &owner, &[id])
            .await
    }
}

fn owned_object(kind: &str, id: &str, owner: Owner) -> OwnedObject {
    OwnedObject { kind: kind.into(), id: id.into(), owner, created: None }
}

/// Returns a load balancer's name from its ARN, which ends in `loadbalancer/<type>/<name>/<id>`.
fn load_balancer_name(arn: &str) -> Option<&str> {
    arn.rsplit('/').nth(1).filter(|name| !name.is_empty())
}

fn deletion_progress(
    op: &Op,
    object: &OwnedObject,
    deleted: Result<(), AwsError>,
) -> Result<Progress, CloudError> {
    match deleted {
        Ok(()) => Ok(Progress::Done),
        Err(error) if listing::is_not_found(&error) => Ok(Progress::Done),
        Err(error) if error.has_code("ResourceInUse") => {
            let reason = format!("{} {} is in use", object.kind, object.id).into();
            Ok(Progress::Pending { after: retry_delay::object_in_use(op), reason })
        }
        Err(error) => Err(error.into()),
    }
}
