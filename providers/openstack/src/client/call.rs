//! The one table of requests: their names in metrics and change records, the service, and the
//! envelope of the body.

use std::fmt;

/// A service of the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// Nova; paths begin below `/v2.1`.
    Compute,
    /// Neutron; paths begin below `/v2.0`.
    Network,
    /// Octavia; paths begin below `/v2.0/lbaas`.
    LoadBalancer,
    /// Barbican; paths begin below `/v1`.
    KeyManager,
    /// Keystone. The client itself requests tokens from it.
    Identity,
}

impl Service {
    /// Every service.
    pub const ALL: [Self; 5] =
        [Self::Compute, Self::Network, Self::LoadBalancer, Self::KeyManager, Self::Identity];

    /// Returns the service's type in the catalog.
    pub fn catalog_type(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Network => "network",
            Self::LoadBalancer => "load-balancer",
            Self::KeyManager => "key-manager",
            Self::Identity => "identity",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.catalog_type())
    }
}

/// Kind of access: a read or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The request changes nothing.
    Read,
    /// The request changes something, and is sent through [`Op::mutate`](ccm_core::provider::Op::mutate).
    Write,
}

macro_rules! calls {
    ($($service:ident $class:ident { $($call:ident $name:literal $key:literal)* })*) => {
        /// A kind of request. Its name is a label of metrics, `<resource>_<verb>` as in upstream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Call {
            $($(
                #[doc = concat!("`", $name, "`; envelope `", $key, "`.")]
                $call,
            )*)*
        }

        impl Call {
            /// Every kind.
            pub const ALL: &[Self] = &[$($(Self::$call,)*)*];

            /// Returns the name, the label `request` of metrics.
            pub fn name(self) -> &'static str {
                match self { $($(Self::$call => $name,)*)* }
            }

            /// Returns the service that handles the request.
            pub fn service(self) -> Service {
                match self { $($(Self::$call => Service::$service,)*)* }
            }

            /// Returns true if it changes the cloud.
            pub fn class(self) -> Class {
                match self { $($(Self::$call => Class::$class,)*)* }
            }

            /// Returns the key of the body's envelope, such as `servers` in `{"servers": […]}`;
            /// empty where there is none.
            pub fn key(self) -> &'static str {
                match self { $($(Self::$call => $key,)*)* }
            }
        }
    };
}

