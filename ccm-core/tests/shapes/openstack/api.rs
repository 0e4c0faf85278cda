//! The narrow client, its plain types, and an in-memory cloud behind it.

use std::net::IpAddr;

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind};
use ipnet::IpNet;
use parking_lot::Mutex;

/// What Nova, Neutron and Octavia are asked for.
#[async_trait]
pub(crate) trait Api: Send + Sync {
    async fn features(&self) -> Result<Features, ApiError>;
    async fn server(&self, id: &str) -> Result<Server, ApiError>;
    /// Every server of the project, all pages; with microversion 2.69, which also lists servers of cells that are down.
    async fn servers(&self) -> Result<Vec<Server>, ApiError>;
    async fn router_routes(&self) -> Result<Vec<RouterRoute>, ApiError>;
    async fn add_routes(&self, routes: &[RouterRoute]) -> Result<(), ApiError>;
    async fn remove_routes(&self, routes: &[RouterRoute]) -> Result<(), ApiError>;
    async fn balancer(&self, id: &str) -> Result<Balancer, ApiError>;
    async fn balancers(&self) -> Result<Vec<Balancer>, ApiError>;
    async fn create_balancer(&self, wanted: Balancer) -> Result<Balancer, ApiError>;
    async fn set_members(&self, id: &str, members: &[Member]) -> Result<(), ApiError>;
    async fn delete_balancer(&self, id: &str) -> Result<(), ApiError>;
}

/// What this cloud's version and extensions allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    pub(crate) extra_routes: bool,
    /// VIP ACLs, Octavia v2.12.
    pub(crate) allowed_cidrs: bool,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("HTTP {status}: {fault}")]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) fault: &'static str,
}

impl From<ApiError> for CloudError {
    fn from(error: ApiError) -> Self {
        let kind = match error.status {
            404 => ErrorKind::NotFound,
            409 => ErrorKind::Conflict,
            401 | 403 => ErrorKind::Denied,
            413 | 429 => ErrorKind::Throttled,
            400 => ErrorKind::InvalidInput,
            501 => ErrorKind::NotImplemented,
            _ => ErrorKind::Transient,
        };
        Self::new(kind, format!("OpenStack answered with status {}", error.status)).with_source(error)
    }
}

/// A row of Nova. A row of a cell that does not answer has an id and status `UNKNOWN`, and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) id: &'static str,
    pub(crate) name: Option<&'static str>,
    pub(crate) status: &'static str,
    pub(crate) zone: &'static str,
    pub(crate) flavor: &'static str,
    pub(crate) fixed_ips: Vec<IpAddr>,
    pub(crate) floating_ip: Option<IpAddr>,
    pub(crate) host_id: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouterRoute {
    pub(crate) destination: IpNet,
    pub(crate) nexthop: IpAddr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Balancer {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) status: &'static str,
    pub(crate) vip: IpAddr,
    pub(crate) listeners: Vec<(&'static str, u16)>,
    pub(crate) members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

/// An in-memory OpenStack.
#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) servers: Vec<Server>,
    pub(crate) routes: Mutex<Vec<RouterRoute>>,
    pub(crate) balancers: Mutex<Vec<Balancer>>,
    pub(crate) old_octavia: bool,
    pub(crate) no_extra_routes: bool,
    /// Requests that changed the router.
    pub(crate) router_writes: Mutex<u32>,
}

const NOT_FOUND: ApiError = ApiError { status: 404, fault: "not found" };

impl Fake {
    /// Ends whatever is pending.
    pub(crate) fn settle(&self) {
        self.balancers.lock().iter_mut().for_each(|b| b.status = "ACTIVE");
        self.balancers.lock().retain(|b| b.name != "deleted");
    }

    /// Finds a balancer that may be changed: Octavia locks it as a whole.
    fn unlocked(&self, id: &str, change: impl FnOnce(&mut Balancer)) -> Result<(), ApiError> {
        let mut all = self.balancers.lock();
        let balancer = all.iter_mut().find(|b| b.id == id).ok_or(NOT_FOUND)?;
        if balancer.status != "ACTIVE" {
            return Err(ApiError { status: 409, fault: "load balancer is immutable" });
        }
        change(balancer);
        balancer.status = "PENDING_UPDATE";
        Ok(())
    }
}

#[async_trait]
impl Api for Fake {
    async fn features(&self) -> Result<Features, ApiError> {
        Ok(Features { extra_routes: !self.no_extra_routes, allowed_cidrs: !self.old_octavia })
    }

    async fn server(&self, id: &str) -> Result<Server, ApiError> {
        self.servers.iter().find(|s| s.id == id).cloned().ok_or(NOT_FOUND)
    }

    async fn servers(&self) -> Result<Vec<Server>, ApiError> {
        Ok(self.servers.clone())
    }

    async fn router_routes(&self) -> Result<Vec<RouterRoute>, ApiError> {
        Ok(self.routes.lock().clone())
    }

    async fn add_routes(&self, routes: &[RouterRoute]) -> Result<(), ApiError> {
        *self.router_writes.lock() += 1;
        let mut all = self.routes.lock();
        let new: Vec<_> = routes.iter().filter(|r| !all.contains(r)).copied().collect();
        all.extend(new);
        Ok(())
    }

    async fn remove_routes(&self, routes: &[RouterRoute]) -> Result<(), ApiError> {
        *self.router_writes.lock() += 1;
        self.routes.lock().retain(|r| !routes.contains(r));
        Ok(())
    }

    async fn balancer(&self, id: &str) -> Result<Balancer, ApiError> {
        self.balancers.lock().iter().find(|b| b.id == id).cloned().ok_or(NOT_FOUND)
    }

    async fn balancers(&self) -> Result<Vec<Balancer>, ApiError> {
        Ok(self.balancers.lock().clone())
    }

    async fn create_balancer(&self, wanted: Balancer) -> Result<Balancer, ApiError> {
        let mut all = self.balancers.lock();
        let made = Balancer { id: format!("lb-{}", all.len()), status: "PENDING_CREATE", ..wanted };
        all.push(made.clone());
        Ok(made)
    }

    async fn set_members(&self, id: &str, members: &[Member]) -> Result<(), ApiError> {
        self.unlocked(id, |b| b.members = members.to_vec())
    }

    async fn delete_balancer(&self, id: &str) -> Result<(), ApiError> {
        // Unlike any other change, a deletion is also taken by a balancer in status ERROR.
        self.balancers
            .lock()
            .iter_mut()
            .filter(|b| b.id == id && b.status == "ERROR")
            .for_each(|b| b.status = "ACTIVE");
        self.unlocked(id, |b| "deleted".clone_into(&mut b.name))
    }
}
