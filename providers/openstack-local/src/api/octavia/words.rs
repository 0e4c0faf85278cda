//! Enums for Octavia's states, protocols, algorithms and the like.

/// Defines an enum of Octavia's words. An unknown word is kept as it is, because newer releases may
/// have more.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$word_doc])* $variant,)*
            /// An unknown word.
            Other(Box<str>),
        }

        impl $name {
            /// All known words.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the word.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    word => Self::Other(word.into()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let word = std::borrow::Cow::<'de, str>::deserialize(from)?;
                Ok(Self::from(&*word))
            }
        }
    };
}

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
