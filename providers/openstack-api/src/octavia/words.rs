//! Octavia's states, protocols, algorithms and the like.

use crate::words::words;

words! {
    /// Provisioning status of a resource.
    ProvisioningStatus {
        /// At rest: may be changed.
        Active = "ACTIVE",
        /// Gone.
        Deleted = "DELETED",
        /// The last change failed: may only be deleted, or (a load balancer) failed over.
        Error = "ERROR",
        /// Being created.
        PendingCreate = "PENDING_CREATE",
        /// Being changed, or something below it is.
        PendingUpdate = "PENDING_UPDATE",
        /// Being deleted.
        PendingDelete = "PENDING_DELETE",
    }
}

impl ProvisioningStatus {
    /// Returns true if a change is under way, so that nothing else may be changed.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::PendingCreate | Self::PendingUpdate | Self::PendingDelete)
    }
}

words! {
    /// Operating status of a resource.
    OperatingStatus {
        /// Working.
        Online = "ONLINE",
        /// Switched off, or not reported yet.
        Offline = "OFFLINE",
        /// Some of what is below it does not work.
        Degraded = "DEGRADED",
        /// Not working.
        Error = "ERROR",
        /// Takes no new connections (weight 0).
        Draining = "DRAINING",
        /// Member of a pool that has no monitor.
        NoMonitor = "NO_MONITOR",
    }
}

words! {
    /// Protocol of a listener.
    ListenerProtocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
        /// SCTP, from 2.23.
        Sctp = "SCTP",
        /// HTTP, so headers may be inserted.
        Http = "HTTP",
        /// TLS passed through.
        Https = "HTTPS",
        /// TLS ends at the load balancer.
        TerminatedHttps = "TERMINATED_HTTPS",
        /// Metrics of the load balancer itself, from 2.25.
        Prometheus = "PROMETHEUS",
    }
}

words! {
    /// Protocol that members of a pool speak.
    PoolProtocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
        /// SCTP, from 2.23.
        Sctp = "SCTP",
        /// HTTP.
        Http = "HTTP",
        /// TLS passed through.
        Https = "HTTPS",
        /// TCP with a PROXY protocol header, version 1.
        Proxy = "PROXY",
        /// TCP with a PROXY protocol header, version 2; from 2.22.
        ProxyV2 = "PROXYV2",
    }
}

words! {
    /// Load-balancing algorithm.
    LbAlgorithm {
        /// In turn, by weight.
        RoundRobin = "ROUND_ROBIN",
        /// The one with the fewest connections.
        LeastConnections = "LEAST_CONNECTIONS",
        /// By the client's address.
        SourceIp = "SOURCE_IP",
        /// By the client's address and port; provider `ovn`, from 2.13.
        SourceIpPort = "SOURCE_IP_PORT",
    }
}

words! {
    /// Kind of a health monitor.
    MonitorType {
        /// HTTP request.
        Http = "HTTP",
        /// HTTP request over TLS.
        Https = "HTTPS",
        /// ICMP echo.
        Ping = "PING",
        /// SCTP association.
        Sctp = "SCTP",
        /// TCP connection.
        Tcp = "TCP",
        /// TLS handshake.
        TlsHello = "TLS-HELLO",
        /// UDP datagram that must not be answered with "port unreachable".
        UdpConnect = "UDP-CONNECT",
    }
}

words! {
    /// Session persistence.
    PersistenceType {
        /// The client's address.
        SourceIp = "SOURCE_IP",
        /// A cookie that the load balancer makes.
        HttpCookie = "HTTP_COOKIE",
        /// A cookie that the application makes.
        AppCookie = "APP_COOKIE",
    }
}
