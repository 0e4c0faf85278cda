//! Elastic Load Balancing: what AWS accepts as settings of a classic load balancer.

use super::{
    error::{ApiResult, invalid, refuse},
    state::Classic,
};
use crate::api::classic::{
    ClassicAttributes, ClassicHealthCheck, ClassicListener, CreateClassicPolicy,
};

const CONFLICT: &str = "InvalidConfigurationRequest";

/// Returns true if a protocol towards clients needs a certificate.
pub(super) fn is_tls(protocol: &str) -> bool {
    matches!(protocol, "SSL" | "HTTPS")
}

/// Checks a listener: known protocols of the same layer on both sides, and a certificate exactly
/// where one is needed.
pub(super) fn check_listener(
    listener: &ClassicListener,
    certificates: &[Box<str>],
) -> ApiResult<()> {
    let layer = |protocol: &str| match protocol {
        "TCP" | "SSL" => Some(4),
        "HTTP" | "HTTPS" => Some(7),
        _ => None,
    };
    let front = listener.protocol.to_ascii_uppercase();
    let back = listener.instance_protocol.to_ascii_uppercase();
    let (Some(front_layer), Some(back_layer)) = (layer(&front), layer(&back)) else {
        let message = format!("Listener protocols {front} and {back} are not supported");
        return refuse("UnsupportedProtocol", message);
    };
    if front_layer != back_layer {
        let message = format!("{front} and {back} are protocols of different layers");
        return refuse(CONFLICT, message);
    }
    if listener.port == 0 || listener.instance_port == 0 {
        return invalid("Ports are from 1 to 65535");
    }
    match (&listener.certificate, is_tls(&front)) {
        (None, true) => refuse("CertificateNotFound", format!("{front} needs a certificate")),
        (Some(_), false) => refuse(CONFLICT, format!("{front} has no certificate")),
        (Some(arn), true) if !certificates.contains(arn) => refuse(
            "CertificateNotFound",
            format!("Server Certificate not found for the key: {arn}"),
        ),
        _ => Ok(()),
    }
}

pub(super) fn check_health_check(check: &ClassicHealthCheck) -> ApiResult<()> {
    let Some((protocol, rest)) = check.target.split_once(':') else {
        return invalid(format!("HealthCheck target {} has no port", check.target));
    };
    let (port, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let fits = match protocol {
        "TCP" | "SSL" => path.is_empty(),
        "HTTP" | "HTTPS" => !path.is_empty() && path.len() <= 1024,
        _ => false,
    };
    if !fits || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return invalid(format!("HealthCheck target {} is not valid", check.target));
    }
    let numbers = (5..=300).contains(&check.interval)
        && (2..=60).contains(&check.timeout)
        && (2..=10).contains(&check.healthy)
        && (2..=10).contains(&check.unhealthy);
    if !numbers {
        return invalid("HealthCheck interval, timeout or threshold is out of range");
    }
    if check.timeout >= check.interval {
        return invalid("HealthCheck timeout must be less than interval");
    }
    Ok(())
}

pub(super) fn check_attributes(attributes: &ClassicAttributes) -> ApiResult<()> {
    if let Some(log) = &attributes.access_log {
        if log.enabled && log.bucket.as_ref().is_none_or(|bucket| bucket.is_empty()) {
            return refuse(CONFLICT, "An access log needs the name of a bucket");
        }
        if log
            .interval
            .is_some_and(|interval| ![5, 60].contains(&interval))
        {
            return invalid("EmitInterval must be 5 or 60");
        }
    }
    let timeout = attributes.draining.as_ref().and_then(|it| it.timeout);
    if timeout.is_some_and(|timeout| !(1..=3600).contains(&timeout)) {
        return invalid("ConnectionDraining.Timeout must be from 1 to 3600");
    }
    if attributes
        .idle_timeout
        .is_some_and(|timeout| !(1..=4000).contains(&timeout))
    {
        return invalid("ConnectionSettings.IdleTimeout must be from 1 to 4000");
    }
    Ok(())
}

/// Checks a new policy: a known type, its attribute, and a value of it.
pub(super) fn check_policy(c: &CreateClassicPolicy) -> ApiResult<()> {
    let (attribute, value) = (&*c.attribute.0, &*c.attribute.1);
    let fits = match &*c.kind {
        "ProxyProtocolPolicyType" => {
            attribute == "ProxyProtocol" && ["true", "false"].contains(&value)
        }
        "SSLNegotiationPolicyType" => {
            attribute == "Reference-Security-Policy" && value.starts_with("ELBSecurityPolicy-")
        }
        "BackendServerAuthenticationPolicyType" => attribute == "PublicKeyPolicyName",
        kind => return refuse("PolicyTypeNotFound", format!("There is no policy type {kind}")),
    };
    if fits {
        Ok(())
    } else {
        refuse(CONFLICT, format!("The policy cannot have {attribute}={value}"))
    }
}

/// Checks that policies exist and are of a type that fits.
pub(super) fn check_policy_kinds(
    classic: &Classic,
    policies: &[Box<str>],
    kinds: &[&str],
) -> ApiResult<()> {
    for name in policies {
        match classic.policies.get(name) {
            None => return refuse("PolicyNotFound", format!("There is no policy {name}")),
            Some(policy) if !kinds.contains(&&*policy.kind) => {
                let message = format!("The policy {name} is of another type: {}", policy.kind);
                return refuse(CONFLICT, message);
            }
            Some(_) => {}
        }
    }
    Ok(())
}
