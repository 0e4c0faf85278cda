//! What the subcommand `check` finds out about OpenStack: credentials, services, drivers, networks,
//! quotas and other clusters. Every request is a read.

mod credentials;
mod kinds;
mod load_balancers;
mod networks;
mod quotas;
mod start_errors;
#[cfg(test)]
mod tests;

use ccm_core::{
    error::chain,
    provider::{Area, CheckedCluster, Finding, Op},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::kinds::OpenStackFinding;
pub(crate) use self::start_errors::{connection_invalid, not_built};
use crate::{
    client::{
        BoundedList, Call, Client, ErrorCause, ErrorClass, OpenStackError, Request, Service,
        SessionError,
    },
    config::Settings,
};

/// Maximum number of rows of a list that is read. A larger cloud is checked in part.
const MAX_ROWS: usize = 5000;

/// The checks, with what they found so far.
pub(super) struct Checks<'a> {
    client: &'a Client,
    settings: &'a Settings,
    op: &'a Op,
    cluster: CheckedCluster<'a>,
    findings: Vec<Finding>,
}

impl<'a> Checks<'a> {
    pub(super) fn new(
        client: &'a Client,
        settings: &'a Settings,
        op: &'a Op,
        cluster: CheckedCluster<'a>,
    ) -> Self {
        Self { client, settings, op, cluster, findings: Vec::new() }
    }

    /// Makes all checks, one after another, because a person waits for them and not a controller.
    pub(super) async fn run(mut self) -> Vec<Finding> {
        self.check_credentials().await;
        self.check_services().await;
        self.check_reads().await;
        if self.settings.load_balancer.is_some() {
            self.check_octavia().await;
        }
        self.check_networks().await;
        if let Ok(Some(project)) = self.client.session().project().await {
            self.check_quotas(&project).await;
        }
        self.findings
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    fn ok(&mut self, message: impl Into<String>) {
        self.add(Finding::ok(Area::Cloud, message));
    }

    /// Reports a read that failed. `object` is what was read.
    fn add_error(&mut self, object: &str, error: &OpenStackError) {
        let kind = match error.class() {
            ErrorClass::Denied => OpenStackFinding::ReadRejected,
            _ => OpenStackFinding::ReadFailed,
        };
        let message = format!("{object} cannot be read: {}", chain(error));
        self.add(kind.about(object, message));
    }

    /// Reports a read that failed, and that no controller makes.
    fn add_unknown(&mut self, object: &str, error: &OpenStackError) {
        match error.class() {
            ErrorClass::Denied => self.ok(format!("{object} may not be read: {}", chain(error))),
            _ => self.add_error(object, error),
        }
    }

    /// Checks that the services that the settings need answer.
    async fn check_services(&mut self) {
        let session = self.client.session();
        let compute = session.microversion().await;
        let compute = compute.map(|version| format!("microversion {version}"));
        self.add_service(Service::Compute, compute).await;
        let extensions = self
            .list::<Value>(Call::ExtensionList, &["extensions"], &[])
            .await;
        let extensions = extensions.map(|list| format!("{} extensions", list.len()));
        self.add_service(Service::Network, extensions).await;
        if self.settings.load_balancer.is_some() {
            let octavia = session.octavia().await;
            let octavia = octavia.map(|version| format!("version {version}"));
            self.add_service(Service::LoadBalancer, octavia).await;
        }
    }

    async fn add_service(&mut self, service: Service, answer: Result<String, OpenStackError>) {
        match answer {
            Ok(answer) => {
                let endpoint = self.client.session().endpoint(service).await;
                let endpoint = endpoint.map(|url| url.to_string()).unwrap_or_default();
                self.ok(format!("{service} service at {endpoint}: {answer}"));
            }
            Err(error) => {
                let message = format!("{service} service: {}", chain(&error));
                self.add(OpenStackFinding::ServiceUnreachable.about(service.to_string(), message));
            }
        }
    }

    /// Checks that the lists can be read that controllers read.
    async fn check_reads(&mut self) {
        let lists = [
            (Call::ServerList, "servers", "servers"),
            (Call::PortList, "ports", "ports"),
            (Call::SecurityGroupList, "security-groups", "security groups"),
            (Call::FloatingIpList, "floatingips", "floating IPs"),
        ];
        for (call, path, object) in lists {
            // One row says as much as all of them.
            let path = [path];
            let request = Request::new(call, &path).query(&[("limit", "1")]);
            let page = self.client.get_page::<Value>(self.op, &request, None).await;
            match page {
                Ok(_) => {}
                // The service itself is reported already.
                Err(error) if is_unreachable(&error) => {}
                Err(error) => self.add_error(object, &error),
            }
        }
    }

    /// Lists objects, up to a limit. A row that cannot be read is an error, because it may be what is
    /// looked for.
    async fn list<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, OpenStackError> {
        let request = Request::new(call, path).query(query);
        match self.client.get_up_to(self.op, &request, MAX_ROWS).await? {
            BoundedList::Complete(rows) | BoundedList::TooLong(rows) => rows.complete(),
        }
    }

    /// Reads an object; `None` if it does not exist.
    async fn find<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &[&str],
    ) -> Result<Option<T>, OpenStackError> {
        match self.client.get(self.op, &Request::new(call, path)).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns true if the service is missing or did not answer, so that nothing is known about the
/// object.
fn is_unreachable(error: &OpenStackError) -> bool {
    match &error.cause {
        ErrorCause::NoResponse(_) | ErrorCause::NotSent(_) => true,
        ErrorCause::Session(error) => matches!(**error, SessionError::NoEndpoint(_)),
        ErrorCause::Response(response) => response.status.is_server_error(),
        ErrorCause::UnreliableResponse(response) => response.status.is_server_error(),
        _ => false,
    }
}
