//! Plans the next action for the floating IP of a load balancer. Pure.

use std::net::IpAddr;

use ccm_core::provider::{CloudError, ErrorKind};

use crate::{api::neutron::FloatingIp, lb::names};

/// Desired and observed state of the floating IP.
#[derive(Clone, Copy, Debug)]
pub struct FloatingIpInput<'a> {
    /// True when the Service is internal.
    pub internal: bool,
    /// True when this Service owns the load balancer. Only the owner may create or remove its
    /// floating IP.
    pub owner: bool,
    /// True when the floating IP must not be deleted.
    pub keep: bool,
    /// Address of the VIP.
    pub vip: IpAddr,
    /// Address that the Service requests.
    pub requested: Option<IpAddr>,
    /// Floating IP on the VIP's port.
    pub current: Option<&'a FloatingIp>,
    /// Result of looking up the requested address.
    pub lookup: &'a AddressLookup,
}

/// Result of looking up the floating IP with the address that a Service requests.
#[derive(Clone, Debug, Default)]
pub enum AddressLookup {
    /// The address was not looked up yet.
    #[default]
    NotDone,
    /// No floating IP has the address.
    NotFound,
    /// This floating IP has the address.
    Found(Box<FloatingIp>),
}

impl From<Option<FloatingIp>> for AddressLookup {
    fn from(found: Option<FloatingIp>) -> Self {
        match found {
            Some(floating_ip) => Self::Found(Box::new(floating_ip)),
            None => Self::NotFound,
        }
    }
}

/// The next action for a floating IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FloatingIpAction {
    /// Nothing is left to do, and the Service has this address.
    None(IpAddr),
    /// Deletes the floating IP with this ID, which was created for a Service.
    Delete(String),
    /// Detaches the floating IP with this ID, which a user created or wants to keep.
    Detach(String),
    /// Looks up the floating IP with this address, and plans again.
    LookUp(IpAddr),
    /// Attaches the floating IP with this ID to the VIP's port.
    Attach(String),
    /// Creates a floating IP, with this address if the Service requests one.
    Create(Option<IpAddr>),
}

/// Returns true if a floating IP was created for a Service, and not by a user.
pub fn is_managed(floating: &FloatingIp) -> bool {
    floating.description.starts_with(names::FLOATING_IP_PREFIX)
}

/// Plans the next action.
///
/// # Errors
/// Returns an error if the requested address is in use, or if a Service without floating IP does
/// not own the load balancer.
pub fn plan_floating_ip(input: &FloatingIpInput<'_>) -> Result<FloatingIpAction, CloudError> {
    if input.vip.is_ipv6() {
        return Ok(FloatingIpAction::None(input.vip));
    }
    if input.internal {
        return Ok(plan_internal(input));
    }
    if let Some(current) = input.current {
        let address = current.floating_ip_address.unwrap_or(input.vip);
        return Ok(FloatingIpAction::None(address));
    }
    if !input.owner {
        let message = "the load balancer has no floating IP, and only the Service that it was created for may give it one";
        return Err(CloudError::new(ErrorKind::Conflict, message));
    }
    match input.requested {
        Some(address) => plan_requested(address, input.lookup),
        None => Ok(FloatingIpAction::Create(None)),
    }
}

/// Plans to remove the floating IP of an internal Service from its own load balancer.
fn plan_internal(input: &FloatingIpInput<'_>) -> FloatingIpAction {
    match input.current {
        Some(current) if input.owner => {
            let id = current.id.clone();
            if is_managed(current) && !input.keep {
                FloatingIpAction::Delete(id)
            } else {
                FloatingIpAction::Detach(id)
            }
        }
        _ => FloatingIpAction::None(input.vip),
    }
}

