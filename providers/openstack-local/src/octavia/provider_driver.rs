//! What provider drivers support, and how they reject the rest.

use std::net::IpAddr;

use crate::api::octavia::{
    HealthMonitor, LbAlgorithm, Listener, ListenerProtocol, Member, MonitorType, Pool, PoolProtocol,
};

use super::{
    error::{provider_not_enabled, unsupported_action, unsupported_option},
    settings::{Driver, Settings},
};
use crate::state::ApiError;

/// Provider driver of a load balancer.
#[derive(Clone, Debug)]
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) driver: Driver,
    /// Newest minor version of the service.
    pub(super) minor: u8,
}

impl Provider {
    /// Finds a provider by name; `None` is the default one.
    ///
    /// # Errors
    /// 400 when it is not enabled.
    pub(super) fn find(settings: &Settings, name: Option<&str>) -> Result<Self, ApiError> {
        let name = name.unwrap_or(&settings.default_provider);
        match settings.providers.get(name) {
            Some(&driver) => {
                Ok(Self { name: name.to_owned(), driver, minor: settings.newest_minor })
            }
            None => Err(provider_not_enabled(name)),
        }
    }

    fn refuse(&self, why: String) -> Result<(), ApiError> {
        Err(unsupported_option(&self.name, why))
    }

    pub(super) fn listener(&self, listener: &Listener) -> Result<(), ApiError> {
        if self.driver == Driver::Amphora {
            return Ok(());
        }
        let protocol = &listener.protocol;
        if !matches!(
            protocol,
            ListenerProtocol::Tcp | ListenerProtocol::Udp | ListenerProtocol::Sctp
        ) {
            return self.refuse(format!("OVN provider does not support {protocol} protocol"));
        }
        if listener.allowed_cidrs.is_some() {
            return self.refuse("OVN provider does not support allowed_cidrs option".to_owned());
        }
        Ok(())
    }

    pub(super) fn pool(&self, pool: &Pool) -> Result<(), ApiError> {
        let protocol = &pool.protocol;
        let algorithm = &pool.lb_algorithm;
        match self.driver {
            Driver::Amphora if *algorithm == LbAlgorithm::SourceIpPort => self
                .refuse("Amphora provider does not support SOURCE_IP_PORT algorithm.".to_owned()),
            Driver::Ovn
                if !matches!(
                    protocol,
                    PoolProtocol::Tcp | PoolProtocol::Udp | PoolProtocol::Sctp
                ) =>
            {
                self.refuse(format!("OVN provider does not support {protocol} protocol"))
            }
            Driver::Ovn if *algorithm != LbAlgorithm::SourceIpPort || self.minor < 13 => {
                self.refuse(format!("OVN provider does not support {algorithm} algorithm"))
            }
            Driver::Amphora | Driver::Ovn => Ok(()),
        }
    }

    /// Checks a member. `vip`: CIDR of the load balancer's address, if it is known.
    pub(super) fn member(
        &self,
        member: &Member,
        vip: Option<ipnet::IpNet>,
    ) -> Result<(), ApiError> {
        if self.driver == Driver::Amphora {
            return Ok(());
        }
        if member.backup || member.monitor_address.is_some() || member.monitor_port.is_some() {
            return self.refuse(
                "OVN provider does not support backup members or monitoring another address or port".to_owned(),
            );
        }
        let outside = match (member.address.parse::<IpAddr>(), vip) {
            (Ok(address), Some(network)) => !network.contains(&address),
            _ => false,
        };
        if member.subnet_id.is_none() && outside {
            return self.refuse(format!(
                "Subnet is not specified for member {} outside the VIP subnet",
                member.address
            ));
        }
        Ok(())
    }

    pub(super) fn monitor(&self, monitor: &HealthMonitor) -> Result<(), ApiError> {
        let kind = &monitor.kind;
        if self.driver == Driver::Amphora
            || matches!(kind, MonitorType::Tcp | MonitorType::UdpConnect)
        {
            return Ok(());
        }
        self.refuse(format!(
            "OVN provider does not support health monitor type {kind}. Supported types: TCP, UDP-CONNECT"
        ))
    }

    pub(super) fn failover(&self) -> Result<(), ApiError> {
        if self.driver == Driver::Amphora {
            return Ok(());
        }
        Err(unsupported_action(
            &self.name,
            "This provider does not support failing over load balancers.",
        ))
    }

    /// Returns name, owner and device of the port with a load balancer's address.
    pub(super) fn port(&self, load_balancer: &str) -> PortNames {
        match self.driver {
            Driver::Amphora => PortNames {
                name: format!("octavia-lb-{load_balancer}"),
                owner: "Octavia",
                device: format!("lb-{load_balancer}"),
            },
            Driver::Ovn => PortNames {
                name: format!("ovn-lb-vip-{load_balancer}"),
                owner: "ovn-lb-vip",
                device: format!("ovn-lb-{load_balancer}"),
            },
        }
    }
}

/// Names of the port with a load balancer's address.
#[derive(Clone, Debug)]
pub(super) struct PortNames {
    pub(super) name: String,
    pub(super) owner: &'static str,
    pub(super) device: String,
}
