//! Elastic Load Balancing: listeners and their certificates.

use super::{
    attributes,
    error::{ApiRejection, ApiResult, invalid, refuse},
    lists::page,
    state::{AccountState, Listener},
    tags::check_elb_tags,
};
use crate::api::{
    ListenerArn, LoadBalancerArn, Page,
    elb::{self, Certificate, ElbProtocol, IpAddressType, ListenerSpec},
};

const UNKNOWN: &str = "ListenerNotFound";
const CONFLICT: &str = "InvalidConfigurationRequest";
/// Default security policy of a TLS listener.
const DEFAULT_POLICY: &str = "ELBSecurityPolicy-2016-08";
const POLICIES: &[&str] = &[
    DEFAULT_POLICY,
    "ELBSecurityPolicy-2015-05",
    "ELBSecurityPolicy-TLS-1-0-2015-04",
    "ELBSecurityPolicy-TLS-1-1-2017-01",
    "ELBSecurityPolicy-TLS-1-2-2017-01",
    "ELBSecurityPolicy-TLS-1-2-Ext-2018-06",
    "ELBSecurityPolicy-FS-2018-06",
    "ELBSecurityPolicy-FS-1-1-2019-08",
    "ELBSecurityPolicy-FS-1-2-2019-08",
    "ELBSecurityPolicy-FS-1-2-Res-2019-08",
    "ELBSecurityPolicy-FS-1-2-Res-2020-10",
    "ELBSecurityPolicy-TLS13-1-0-2021-06",
    "ELBSecurityPolicy-TLS13-1-1-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-Res-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-Ext1-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-Ext2-2021-06",
    "ELBSecurityPolicy-TLS13-1-3-2021-06",
];
const ALPN: &[&str] = &["None", "HTTP1Only", "HTTP2Only", "HTTP2Optional", "HTTP2Preferred"];

impl AccountState {
    pub(super) fn describe_listeners(
        &self,
        c: &elb::DescribeListeners,
    ) -> ApiResult<Page<elb::Listener>> {
        self.shown_balancer(&c.load_balancer)?;
        let found = self.listeners.iter().filter(|(_, listener)| {
            listener.load_balancer == c.load_balancer && listener.created.shown()
        });
        let found = found.map(|(arn, listener)| (arn.to_string(), show(arn, listener)));
        page(
            found.collect(),
            c.token.as_deref(),
            self.options.page_size.min(400),
            "ValidationError",
        )
    }

    pub(super) fn create_listener(&mut self, c: &elb::CreateListener) -> ApiResult<elb::Listener> {
        let spec = &c.spec;
        // First, check the settings; the same listener with the same settings returns the existing
        // one.
        self.balancer(&c.load_balancer)?;
        self.check_spec(&c.load_balancer, spec, None)?;
        let there = self
            .listeners
            .iter()
            .find(|(_, have)| on_port(have, &c.load_balancer, spec));
        if let Some((arn, have)) = there {
            return if same(have, spec) {
                Ok(show(arn, have))
            } else {
                refuse(
                    "DuplicateListener",
                    format!(
                        "A listener already exists on this port for this load balancer '{}'",
                        c.load_balancer
                    ),
                )
            };
        }
        // Then check tags and quota.
        check_elb_tags(&c.tags, c.tags.len(), self.options.quotas.tags)?;
        let count = self
            .listeners
            .values()
            .filter(|have| have.load_balancer == c.load_balancer)
            .count();
        if count >= self.options.quotas.listeners_per_load_balancer {
            return refuse(
                "TooManyListeners",
                "The load balancer has reached the limit of listeners",
            );
        }
        // Finally, create the listener.
        let path = c
            .load_balancer
            .split_once("loadbalancer/")
            .map_or("", |(_, path)| path)
            .to_owned();
        let arn = ListenerArn::from(self.arn("listener", &path));
        let tls = spec.protocol == ElbProtocol::Tls;
        let listener = Listener {
            load_balancer: c.load_balancer.clone(),
            port: spec.port.get(),
            protocol: spec.protocol,
            target_group: spec.target_group.clone(),
            certificate: spec.certificate.clone(),
            more_certificates: Vec::new(),
            ssl_policy: spec
                .ssl_policy
                .clone()
                .or_else(|| tls.then(|| DEFAULT_POLICY.into())),
            alpn_policy: spec.alpn_policy.clone(),
            attributes: attributes::of_listener(spec.protocol),
            tags: c.tags.clone(),
            created: self.creation_time(),
        };
        let shown = show(&arn, &listener);
        self.listeners.insert(arn, listener);
        Ok(shown)
    }

