//! Requests about load balancers, each by its name.

use ccm_core::provider::Op;
use openstack_api::{
    neutron::{
        FloatingIp, FloatingIpCreate, FloatingIpUpdate, Network, Port, PortUpdate, SecurityGroup, SecurityGroupCreate,
        SecurityGroupRule, SecurityGroupRuleCreate, Subnet,
    },
    octavia::{
        HealthMonitor, Listener, LoadBalancer, LoadBalancerCreate, LoadBalancerTree, Member, MemberCreate, Pool,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{Call, Client, OsError, Request};

/// Most servers in one query: each takes 47 characters of a request line.
const MOST_SERVERS: usize = 50;

/// The client in the course of one operation.
#[derive(Clone, Copy)]
pub(super) struct Api<'a> {
    pub(super) client: &'a Client,
    pub(super) op: &'a Op,
}

/// Nothing, if it is not there; other errors stay.
fn maybe<T>(result: Result<T, OsError>) -> Result<Option<T>, OsError> {
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
    ) -> Result<Vec<T>, OsError> {
        self.client.get_all(self.op, &Request::new(call, path).query(query)).await
    }

    async fn one<T: DeserializeOwned>(&self, call: Call, path: &[&str]) -> Result<Option<T>, OsError> {
        maybe(self.client.get(self.op, &Request::new(call, path)).await)
    }

    async fn gone(&self, call: Call, path: &[&str], why: &str) -> Result<(), OsError> {
        maybe(self.client.delete(self.op, &Request::new(call, path).because(why)).await).map(drop)
    }

    pub(super) async fn balancer(&self, id: &str) -> Result<Option<LoadBalancer>, OsError> {
        self.one(Call::LoadBalancerGet, &["loadbalancers", id]).await
    }

    pub(super) async fn balancers(&self, query: &[(&str, &str)]) -> Result<Vec<LoadBalancer>, OsError> {
        self.list(Call::LoadBalancerList, &["loadbalancers"], query).await
    }

    pub(super) async fn listeners(&self, balancer: &str) -> Result<Vec<Listener>, OsError> {
        self.list(Call::ListenerList, &["listeners"], &[("loadbalancer_id", balancer)]).await
    }

    pub(super) async fn pools(&self, balancer: &str) -> Result<Vec<Pool>, OsError> {
        self.list(Call::PoolList, &["pools"], &[("loadbalancer_id", balancer)]).await
    }

    pub(super) async fn members(&self, pool: &str) -> Result<Vec<Member>, OsError> {
        self.list(Call::MemberList, &["pools", pool, "members"], &[]).await
    }

    pub(super) async fn monitor(&self, id: &str) -> Result<Option<HealthMonitor>, OsError> {
        self.one(Call::MonitorGet, &["healthmonitors", id]).await
    }

    pub(super) async fn create_balancer(
        &self,
        body: &LoadBalancerCreate,
        why: &str,
    ) -> Result<LoadBalancerTree, OsError> {
        let path = ["loadbalancers"];
        let request = Request::new(Call::LoadBalancerCreate, &path).because(why);
        self.client.post(self.op, &request.object(body.name.as_deref().unwrap_or_default()), body).await
    }

    pub(super) async fn delete_balancer(&self, id: &str, cascade: bool, why: &str) -> Result<(), OsError> {
        let path = ["loadbalancers", id];
        let query: &[(&str, &str)] = if cascade { &[("cascade", "true")] } else { &[] };
        let request = Request::new(Call::LoadBalancerDelete, &path).query(query).because(why);
        maybe(self.client.delete(self.op, &request).await).map(drop)
    }

    pub(super) async fn fail_over(&self, id: &str, why: &str) -> Result<(), OsError> {
        let path = ["loadbalancers", id, "failover"];
        let request = Request::new(Call::LoadBalancerFailover, &path).because(why);
        self.client.put_only(self.op, &request, &json!({})).await
    }

    /// Creates something below a balancer.
    pub(super) async fn create<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        body: Value,
        named: (&str, &str),
    ) -> Result<T, OsError> {
        let (object, why) = named;
        self.client.post(self.op, &Request::new(call, path).object(object).because(why), &body).await
    }

    pub(super) async fn update<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        body: &(impl serde::Serialize + Sync),
        why: &str,
    ) -> Result<T, OsError> {
        self.client.put(self.op, &Request::new(call, path).because(why), body).await
    }

    pub(super) async fn set_members(&self, pool: &str, members: &[MemberCreate], why: &str) -> Result<(), OsError> {
        let path = ["pools", pool, "members"];
        let request = Request::new(Call::MembersUpdate, &path).because(why);
        self.client.put_only(self.op, &request, &members).await
    }

    pub(super) async fn delete(&self, call: Call, path: &[&str], why: &str) -> Result<(), OsError> {
        self.gone(call, path, why).await
    }

    pub(super) async fn floating_ips(&self, query: &[(&str, &str)]) -> Result<Vec<FloatingIp>, OsError> {
        self.list(Call::FloatingIpList, &["floatingips"], query).await
    }

    pub(super) async fn create_floating_ip(&self, body: &FloatingIpCreate, why: &str) -> Result<FloatingIp, OsError> {
        let path = ["floatingips"];
        let object = body.port_id.as_deref().unwrap_or_default();
        self.client.post(self.op, &Request::new(Call::FloatingIpCreate, &path).object(object).because(why), body).await
    }

    pub(super) async fn update_floating_ip(
        &self,
        id: &str,
        body: &FloatingIpUpdate,
        why: &str,
    ) -> Result<FloatingIp, OsError> {
        self.update(Call::FloatingIpUpdate, &["floatingips", id], body, why).await
    }

    pub(super) async fn delete_floating_ip(&self, id: &str, why: &str) -> Result<(), OsError> {
        self.gone(Call::FloatingIpDelete, &["floatingips", id], why).await
    }

    pub(super) async fn networks(&self, query: &[(&str, &str)]) -> Result<Vec<Network>, OsError> {
        self.list(Call::NetworkList, &["networks"], query).await
    }

    pub(super) async fn subnet(&self, id: &str) -> Result<Option<Subnet>, OsError> {
        self.one(Call::SubnetGet, &["subnets", id]).await
    }

    pub(super) async fn subnets(&self, query: &[(&str, &str)]) -> Result<Vec<Subnet>, OsError> {
        self.list(Call::SubnetList, &["subnets"], query).await
    }

    pub(super) async fn port(&self, id: &str) -> Result<Option<Port>, OsError> {
        self.one(Call::PortGet, &["ports", id]).await
    }

    pub(super) async fn ports(&self, query: &[(&str, &str)]) -> Result<Vec<Port>, OsError> {
        self.list(Call::PortList, &["ports"], query).await
    }

    /// Reads the ports of servers, many servers at a time.
    pub(super) async fn ports_of(&self, servers: &[&str]) -> Result<Vec<Port>, OsError> {
        let mut found = Vec::new();
        for chunk in servers.chunks(MOST_SERVERS) {
            let query: Vec<_> = chunk.iter().map(|server| ("device_id", *server)).collect();
            found.extend(self.ports(&query).await?);
        }
        Ok(found)
    }

    /// Sets the security groups of a port that is as it was read.
    pub(super) async fn set_groups(
        &self,
        port: &Port,
        groups: Vec<String>,
        why: &str,
    ) -> Result<Option<Port>, OsError> {
        let path = ["ports", &*port.id];
        let request = Request::new(Call::PortUpdate, &path).if_revision(port.standard.revision_number).because(why);
        let body = PortUpdate { security_groups: Some(groups), ..PortUpdate::default() };
        maybe(self.client.put(self.op, &request, &body).await)
    }

    pub(super) async fn delete_port_tag(&self, port: &str, tag: &str) -> Result<(), OsError> {
        self.gone(Call::PortTagDelete, &["ports", port, "tags", tag], "it names a security group that goes").await
    }

    pub(super) async fn groups(&self, query: &[(&str, &str)]) -> Result<Vec<SecurityGroup>, OsError> {
        self.list(Call::SecurityGroupList, &["security-groups"], query).await
    }

    pub(super) async fn group(&self, id: &str) -> Result<Option<SecurityGroup>, OsError> {
        self.one(Call::SecurityGroupGet, &["security-groups", id]).await
    }

    pub(super) async fn create_group(&self, name: &str, description: &str) -> Result<SecurityGroup, OsError> {
        let path = ["security-groups"];
        let body = SecurityGroupCreate {
            name: Some(name.into()),
            description: Some(description.into()),
            ..SecurityGroupCreate::default()
        };
        self.client.post(self.op, &Request::new(Call::SecurityGroupCreate, &path).object(name), &body).await
    }

    pub(super) async fn delete_group(&self, id: &str, why: &str) -> Result<(), OsError> {
        self.gone(Call::SecurityGroupDelete, &["security-groups", id], why).await
    }

    pub(super) async fn create_rules(
        &self,
        rules: &[SecurityGroupRuleCreate],
    ) -> Result<Vec<SecurityGroupRule>, OsError> {
        let path = ["security-group-rules"];
        let objects: Vec<Box<str>> = rules.iter().map(|rule| (&*rule.security_group_id).into()).collect();
        let request = Request::new(Call::SecurityGroupRulesCreate, &path).because("rules are missing");
        self.client.post_batch(self.op, &request, &objects, &rules).await
    }

    pub(super) async fn delete_rule(&self, id: &str) -> Result<(), OsError> {
        self.gone(Call::SecurityGroupRuleDelete, &["security-group-rules", id], "nothing wants it").await
    }

    /// Tells whether a certificate is in Barbican.
    pub(super) async fn has_certificate(&self, reference: &str) -> Result<bool, OsError> {
        let mut parts = reference.rsplit('/');
        let id = parts.next().unwrap_or_default();
        let (kind, call) = match parts.next() {
            Some("secrets") => ("secrets", Call::SecretGet),
            _ => ("containers", Call::ContainerGet),
        };
        Ok(self.one::<Value>(call, &[kind, id]).await?.is_some())
    }
}
