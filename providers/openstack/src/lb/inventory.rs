//! Lists the load balancers and security groups that the cluster owns, each with the Service that
//! it was created for. Floating IPs are not listed, because one that a user wants to keep looks
//! like an orphan.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind, Inventory, Op, OwnedObject, Owner, Progress};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    LoadBalancers, floating_ip_sync,
    model::ServiceKey,
    names,
    ownership::{created_at, service_ownership},
    retention_tags,
    sync_state::retry_delay,
};
use crate::api::{neutron::SecurityGroup, octavia::LoadBalancer};

const LOAD_BALANCER: &str = "load balancer";
const SECURITY_GROUP: &str = "security group";

#[async_trait]
impl Inventory for LoadBalancers {
    /// Returns the name of the cluster, which is part of every object's name.
    fn cluster_id(&self, _: &Op) -> Box<str> {
        (&*self.reconciler.cluster).into()
    }

    /// Lists load balancers whose name and tags belong to one Service of this cluster, and security
    /// groups whose description does. Leaves out objects whose name was truncated and so does not
    /// show the owner, and load balancers that several Services share.
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let api = self.reconciler.api(op);
        let load_balancers = api.all_load_balancers().await?;
        let is_complete = load_balancers.unreadable.is_empty();
        let load_balancers = load_balancers.rows;
        // The security groups of Services that let go of their load balancer are still needed.
        let former_uids: BTreeSet<&str> = load_balancers
            .iter()
            .flat_map(retention_tags::former_uids)
            .collect();
        let mut owned = Vec::new();
        for load_balancer in &load_balancers {
            if let Some(owner) = self.load_balancer_owner(load_balancer) {
                owned.push(OwnedObject {
                    kind: Arc::from(LOAD_BALANCER),
                    id: load_balancer.id.as_str().into(),
                    owner,
                    created: created_at(load_balancer),
                });
            }
        }
        for group in &api.all_groups(&[]).await?.rows {
            if let Some(owner) = self.security_group_owner(group)
                && is_complete
                && !uid_of(&owner).is_some_and(|uid| former_uids.contains(uid))
            {
                owned.push(OwnedObject {
                    kind: Arc::from(SECURITY_GROUP),
                    id: group.id.as_str().into(),
                    owner,
                    created: group.created_at.parse().ok(),
                });
            }
        }
        Ok(owned)
    }

    async fn check_readable(&self, op: &Op) -> Result<(), CloudError> {
        Ok(self.reconciler.api(op).check_own_lists().await?)
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let api = self.reconciler.api(op);
        match &*object.kind {
            LOAD_BALANCER => self.delete_owned_load_balancer(op, object).await,
            SECURITY_GROUP => {
                let Some(found) = api.group(&object.id).await? else {
                    return Ok(Progress::Done);
                };
                check_owner(object, self.security_group_owner(&found).as_ref())?;
                if let Some(uid) = uid_of(&object.owner)
                    && self.reconciler.is_group_of_retained(op, uid).await?
                {
                    let message = format!(
                        "security group {} is needed by a load balancer that was let go",
                        found.id
                    );
                    return Err(CloudError::new(ErrorKind::Conflict, message));
                }
                self.reconciler.security_groups.delete(api, &found).await
            }
            other => Err(CloudError::invalid_input(format!(
                "{other} {} is of an unknown kind",
                object.id
            ))),
        }
    }
}

