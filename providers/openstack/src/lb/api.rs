//! Requests for load balancers, one function each.

use ccm_core::provider::{CloudError, Op};
use openstack_api::{
    neutron::{
        FloatingIpCreate, FloatingIpUpdate, PortUpdate, SecurityGroupCreate,
        SecurityGroupRuleCreate,
    },
    octavia::{LoadBalancerCreate, MemberCreate},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    api::{
        neutron::{FloatingIp, Network, Port, SecurityGroup, SecurityGroupRule, Subnet},
        octavia::{HealthMonitor, Listener, LoadBalancer, LoadBalancerTree, Member, Pool},
    },
    client::{Call, Client, OpenStackError, Request, Rows},
};

/// Maximum number of servers in one query: each takes 47 characters of a request line.
const MAX_SERVERS: usize = 50;

/// The client during one operation.
#[derive(Clone, Copy)]
pub(super) struct Api<'a> {
    pub(super) client: &'a Client,
    pub(super) op: &'a Op,
}

/// Returns `None` for "not found"; other errors stay.
fn none_if_not_found<T>(result: Result<T, OpenStackError>) -> Result<Option<T>, OpenStackError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Api<'_> {
    async fn list<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, OpenStackError> {
        self.client
            .get_all(self.op, &Request::new(call, path).query(query))
            .await
    }

    /// Lists all objects of this process's project. Administrators would also see those of other
    /// projects, where another cluster may use the same names. Whoever needs to know that something
    /// does not exist must look at the unreadable rows.
    async fn list_own<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Rows<T>, OpenStackError> {
        let project = self.client.session().project().await?;
        let mut query = query.to_vec();
        query.extend(project.as_deref().map(|id| ("project_id", id)));
        self.list_rows(call, path, &query).await
    }

    /// Reads one row of what [`all_load_balancers`](Self::all_load_balancers) and
    /// [`all_groups`](Self::all_groups) read, which shows whether all can be read.
    pub(super) async fn check_own_lists(&self) -> Result<(), OpenStackError> {
        let project = self.client.session().project().await?;
        let mut query = vec![("limit", "1")];
        query.extend(project.as_deref().map(|id| ("project_id", id)));
        for (call, path) in [
            (Call::LoadBalancerList, "loadbalancers"),
            (Call::SecurityGroupList, "security-groups"),
        ] {
            let path = [path];
            let request = Request::new(call, &path).query(&query);
            self.client
                .get_page::<Value>(self.op, &request, None)
                .await?;
        }
        Ok(())
    }

    /// Lists objects. Whoever needs to know that something does not exist must look at the unreadable
    /// rows.
    async fn list_rows<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Rows<T>, OpenStackError> {
        self.client
            .get_rows(self.op, &Request::new(call, path).query(query))
            .await
    }

    async fn one<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
    ) -> Result<Option<T>, OpenStackError> {
        none_if_not_found(self.client.get(self.op, &Request::new(call, path)).await)
    }

    async fn delete_if_exists(
        &self,
        call: Call,
        path: &[&str],
        reason: &str,
    ) -> Result<(), OpenStackError> {
        none_if_not_found(
            self.client
                .delete(self.op, &Request::new(call, path).with_detail(reason))
                .await,
        )
        .map(drop)
    }

    pub(super) async fn load_balancer(
        &self,
        id: &str,
    ) -> Result<Option<LoadBalancer>, OpenStackError> {
        self.one(Call::LoadBalancerGet, &["loadbalancers", id])
            .await
    }

    /// Returns true if a load balancer belongs to this process's project. Administrators may also read
    /// those of other projects, which belong to other clusters even if the names are the same.
    ///
    /// # Errors
    /// Returns an error if Octavia does not show the project.
    pub(super) async fn is_of_own_project(
        &self,
        load_balancer: &LoadBalancer,
    ) -> Result<bool, CloudError> {
        let Some(own) = self.client.session().project().await? else {
            return Ok(true);
        };
        if load_balancer.project_id.is_empty() {
            return Err(CloudError::transient(format!(
                "Octavia does not show the project of load balancer {}",
                load_balancer.id
            )));
        }
        Ok(*load_balancer.project_id == *own)
    }

    pub(super) async fn load_balancers(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Vec<LoadBalancer>, OpenStackError> {
        self.list_own(Call::LoadBalancerList, &["loadbalancers"], query)
            .await?
            .complete()
    }

    /// Lists all load balancers of the project.
    pub(super) async fn all_load_balancers(&self) -> Result<Rows<LoadBalancer>, OpenStackError> {
        self.list_own(Call::LoadBalancerList, &["loadbalancers"], &[])
            .await
    }

    pub(super) async fn listeners(
        &self,
        load_balancer: &str,
    ) -> Result<Vec<Listener>, OpenStackError> {
        self.list(Call::ListenerList, &["listeners"], &[("loadbalancer_id", load_balancer)])
            .await
    }

    pub(super) async fn pools(&self, load_balancer: &str) -> Result<Vec<Pool>, OpenStackError> {
        self.list(Call::PoolList, &["pools"], &[("loadbalancer_id", load_balancer)])
            .await
    }

    pub(super) async fn members(&self, pool: &str) -> Result<Vec<Member>, OpenStackError> {
        self.list(Call::MemberList, &["pools", pool, "members"], &[])
            .await
    }

    pub(super) async fn monitor(&self, id: &str) -> Result<Option<HealthMonitor>, OpenStackError> {
        self.one(Call::MonitorGet, &["healthmonitors", id]).await
    }

    pub(super) async fn create_load_balancer(
        &self,
        body: &LoadBalancerCreate,
        reason: &str,
    ) -> Result<LoadBalancerTree, OpenStackError> {
        let path = ["loadbalancers"];
        let request = Request::new(Call::LoadBalancerCreate, &path).with_detail(reason);
        self.client
            .post(self.op, &request.object(body.name.as_deref().unwrap_or_default()), body)
            .await
    }

    pub(super) async fn delete_load_balancer(
        &self,
        id: &str,
        cascade: bool,
        reason: &str,
    ) -> Result<(), OpenStackError> {
        let path = ["loadbalancers", id];
        let query: &[(&str, &str)] = if cascade { &[("cascade", "true")] } else { &[] };
        let request = Request::new(Call::LoadBalancerDelete, &path)
            .query(query)
            .with_detail(reason);
        none_if_not_found(self.client.delete(self.op, &request).await).map(drop)
    }

    pub(super) async fn failover(&self, id: &str, reason: &str) -> Result<(), OpenStackError> {
        let path = ["loadbalancers", id, "failover"];
        let request = Request::new(Call::LoadBalancerFailover, &path).with_detail(reason);
        self.client
            .put_no_content(self.op, &request, &json!({}))
            .await
    }

    /// Creates a child of a load balancer. `named`: the object's name and the reason.
    pub(super) async fn create<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        body: Value,
        named: (&str, &str),
    ) -> Result<T, OpenStackError> {
        let (object, reason) = named;
        self.client
            .post(self.op, &Request::new(call, path).object(object).with_detail(reason), &body)
            .await
    }

    pub(super) async fn update<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        body: &(impl serde::Serialize + Sync),
        reason: &str,
    ) -> Result<T, OpenStackError> {
        self.client
            .put(self.op, &Request::new(call, path).with_detail(reason), body)
            .await
    }

    pub(super) async fn set_members(
        &self,
        pool: &str,
        members: &[MemberCreate],
        reason: &str,
    ) -> Result<(), OpenStackError> {
        let path = ["pools", pool, "members"];
        let request = Request::new(Call::MembersUpdate, &path).with_detail(reason);
        self.client
            .put_no_content(self.op, &request, &members)
            .await
    }

    pub(super) async fn delete(
        &self,
        call: Call,
        path: &[&str],
        reason: &str,
    ) -> Result<(), OpenStackError> {
        self.delete_if_exists(call, path, reason).await
    }

    pub(super) async fn floating_ips(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Vec<FloatingIp>, OpenStackError> {
        self.list(Call::FloatingIpList, &["floatingips"], query)
            .await
    }

    /// Lists floating IPs of this process's project. One that is found by its port is not limited to the
    /// project, because an administrator may have attached it.
    pub(super) async fn own_floating_ips(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Vec<FloatingIp>, OpenStackError> {
        self.list_own(Call::FloatingIpList, &["floatingips"], query)
            .await?
            .complete()
    }

    pub(super) async fn create_floating_ip(
        &self,
        body: &FloatingIpCreate,
        reason: &str,
    ) -> Result<FloatingIp, OpenStackError> {
        let path = ["floatingips"];
        let object = body.port_id.as_deref().unwrap_or_default();
        self.client
            .post(
                self.op,
                &Request::new(Call::FloatingIpCreate, &path)
                    .object(object)
                    .with_detail(reason),
                body,
            )
            .await
    }

    pub(super) async fn update_floating_ip(
        &self,
        id: &str,
        body: &FloatingIpUpdate,
        reason: &str,
    ) -> Result<FloatingIp, OpenStackError> {
        self.update(Call::FloatingIpUpdate, &["floatingips", id], body, reason)
            .await
    }

    pub(super) async fn delete_floating_ip(
        &self,
        id: &str,
        reason: &str,
    ) -> Result<(), OpenStackError> {
        self.delete_if_exists(Call::FloatingIpDelete, &["floatingips", id], reason)
            .await
    }

    pub(super) async fn networks(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Rows<Network>, OpenStackError> {
        self.list_rows(Call::NetworkList, &["networks"], query)
            .await
    }

    pub(super) async fn subnet(&self, id: &str) -> Result<Option<Subnet>, OpenStackError> {
        self.one(Call::SubnetGet, &["subnets", id]).await
    }

    pub(super) async fn subnets(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Vec<Subnet>, OpenStackError> {
        self.list(Call::SubnetList, &["subnets"], query).await
    }

    pub(super) async fn port(&self, id: &str) -> Result<Option<Port>, OpenStackError> {
        self.one(Call::PortGet, &["ports", id]).await
    }

    pub(super) async fn ports(&self, query: &[(&str, &str)]) -> Result<Vec<Port>, OpenStackError> {
        self.list(Call::PortList, &["ports"], query).await
    }

    /// Reads the ports of servers, many servers at a time.
    pub(super) async fn ports_of(&self, servers: &[&str]) -> Result<Vec<Port>, OpenStackError> {
        let mut found = Vec::new();
        for chunk in servers.chunks(MAX_SERVERS) {
            let query: Vec<_> = chunk.iter().map(|server| ("device_id", *server)).collect();
            found.extend(self.ports(&query).await?);
        }
        Ok(found)
    }

    /// Sets the security groups of a port, if it is unchanged since it was read. `None` if it does
    /// not exist.
    pub(super) async fn set_groups(
        &self,
        port: &Port,
        groups: Vec<String>,
        reason: &str,
    ) -> Result<Option<Port>, OpenStackError> {
        let path = ["ports", &*port.id];
        let request = Request::new(Call::PortUpdate, &path)
            .if_revision(port.revision_number)
            .with_detail(reason);
        let body = PortUpdate { security_groups: Some(groups), ..PortUpdate::default() };
        none_if_not_found(self.client.put(self.op, &request, &body).await)
    }

    pub(super) async fn delete_port_tag(
        &self,
        port: &str,
        tag: &str,
    ) -> Result<(), OpenStackError> {
        self.delete_if_exists(
            Call::PortTagDelete,
            &["ports", port, "tags", tag],
            "it names a security group that is deleted",
        )
        .await
    }

    pub(super) async fn groups(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Vec<SecurityGroup>, OpenStackError> {
        self.list_own(Call::SecurityGroupList, &["security-groups"], query)
            .await?
            .complete()
    }

    /// Lists all security groups of the project.
    pub(super) async fn all_groups(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Rows<SecurityGroup>, OpenStackError> {
        self.list_own(Call::SecurityGroupList, &["security-groups"], query)
            .await
    }

    pub(super) async fn group(&self, id: &str) -> Result<Option<SecurityGroup>, OpenStackError> {
        self.one(Call::SecurityGroupGet, &["security-groups", id])
            .await
    }

    pub(super) async fn create_group(
        &self,
        name: &str,
        description: &str,
    ) -> Result<SecurityGroup, OpenStackError> {
        let path = ["security-groups"];
        let body = SecurityGroupCreate {
            name: Some(name.into()),
            description: Some(description.into()),
            ..SecurityGroupCreate::default()
        };
        self.client
            .post(self.op, &Request::new(Call::SecurityGroupCreate, &path).object(name), &body)
            .await
    }

    pub(super) async fn delete_group(&self, id: &str, reason: &str) -> Result<(), OpenStackError> {
        self.delete_if_exists(Call::SecurityGroupDelete, &["security-groups", id], reason)
            .await
    }

    pub(super) async fn create_rules(
        &self,
        rules: &[SecurityGroupRuleCreate],
    ) -> Result<Vec<SecurityGroupRule>, OpenStackError> {
        let path = ["security-group-rules"];
        let objects: Vec<Box<str>> = rules
            .iter()
            .map(|rule| (&*rule.security_group_id).into())
            .collect();
        let request =
            Request::new(Call::SecurityGroupRulesCreate, &path).with_detail("rules are missing");
        self.client
            .post_batch(self.op, &request, &objects, &rules)
            .await
    }

    pub(super) async fn delete_rule(&self, id: &str) -> Result<(), OpenStackError> {
        self.delete_if_exists(
            Call::SecurityGroupRuleDelete,
            &["security-group-rules", id],
            "no Service port needs it",
        )
        .await
    }

    /// Returns true if a certificate is in Barbican.
    pub(super) async fn has_certificate(&self, reference: &str) -> Result<bool, OpenStackError> {
        let mut parts = reference.rsplit('/');
        let id = parts.next().unwrap_or_default();
        let (kind, call) = match parts.next() {
            Some("secrets") => ("secrets", Call::SecretGet),
            _ => ("containers", Call::ContainerGet),
        };
        Ok(self.one::<Value>(call, &[kind, id]).await?.is_some())
    }
}