    pub(super) fn modify_listener(&mut self, c: &elb::ModifyListener) -> ApiResult<()> {
        let spec = &c.spec;
        let listener = self.listener(&c.arn)?;
        let balancer = listener.load_balancer.clone();
        self.check_spec(&balancer, spec, Some(listener))?;
        if self
            .listeners
            .iter()
            .any(|(arn, have)| *arn != c.arn && on_port(have, &balancer, spec))
        {
            return refuse(
                "DuplicateListener",
                format!("Listener port '{}' is already in use", spec.port),
            );
        }
        let tls = spec.protocol == ElbProtocol::Tls;
        let listener = self.listener_mut(&c.arn)?;
        if listener.protocol != spec.protocol {
            listener.attributes = attributes::of_listener(spec.protocol);
        }
        listener.port = spec.port.get();
        listener.protocol = spec.protocol;
        listener.target_group = spec.target_group.clone();
        match tls {
            // Settings that are not given keep their values.
            true => {
                listener.certificate = spec
                    .certificate
                    .clone()
                    .or_else(|| listener.certificate.take());
                let policy = spec
                    .ssl_policy
                    .clone()
                    .or_else(|| listener.ssl_policy.take());
                listener.ssl_policy = Some(policy.unwrap_or_else(|| DEFAULT_POLICY.into()));
                listener.alpn_policy = spec
                    .alpn_policy
                    .clone()
                    .or_else(|| listener.alpn_policy.take());
                let default = listener.certificate.clone();
                listener
                    .more_certificates
                    .retain(|more| Some(more) != default.as_ref());
            }
            false => {
                listener.certificate = None;
                listener.ssl_policy = None;
                listener.alpn_policy = None;
                listener.more_certificates.clear();
            }
        }
        Ok(())
    }

    pub(super) fn delete_listener(&mut self, c: &elb::DeleteListener) -> ApiResult<()> {
        self.listener(&c.arn)?;
        self.listeners.remove(&c.arn);
        Ok(())
    }