calls! {
    Identity Read {
        TokenCreate "token_create" "token"
        IdentityVersionList "identity_version_list" ""
        ApplicationCredentialGet "application_credential_get" "application_credential"
    }
    Compute Read {
        ComputeVersionGet "compute_version_get" ""
        ServerGet "server_get" "server"
        ServerList "server_list" "servers"
        FlavorGet "flavor_get" "flavor"
        FlavorList "flavor_list" "flavors"
        InterfaceList "server_os_interface_list" "interfaceAttachments"
    }
    Network Read {
        ExtensionList "network_extension_list" "extensions"
        NetworkGet "network_get" "network"
        NetworkList "network_list" "networks"
        SubnetGet "subnet_get" "subnet"
        SubnetList "subnet_list" "subnets"
        PortGet "port_get" "port"
        PortList "port_list" "ports"
        RouterGet "router_get" "router"
        RouterList "router_list" "routers"
        FloatingIpGet "floating_ip_get" "floatingip"
        FloatingIpList "floating_ip_list" "floatingips"
        SecurityGroupGet "security_group_get" "security_group"
        SecurityGroupList "security_group_list" "security_groups"
        SecurityGroupRuleList "security_group_rule_list" "security_group_rules"
        NetworkQuotaGet "network_quota_get" "quota"
    }
    Network Write {
        PortCreate "port_create" "port"
        PortUpdate "port_update" "port"
        PortDelete "port_delete" ""
        PortTagDelete "port_tag_delete" ""
        PortTagsUpdate "port_tag_update" "tags"
        RouterUpdate "router_update" "router"
        RouterAddRoutes "router_add_extraroutes" "router"
        RouterRemoveRoutes "router_remove_extraroutes" "router"
        FloatingIpCreate "floating_ip_create" "floatingip"
        FloatingIpUpdate "floating_ip_update" "floatingip"
        FloatingIpDelete "floating_ip_delete" ""
        FloatingIpTagsUpdate "floating_ip_tag_update" "tags"
        SecurityGroupCreate "security_group_create" "security_group"
        SecurityGroupUpdate "security_group_update" "security_group"
        SecurityGroupDelete "security_group_delete" ""
        SecurityGroupTagsUpdate "security_group_tag_update" "tags"
        SecurityGroupRuleCreate "security_group_rule_create" "security_group_rule"
        SecurityGroupRulesCreate "security_group_rules_create" "security_group_rules"
        SecurityGroupRuleDelete "security_group_rule_delete" ""
    }
    LoadBalancer Read {
        VersionList "version_list" ""
        LoadBalancerGet "loadbalancer_get" "loadbalancer"
        LoadBalancerList "loadbalancer_list" "loadbalancers"
        LoadBalancerStatusGet "loadbalancer_status_get" "statuses"
        ListenerGet "loadbalancer_listener_get" "listener"
        ListenerList "loadbalancer_listener_list" "listeners"
        PoolGet "loadbalancer_pool_get" "pool"
        PoolList "loadbalancer_pool_list" "pools"
        MemberGet "loadbalancer_member_get" "member"
        MemberList "loadbalancer_member_list" "members"
        MonitorGet "loadbalancer_healthmonitor_get" "healthmonitor"
        MonitorList "loadbalancer_healthmonitor_list" "healthmonitors"
        ProviderList "loadbalancer_provider_list" "providers"
        LbFlavorGet "loadbalancer_flavor_get" "flavor"
        LbFlavorList "loadbalancer_flavor_list" "flavors"
        LbZoneList "loadbalancer_availabilityzone_list" "availability_zones"
        LbQuotaGet "loadbalancer_quota_get" "quota"
    }
    LoadBalancer Write {
        LoadBalancerCreate "loadbalancer_create" "loadbalancer"
        LoadBalancerUpdate "loadbalancer_update" "loadbalancer"
        LoadBalancerDelete "loadbalancer_delete" ""
        LoadBalancerFailover "loadbalancer_failover" ""
        ListenerCreate "loadbalancer_listener_create" "listener"
        ListenerUpdate "loadbalancer_listener_update" "listener"
        ListenerDelete "loadbalancer_listener_delete" ""
        PoolCreate "loadbalancer_pool_create" "pool"
        PoolUpdate "loadbalancer_pool_update" "pool"
        PoolDelete "loadbalancer_pool_delete" ""
        MemberCreate "loadbalancer_member_create" "member"
        MemberUpdate "loadbalancer_member_update" "member"
        MemberDelete "loadbalancer_member_delete" ""
        MembersUpdate "loadbalancer_members_update" "members"
        MonitorCreate "loadbalancer_healthmonitor_create" "healthmonitor"
        MonitorUpdate "loadbalancer_healthmonitor_update" "healthmonitor"
        MonitorDelete "loadbalancer_healthmonitor_delete" ""
    }
    KeyManager Read {
        ContainerGet "container_get" ""
        SecretGet "secret_get" ""
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_distinct_and_only_changes_are_sent_as_changes() {
        let names: BTreeSet<_> = Call::ALL.iter().map(|call| call.name()).collect();
        assert_eq!(names.len(), Call::ALL.len());
        for call in Call::ALL {
            let verb = call.name().rsplit('_').next().unwrap_or_default();
            let reads = matches!(verb, "get" | "list") || *call == Call::TokenCreate;
            assert_eq!(call.class() == Class::Read, reads, "{call:?}");
        }
    }
}
