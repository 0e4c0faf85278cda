//! What the cluster owns: load balancers and security groups, each with the Service it was created
//! for. Floating IPs are not listed: one that is kept looks like an orphan.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind, Inventory, Op, OwnedObject, Owner, Progress};
use openstack_api::{
    neutron::SecurityGroup,
    octavia::{LoadBalancer, ProvisioningStatus},
};

use super::{
    LoadBalancers, floating_ip, model::ServiceKey, names, ownership::service_ownership,
    sync_state::pause,
};

const LOAD_BALANCER: &str = "load balancer";
const SECURITY_GROUP: &str = "security group";

#[async_trait]
impl Inventory for LoadBalancers {
    /// The name of the cluster is part of every name.
    fn cluster_id(&self, _: &Op) -> Box<str> {
        (&*self.reconciler.cluster).into()
    }

    /// Lists load balancers whose name and tags belong to one Service of this cluster, and security
    /// groups whose description does. A name that was cut does not show its owner, and a load
    /// balancer of several Services belongs to no single one.
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let api = self.reconciler.api(op);
        let load_balancers = api.load_balancers(&[]).await?;
        let listed = load_balancers.iter().filter_map(|load_balancer| {
            let created = load_balancer
                .created_at
                .as_deref()
                .and_then(|at| format!("{at}Z").parse().ok());
            let owner = self.load_balancer_owner(load_balancer)?;
            Some(OwnedObject {
                kind: Arc::from(LOAD_BALANCER),
                id: load_balancer.id.as_str().into(),
                owner,
                created,
            })
        });
        let groups = api.groups(&[]).await?;
        let groups = groups.iter().filter_map(|group| {
            let owner = self.security_group_owner(group)?;
            let created = group.standard.created_at.parse().ok();
            Some(OwnedObject {
                kind: Arc::from(SECURITY_GROUP),
                id: group.id.as_str().into(),
                owner,
                created,
            })
        });
        Ok(listed.chain(groups).collect())
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let api = self.reconciler.api(op);
        match &*object.kind {
            LOAD_BALANCER => {
                let Some(found) = api.load_balancer(&object.id).await? else {
                    return Ok(Progress::Done);
                };
                let waits = || {
                    let why =
                        format!("load balancer {} is {}", found.id, found.provisioning_status)
                            .into();
                    Ok(Progress::Pending { after: pause(op), why })
                };
                match found.provisioning_status {
                    ProvisioningStatus::Deleted => return Ok(Progress::Done),
                    ref status if status.is_pending() => return waits(),
                    _ => check(object, self.load_balancer_owner(&found).as_ref())?,
                }
                self.check_listeners(op, object, &found).await?;
                if let Some(port) = found.vip_port_id.as_deref() {
                    floating_ip::release(api, port).await?;
                }
                match api
                    .delete_load_balancer(&found.id, true, "nothing stands behind it")
                    .await
                {
                    Ok(()) => {
                        let why = format!("load balancer {} is being deleted", found.id).into();
                        Ok(Progress::Pending { after: pause(op), why })
                    }
                    Err(error) if error.is_immutable() => waits(),
                    Err(error) => Err(error.into()),
                }
            }
            SECURITY_GROUP => {
                let Some(found) = api.group(&object.id).await? else {
                    return Ok(Progress::Done);
                };
                check(object, self.security_group_owner(&found).as_ref())?;
                self.reconciler.security_groups.delete(api, &found).await
            }
            other => {
                Err(CloudError::invalid_input(format!("{other} {} is no kind of ours", object.id)))
            }
        }
    }
}

impl LoadBalancers {
    /// Returns the owner of a load balancer: the one Service that its tags name, else that of its
    /// name.
    fn load_balancer_owner(&self, load_balancer: &LoadBalancer) -> Option<Owner> {
        if !load_balancer.name.starts_with(names::PREFIX) {
            return None;
        }
        let mut tags = load_balancer
            .tags
            .iter()
            .filter(|tag| tag.starts_with(names::PREFIX));
        let name = match (tags.next(), tags.next()) {
            (None, _) => &load_balancer.name,
            (Some(tag), None) => tag,
            (Some(_), Some(_)) => return None,
        };
        let (cluster, namespace, name) = names::owner_of(name)?;
        let ours = *cluster == *self.reconciler.cluster;
        ours.then(|| Owner::Service { namespace: namespace.into(), name: name.into(), uid: None })
    }

    /// Checks that no other Service has a listener on a load balancer: its tags may be incomplete.
    async fn check_listeners(
        &self,
        op: &Op,
        object: &OwnedObject,
        load_balancer: &LoadBalancer,
    ) -> Result<(), CloudError> {
        let Owner::Service { namespace, name, .. } = &object.owner else {
            return Ok(());
        };
        let who = ServiceKey {
            namespace: (&**namespace).into(),
            name: (&**name).into(),
            uid: "".into(),
        };
        let ownership = service_ownership(&self.reconciler.cluster, &who, false, load_balancer);
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

    /// Returns the owner of a security group according to its description, which names the cluster.
    fn security_group_owner(&self, group: &SecurityGroup) -> Option<Owner> {
        let (service, cluster) = names::of_security_group(&group.standard.description)?;
        let (namespace, name) = service.split_once('/')?;
        let suffix = format!("-{namespace}-{name}");
        let uid = group
            .name
            .strip_prefix(names::GROUP_PREFIX)?
            .strip_suffix(&*suffix)?;
        let ours = *cluster == *self.reconciler.cluster;
        ours.then(|| Owner::Service {
            namespace: namespace.into(),
            name: name.into(),
            uid: Some(uid.into()),
        })
    }
}

fn check(object: &OwnedObject, owner: Option<&Owner>) -> Result<(), CloudError> {
    if owner == Some(&object.owner) {
        return Ok(());
    }
    let message =
        format!("{} {} is not owned for the same Service any more", object.kind, object.id);
    Err(CloudError::new(ErrorKind::Conflict, message))
}