impl LoadBalancers {
    async fn delete_owned_load_balancer(
        &self,
        op: &Op,
        object: &OwnedObject,
    ) -> Result<Progress, CloudError> {
        let api = self.reconciler.api(op);
        let Some(load_balancer) = api.load_balancer(&object.id).await? else {
            return Ok(Progress::Done);
        };
        let status = &load_balancer.provisioning_status;
        if *status == ProvisioningStatus::Deleted {
            return Ok(Progress::Done);
        }
        let busy = format!("load balancer {} is {status}", load_balancer.id);
        if status.is_pending() {
            return Ok(delete_later(op, busy));
        }
        check_owner(object, self.load_balancer_owner(&load_balancer).as_ref())?;
        self.check_listeners(op, object, &load_balancer).await?;
        if let Some(port) = &load_balancer.vip_port_id {
            // After the cluster was renamed, the former name's floating IP stays.
            let cluster = Some(&*self.reconciler.cluster);
            floating_ip_sync::release(api, port, cluster).await?;
        }
        let reason = "its Service does not exist";
        match api
            .delete_load_balancer(&load_balancer.id, true, reason)
            .await
        {
            Ok(()) => {
                let reason = format!("load balancer {} is being deleted", load_balancer.id);
                Ok(delete_later(op, reason))
            }
            Err(error) if error.is_immutable() => Ok(delete_later(op, busy)),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the owner of a load balancer: the only Service in its tags, or else in its name.
    fn load_balancer_owner(&self, load_balancer: &LoadBalancer) -> Option<Owner> {
        if !load_balancer.name.starts_with(names::PREFIX)
            || retention_tags::is_retained(load_balancer)
        {
            return None;
        }
        let mut tags = load_balancer
            .tags
            .iter()
            .filter(|tag| tag.starts_with(names::PREFIX));
        let name = tags.next().unwrap_or(&load_balancer.name);
        let is_shared = tags.next().is_some();
        let (cluster, namespace, name) = names::owner_of(name)?;
        if is_shared || *cluster != *self.reconciler.cluster {
            return None;
        }
        Some(Owner::Service { namespace: namespace.into(), name: name.into(), uid: None })
    }

    /// Checks that no other Service has a listener on a load balancer, because the tags may be
    /// incomplete.
    async fn check_listeners(
        &self,
        op: &Op,
        object: &OwnedObject,
        load_balancer: &LoadBalancer,
    ) -> Result<(), CloudError> {
        let Owner::Service { namespace, name, .. } = &object.owner else {
            return Ok(());
        };
        let service = ServiceKey {
            namespace: (&**namespace).into(),
            name: (&**name).into(),
            uid: "".into(),
        };
        let ownership = service_ownership(&self.reconciler.cluster, &service, false, load_balancer);
        if self
            .reconciler
            .has_other_services(op, &ownership, &load_balancer.id)
            .await?
        {
            let message =
                format!("load balancer {} has listeners of other Services", load_balancer.id);
            return Err(CloudError::new(ErrorKind::Conflict, message));
        }
        Ok(())
    }

    /// Returns the owner of a security group, according to its description and name.
    fn security_group_owner(&self, group: &SecurityGroup) -> Option<Owner> {
        let (service, cluster) = names::parse_security_group_description(&group.description)?;
        let (namespace, name) = service.split_once('/')?;
        let suffix = format!("-{namespace}-{name}");
        let uid = group
            .name
            .strip_prefix(names::GROUP_PREFIX)?
            .strip_suffix(&*suffix)?;
        if *cluster != *self.reconciler.cluster {
            return None;
        }
        Some(Owner::Service {
            namespace: namespace.into(),
            name: name.into(),
            uid: Some(uid.into()),
        })
    }
}

fn uid_of(owner: &Owner) -> Option<&str> {
    match owner {
        Owner::Service { uid, .. } => uid.as_deref(),
        _ => None,
    }
}

fn delete_later(op: &Op, reason: String) -> Progress {
    Progress::Pending { after: retry_delay(op), reason: reason.into() }
}

/// Checks that an object still belongs to the Service for which it was listed.
fn check_owner(object: &OwnedObject, owner: Option<&Owner>) -> Result<(), CloudError> {
    if owner == Some(&object.owner) {
        return Ok(());
    }
    let message =
        format!("{} {} is not owned for the same Service any more", object.kind, object.id);
    Err(CloudError::new(ErrorKind::Conflict, message))
}
