//! Formats the effective settings, without secrets, for the log at startup.

use std::fmt::Display;

use ccm_core::k8s::IpFamily;

use super::{DefaultType, OverriddenService, ServiceOverride, Settings};

impl Settings {
    /// Returns every key with its effective value, which is empty if the key is not set. `Zone` is
    /// shown as `Region`.
    pub fn effective(&self) -> Vec<(&'static str, String)> {
        let mut shown = vec![
            ("Region", option(self.region.as_ref())),
            ("VPC", option(self.vpc.as_ref())),
            ("SubnetID", option(self.subnet.as_ref())),
            ("RouteTableID", list(&self.route_tables)),
            ("RoleARN", option(self.role.as_ref().map(|role| &role.arn))),
            ("SourceARN", option(self.role.as_ref().and_then(|role| role.source.as_ref()))),
            ("KubernetesClusterTag", option(self.cluster_tag.as_ref())),
            ("KubernetesClusterID", option(self.cluster_id.as_ref())),
            ("DisableSecurityGroupIngress", self.disable_security_group_ingress.to_string()),
            ("ElbSecurityGroup", option(self.protected_security_group.as_ref())),
            ("NodeIPFamilies", self.families()),
            ("ClusterServiceLoadBalancerHealthProbeMode", self.probe_mode().to_owned()),
            ("SupportedTopologyInstanceTypePattern", self.topology_types.as_str().to_owned()),
            ("NLBSecurityGroupMode", self.security_group_mode().to_owned()),
            ("DefaultLoadBalancerType", self.default_type.as_str().to_owned()),
            ("ClaimExternalLoadBalancers", self.claim_external.to_string()),
            ("LoadBalancerClass", list(&self.classes)),
            ("DefaultTargetType", self.default_target_type.to_string()),
            ("AnnotationDialect", self.annotation_dialect.as_str().to_owned()),
            ("EnableSharedBackendSecurityGroup", self.shared_backend_security_group.to_string()),
            ("BackendSecurityGroup", option(self.backend_security_group.as_ref())),
            ("RemoveDeletionProtection", self.remove_deletion_protection.to_string()),
            ("DriftCheckInterval", format!("{:?}", self.drift_check_interval)),
        ];
        if let Some(probe) = &self.shared_health_probe {
            shown.push(("ClusterServiceSharedLoadBalancerHealthProbePort", probe.port.to_string()));
            shown.push(("ClusterServiceSharedLoadBalancerHealthProbePath", probe.path.to_string()));
        }
        shown.extend(self.rates());
        for ServiceOverride { service, region, url, .. } in &self.overrides {
            let service = service_name(service);
            let text = format!("{service} in {region}: {}", redact_url(url));
            shown.push(("ServiceOverride", text));
        }
        shown
    }

    fn families(&self) -> String {
        let names: Vec<_> = self.node_ip_families.iter().copied().map(family).collect();
        names.join(",")
    }

    fn security_group_mode(&self) -> &'static str {
        if self.managed_security_groups {
            "Managed"
        } else {
            ""
        }
    }

    fn probe_mode(&self) -> &'static str {
        if self.shared_health_probe.is_some() {
            "Shared"
        } else {
            "ServiceNodePort"
        }
    }

    fn rates(&self) -> Vec<(&'static str, String)> {
        let limits = &self.limits;
        let rates = [
            ("EC2ReadQPS", "EC2ReadBurst", limits.ec2_read),
            ("EC2WriteQPS", "EC2WriteBurst", limits.ec2_write),
            ("EC2TopologyQPS", "EC2TopologyBurst", limits.topology),
            ("ELBReadQPS", "ELBReadBurst", limits.elb_read),
            ("ELBRegisterQPS", "ELBRegisterBurst", limits.elb_register),
            ("ELBWriteQPS", "ELBWriteBurst", limits.elb_write),
        ];
        let mut shown = Vec::new();
        for (qps_key, burst_key, rate) in rates {
            shown.push((qps_key, rate.per_second.to_string()));
            shown.push((burst_key, rate.burst.to_string()));
        }
        shown
    }

    /// Logs warnings about keys without effect, the keys that differ from the defaults, and all
    /// keys at debug level.
    pub fn log(&self) {
        for warning in &self.warnings {
            tracing::warn!("cloud config: {warning}");
        }
        let defaults = Self::default().effective();
        let effective = self.effective();
        let changed: Vec<String> = effective
            .iter()
            .filter(|entry| !defaults.contains(entry))
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect();
        tracing::info!(
            settings = changed.join(" "),
            "cloud config: settings that differ from the defaults"
        );
        for (key, value) in effective {
            tracing::debug!(key, value, "cloud config");
        }
    }
}

impl DefaultType {
    /// Returns the value as in the configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unset => "",
            Self::Nlb => "nlb",
            Self::None => "none",
        }
    }
}

fn option<T: Display>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn list<T: Display>(values: &[T]) -> String {
    let texts: Vec<_> = values.iter().map(ToString::to_string).collect();
    texts.join(",")
}

fn family(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    }
}

/// Returns the service's ID, as the SDK has it.
pub(super) fn service_name(service: &OverriddenService) -> &str {
    match service {
        OverriddenService::Ec2 => "EC2",
        OverriddenService::Elb => "Elastic Load Balancing v2",
        OverriddenService::Classic => "Elastic Load Balancing",
        OverriddenService::Sts => "STS",
        OverriddenService::Imds => "ec2imds",
        OverriddenService::Other(name) => name,
    }
}

/// Removes user, password and query from a URL.
pub(super) fn redact_url(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, without_scheme)) = url.split_once("://") else {
        return String::new();
    };
    let path_start = without_scheme.find('/').unwrap_or(without_scheme.len());
    let (authority, path) = without_scheme.split_at(path_start);
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}