    /// Checks the settings of a listener, which is new or replaces `old`.
    fn check_spec(
        &self,
        balancer: &LoadBalancerArn,
        spec: &ListenerSpec,
        old: Option<&Listener>,
    ) -> ApiResult<()> {
        // First, the protocol has to fit the target group's.
        self.check_tls(spec, old)?;
        let group = self.target_group(&spec.target_group)?;
        let fits = match spec.protocol {
            ElbProtocol::Tcp => matches!(group.protocol, ElbProtocol::Tcp | ElbProtocol::TcpUdp),
            ElbProtocol::Tls => matches!(group.protocol, ElbProtocol::Tcp | ElbProtocol::Tls),
            ElbProtocol::Udp => matches!(group.protocol, ElbProtocol::Udp | ElbProtocol::TcpUdp),
            ElbProtocol::TcpUdp => group.protocol == ElbProtocol::TcpUdp,
        };
        if !fits {
            let message = format!(
                "Target group '{}' has protocol {} which is incompatible with listener protocol {}",
                spec.target_group, group.protocol, spec.protocol
            );
            return refuse("IncompatibleProtocols", message);
        }
        // Then the target group must belong to no other load balancer, and to the same VPC.
        if self
            .users(&spec.target_group)
            .iter()
            .any(|user| user != balancer)
        {
            let message = format!(
                "The following target groups cannot be associated with more than one load balancer: {}",
                spec.target_group
            );
            return refuse("TargetGroupAssociationLimit", message);
        }
        let Some(balancer) = self.balancers.get(balancer) else {
            return Ok(());
        };
        if balancer.vpc != group.vpc {
            return refuse(
                CONFLICT,
                "The load balancer and the target group are in different VPCs",
            );
        }
        // Finally, the address families have to fit.
        let udp = matches!(spec.protocol, ElbProtocol::Udp | ElbProtocol::TcpUdp);
        match (balancer.ip_address_type, group.ip_address_type) {
            (IpAddressType::Dualstack, IpAddressType::Ipv4) if udp => refuse(
                CONFLICT,
                "UDP listeners of a dualstack load balancer need IPv6 target groups",
            ),
            (IpAddressType::Dualstack, _) if udp && !balancer.ipv6_source_nat => refuse(
                CONFLICT,
                "UDP listeners of a dualstack load balancer need EnablePrefixForIpv6SourceNat",
            ),
            (IpAddressType::Ipv4, IpAddressType::Ipv6) => {
                refuse(CONFLICT, "IPv6 target groups need a dualstack load balancer")
            }
            _ => Ok(()),
        }
    }

    fn check_tls(&self, spec: &ListenerSpec, old: Option<&Listener>) -> ApiResult<()> {
        if spec.protocol != ElbProtocol::Tls {
            let extra = spec.certificate.is_some()
                || spec.ssl_policy.is_some()
                || spec.alpn_policy.is_some();
            return if extra {
                invalid(format!(
                    "Certificates and policies cannot be specified for {} listeners",
                    spec.protocol
                ))
            } else {
                Ok(())
            };
        }
        if spec.certificate.is_none() && old.is_none_or(|old| old.certificate.is_none()) {
            return invalid("A certificate must be specified for TLS listeners");
        }
        if let Some(certificate) = &spec.certificate {
            self.check_certificate(certificate)?;
        }
        if let Some(policy) = spec
            .ssl_policy
            .as_ref()
            .filter(|policy| !POLICIES.contains(&&***policy))
        {
            return refuse("SSLPolicyNotFound", format!("SSL policy '{policy}' not found"));
        }
        if let Some(policy) = spec
            .alpn_policy
            .as_ref()
            .filter(|policy| !ALPN.contains(&&***policy))
        {
            return invalid(format!("ALPN policy '{policy}' is not valid"));
        }
        Ok(())
    }

    fn check_certificate(&self, certificate: &str) -> ApiResult<()> {
        if self.certificates.iter().any(|have| **have == *certificate) {
            Ok(())
        } else {
            refuse("CertificateNotFound", format!("Certificate '{certificate}' not found"))
        }
    }

    pub(super) fn listener_certificates(
        &self,
        c: &elb::DescribeListenerCertificates,
    ) -> ApiResult<Page<Certificate>> {
        let listener = self.shown_listener(&c.arn)?;
        let default = listener
            .certificate
            .iter()
            .map(|arn| Certificate { arn: arn.clone(), default: true });
        let more = listener
            .more_certificates
            .iter()
            .map(|arn| Certificate { arn: arn.clone(), default: false });
        Ok(Page::only(default.chain(more).collect()))
    }

