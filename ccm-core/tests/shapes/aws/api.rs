//! The narrow client, its plain types, and an in-memory cloud behind it.

use std::net::IpAddr;

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind};
use ipnet::IpNet;
use parking_lot::Mutex;

/// What EC2 and ELBv2 are asked for. The real client converts SDK types to these at its edge.
#[async_trait]
pub(crate) trait Api: Send + Sync {
    async fn describe_instances(&self, filter: Filter<'_>) -> Result<Vec<Instance>, ApiError>;
    async fn describe_interfaces(&self, ips: &[IpAddr]) -> Result<Vec<Interface>, ApiError>;
    async fn create_tags(&self, id: &str, tags: &[(&str, &str)]) -> Result<(), ApiError>;
    async fn describe_routes(&self) -> Result<Vec<CloudRoute>, ApiError>;
    async fn create_route(&self, destination: IpNet, instance: &str) -> Result<(), ApiError>;
    async fn delete_route(&self, destination: IpNet) -> Result<(), ApiError>;
    async fn describe_balancers(&self) -> Result<Vec<Balancer>, ApiError>;
    async fn create_balancer(&self, balancer: Balancer) -> Result<(), ApiError>;
    async fn create_listener(&self, balancer: &str, listener: Listener) -> Result<(), ApiError>;
    async fn delete_listener(&self, balancer: &str, port: u16) -> Result<(), ApiError>;
    async fn register(&self, balancer: &str, targets: &[Target]) -> Result<(), ApiError>;
    async fn deregister(&self, balancer: &str, targets: &[Target]) -> Result<(), ApiError>;
    async fn delete_balancer(&self, name: &str) -> Result<(), ApiError>;
    async fn delete_security_group(&self, name: &str) -> Result<(), ApiError>;
}

pub(crate) enum Filter<'a> {
    Ids(&'a [Box<str>]),
    PrivateDnsNames(&'a [Box<str>]),
}

/// An error answer of AWS.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub(crate) struct ApiError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl From<ApiError> for CloudError {
    fn from(error: ApiError) -> Self {
        let kind = match error.code {
            "RequestLimitExceeded" | "Throttling" | "ThrottlingException" => ErrorKind::Throttled,
            "LoadBalancerNotFound" | "TargetGroupNotFound" | "InvalidGroup.NotFound" | "InvalidRoute.NotFound" => {
                ErrorKind::NotFound
            }
            "TooManyLoadBalancers" | "TooManyTargets" | "RouteLimitExceeded" => ErrorKind::QuotaExceeded,
            "ResourceInUse" | "DependencyViolation" => ErrorKind::Conflict,
            "AccessDenied" | "UnauthorizedOperation" => ErrorKind::Denied,
            "InvalidInstanceID.Malformed" | "ValidationError" | "CertificateNotFound" => ErrorKind::InvalidInput,
            _ => ErrorKind::Transient,
        };
        Self::new(kind, format!("AWS refused the request with {}", error.code)).with_source(error)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) id: &'static str,
    pub(crate) state: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) zone: &'static str,
    pub(crate) private_ips: Vec<IpAddr>,
    pub(crate) public_ip: Option<IpAddr>,
    pub(crate) private_dns: &'static str,
}

#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) ip: IpAddr,
    pub(crate) zone: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloudRoute {
    pub(crate) destination: IpNet,
    pub(crate) instance: Option<String>,
    pub(crate) blackhole: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Balancer {
    pub(crate) name: String,
    pub(crate) service: String,
    pub(crate) internal: bool,
    pub(crate) state: &'static str,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) port: u16,
    pub(crate) protocol: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) id: Box<str>,
    pub(crate) port: u16,
}

/// An in-memory AWS.
#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) instances: Vec<Instance>,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) routes: Mutex<Vec<CloudRoute>>,
    pub(crate) balancers: Mutex<Vec<Balancer>>,
    /// How many more times the security group is still in use.
    pub(crate) group_in_use: Mutex<u32>,
}