/// Plans to use the address that the Service requests.
fn plan_requested(address: IpAddr, lookup: &AddressLookup) -> Result<FloatingIpAction, CloudError> {
    let found = match lookup {
        AddressLookup::NotDone => return Ok(FloatingIpAction::LookUp(address)),
        AddressLookup::NotFound => return Ok(FloatingIpAction::Create(Some(address))),
        AddressLookup::Found(found) => found,
    };
    match &found.port_id {
        None => Ok(FloatingIpAction::Attach(found.id.clone())),
        Some(port) => {
            let message = format!("floating IP {address} is in use by port {port}");
            Err(CloudError::new(ErrorKind::Conflict, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &str = "203.0.113.9";

    fn floating(id: &str, description: &str, port: Option<&str>) -> FloatingIp {
        let mut found = FloatingIp {
            id: id.into(),
            port_id: port.map(Into::into),
            ..FloatingIp::default()
        };
        found.floating_ip_address = ASKED.parse().ok();
        found.description = description.into();
        found
    }

    fn at(current: Option<&FloatingIp>) -> FloatingIpInput<'_> {
        let vip = "10.0.0.5".parse().unwrap();
        FloatingIpInput {
            internal: false,
            owner: true,
            keep: false,
            vip,
            requested: None,
            current,
            lookup: &AddressLookup::NotDone,
        }
    }

    #[test]
    fn an_external_service_keeps_what_it_has_or_gets_one() {
        let any = floating("f", "", Some("vip"));
        let asked: IpAddr = ASKED.parse().unwrap();
        assert_eq!(plan_floating_ip(&at(Some(&any))).unwrap(), FloatingIpAction::None(asked));
        assert_eq!(plan_floating_ip(&at(None)).unwrap(), FloatingIpAction::Create(None));
        assert!(plan_floating_ip(&FloatingIpInput { owner: false, ..at(None) }).is_err());
        assert_eq!(
            plan_floating_ip(&FloatingIpInput { owner: false, ..at(Some(&any)) }).unwrap(),
            FloatingIpAction::None(asked)
        );
        let vip = "2001:db8::1".parse().unwrap();
        assert_eq!(
            plan_floating_ip(&FloatingIpInput { vip, ..at(None) }).unwrap(),
            FloatingIpAction::None(vip)
        );
    }

    #[test]
    fn an_internal_service_loses_what_was_made_for_it_and_leaves_the_rest() {
        let ours = floating(
            "f",
            "Floating IP for Kubernetes external service ns/web from cluster c",
            Some("vip"),
        );
        let theirs = floating("f", "mine", Some("vip"));
        let internal = |current| FloatingIpInput { internal: true, ..at(current) };
        assert_eq!(
            plan_floating_ip(&internal(Some(&ours))).unwrap(),
            FloatingIpAction::Delete("f".into())
        );
        assert_eq!(
            plan_floating_ip(&internal(Some(&theirs))).unwrap(),
            FloatingIpAction::Detach("f".into())
        );
        assert_eq!(
            plan_floating_ip(&FloatingIpInput { keep: true, ..internal(Some(&ours)) }).unwrap(),
            FloatingIpAction::Detach("f".into())
        );
        assert_eq!(
            plan_floating_ip(&internal(None)).unwrap(),
            FloatingIpAction::None("10.0.0.5".parse().unwrap())
        );
    }

    #[test]
    fn an_asked_address_is_looked_for_put_on_or_made() {
        let asked: IpAddr = ASKED.parse().unwrap();
        let asks = |lookup| FloatingIpInput { requested: Some(asked), lookup, ..at(None) };
        let free = Some(floating("f", "", None)).into();
        let taken = Some(floating("f", "", Some("other"))).into();
        assert_eq!(
            plan_floating_ip(&asks(&AddressLookup::NotDone)).unwrap(),
            FloatingIpAction::LookUp(asked)
        );
        assert_eq!(
            plan_floating_ip(&asks(&AddressLookup::NotFound)).unwrap(),
            FloatingIpAction::Create(Some(asked))
        );
        assert_eq!(plan_floating_ip(&asks(&free)).unwrap(), FloatingIpAction::Attach("f".into()));
        assert!(
            plan_floating_ip(&asks(&taken))
                .unwrap_err()
                .to_string()
                .contains("in use")
        );
    }
}