    pub(super) fn add_certificates(&mut self, c: &elb::AddListenerCertificates) -> ApiResult<()> {
        let balancer = self.tls_listener(&c.arn)?.load_balancer.clone();
        only_one(&c.certificates)?;
        for certificate in &c.certificates {
            self.check_certificate(certificate)?;
        }
        let listener = self.listener(&c.arn)?;
        let known = |arn| {
            listener.more_certificates.contains(arn) || listener.certificate.as_ref() == Some(arn)
        };
        let new: Vec<_> = c
            .certificates
            .iter()
            .filter(|arn| !known(arn))
            .cloned()
            .collect();
        let siblings = self
            .listeners
            .values()
            .filter(|listener| listener.load_balancer == balancer);
        let count: usize = siblings
            .map(|listener| listener.more_certificates.len())
            .sum();
        if count + new.len() > self.options.quotas.certificates_per_load_balancer {
            return refuse(
                "TooManyCertificates",
                "The load balancer has reached the limit of certificates",
            );
        }
        self.listener_mut(&c.arn)?.more_certificates.extend(new);
        Ok(())
    }

    pub(super) fn remove_certificates(
        &mut self,
        c: &elb::RemoveListenerCertificates,
    ) -> ApiResult<()> {
        let listener = self.tls_listener(&c.arn)?;
        only_one(&c.certificates)?;
        if listener
            .certificate
            .as_ref()
            .is_some_and(|default| c.certificates.contains(default))
        {
            return refuse(
                "OperationNotPermitted",
                "The default certificate of a listener cannot be removed",
            );
        }
        self.listener_mut(&c.arn)?
            .more_certificates
            .retain(|arn| !c.certificates.contains(arn));
        Ok(())
    }

    fn tls_listener(&self, arn: &ListenerArn) -> ApiResult<&Listener> {
        let listener = self.listener(arn)?;
        match listener.protocol {
            ElbProtocol::Tls => Ok(listener),
            other => invalid(format!("Certificates cannot be specified for {other} listeners")),
        }
    }

    pub(super) fn listener(&self, arn: &ListenerArn) -> ApiResult<&Listener> {
        match self
            .listeners
            .get(arn)
            .filter(|listener| listener.created.found())
        {
            Some(listener) => Ok(listener),
            None => refuse(UNKNOWN, format!("Listener '{arn}' not found")),
        }
    }

    pub(super) fn listener_mut(&mut self, arn: &ListenerArn) -> ApiResult<&mut Listener> {
        self.listener(arn)?;
        self.listeners
            .get_mut(arn)
            .ok_or_else(|| ApiRejection::new(UNKNOWN, "Listener not found"))
    }

    pub(super) fn shown_listener(&self, arn: &ListenerArn) -> ApiResult<&Listener> {
        match self
            .listeners
            .get(arn)
            .filter(|listener| listener.created.shown())
        {
            Some(listener) => Ok(listener),
            None => refuse(UNKNOWN, format!("Listener '{arn}' not found")),
        }
    }
}

/// Checks that there is exactly one certificate, since AWS accepts one per call.
fn only_one(certificates: &[Box<str>]) -> ApiResult<()> {
    match certificates {
        [_] => Ok(()),
        _ => invalid(format!("You must specify one certificate, not {}", certificates.len())),
    }
}

/// Returns true if a listener is on the port of `spec`. A port has at most one listener, whatever
/// its protocol: TCP and UDP on the same port are one listener with protocol TCP_UDP.
fn on_port(have: &Listener, balancer: &LoadBalancerArn, spec: &ListenerSpec) -> bool {
    have.load_balancer == *balancer && have.port == spec.port.get()
}

fn same(have: &Listener, spec: &ListenerSpec) -> bool {
    have.protocol == spec.protocol
        && have.target_group == spec.target_group
        && have.certificate == spec.certificate
        && spec
            .ssl_policy
            .as_ref()
            .is_none_or(|policy| have.ssl_policy.as_ref() == Some(policy))
        && have.alpn_policy == spec.alpn_policy
}

pub(super) fn show(arn: &ListenerArn, listener: &Listener) -> elb::Listener {
    elb::Listener {
        arn: arn.clone(),
        port: listener.port,
        protocol: Some(listener.protocol),
        certificate: listener.certificate.clone(),
        ssl_policy: listener.ssl_policy.clone(),
        alpn_policy: listener.alpn_policy.clone(),
        target_group: Some(listener.target_group.clone()),
    }
}