impl Fake {
    fn with_balancer(&self, name: &str, change: impl FnOnce(&mut Balancer)) -> Result<(), ApiError> {
        let mut all = self.balancers.lock();
        let balancer = all.iter_mut().find(|b| b.name == name);
        balancer.map(change).ok_or_else(|| refused("LoadBalancerNotFound", name))
    }
}

pub(crate) fn refused(code: &'static str, message: &str) -> ApiError {
    ApiError { code, message: message.to_owned() }
}

#[async_trait]
impl Api for Fake {
    async fn describe_instances(&self, filter: Filter<'_>) -> Result<Vec<Instance>, ApiError> {
        let find = |id: &str| self.instances.iter().find(|i| i.id == id);
        match filter {
            Filter::Ids(ids) => {
                // EC2 fails the whole request and names the culprits, not always all of them: this one names the first.
                if let Some(missing) = ids.iter().find(|id| find(id).is_none()) {
                    let message = format!("The instance ID '{missing}' does not exist");
                    return Err(refused("InvalidInstanceID.NotFound", &message));
                }
                // In no useful order.
                Ok(ids.iter().rev().filter_map(|id| find(id).cloned()).collect())
            }
            Filter::PrivateDnsNames(names) => {
                Ok(self.instances.iter().filter(|i| names.iter().any(|n| **n == *i.private_dns)).cloned().collect())
            }
        }
    }

    async fn describe_interfaces(&self, ips: &[IpAddr]) -> Result<Vec<Interface>, ApiError> {
        Ok(self.interfaces.iter().filter(|i| ips.contains(&i.ip)).cloned().collect())
    }

    async fn create_tags(&self, _: &str, _: &[(&str, &str)]) -> Result<(), ApiError> {
        Ok(())
    }

    async fn describe_routes(&self) -> Result<Vec<CloudRoute>, ApiError> {
        Ok(self.routes.lock().clone())
    }

    async fn create_route(&self, destination: IpNet, instance: &str) -> Result<(), ApiError> {
        let instance = Some(instance.to_owned());
        self.routes.lock().push(CloudRoute { destination, instance, blackhole: false });
        Ok(())
    }

    async fn delete_route(&self, destination: IpNet) -> Result<(), ApiError> {
        let mut routes = self.routes.lock();
        let before = routes.len();
        routes.retain(|r| r.destination != destination);
        if routes.len() == before { Err(refused("InvalidRoute.NotFound", "no such route")) } else { Ok(()) }
    }

    async fn describe_balancers(&self) -> Result<Vec<Balancer>, ApiError> {
        Ok(self.balancers.lock().clone())
    }

    async fn create_balancer(&self, balancer: Balancer) -> Result<(), ApiError> {
        self.balancers.lock().push(balancer);
        Ok(())
    }

    async fn create_listener(&self, balancer: &str, listener: Listener) -> Result<(), ApiError> {
        self.with_balancer(balancer, |b| b.listeners.push(listener))
    }

    async fn delete_listener(&self, balancer: &str, port: u16) -> Result<(), ApiError> {
        self.with_balancer(balancer, |b| b.listeners.retain(|l| l.port != port))
    }

    async fn register(&self, balancer: &str, targets: &[Target]) -> Result<(), ApiError> {
        self.with_balancer(balancer, |b| b.targets.extend_from_slice(targets))
    }

    async fn deregister(&self, balancer: &str, targets: &[Target]) -> Result<(), ApiError> {
        self.with_balancer(balancer, |b| b.targets.retain(|t| !targets.contains(t)))
    }

    async fn delete_balancer(&self, name: &str) -> Result<(), ApiError> {
        self.balancers.lock().retain(|b| b.name != name);
        Ok(())
    }

    async fn delete_security_group(&self, name: &str) -> Result<(), ApiError> {
        let mut left = self.group_in_use.lock();
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        Err(refused("DependencyViolation", name))
    }
}
