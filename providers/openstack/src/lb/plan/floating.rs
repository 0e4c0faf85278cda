//! What becomes of the floating IP.

use std::net::IpAddr;

use ccm_core::provider::{CloudError, ErrorKind};
use openstack_api::neutron::FloatingIp;

use crate::lb::names;

/// What decides.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Whether the Service is internal.
    pub internal: bool,
    /// Whether the balancer is this Service's: only then it may have a floating IP made.
    pub owner: bool,
    /// Whether the floating IP stays where it is allocated.
    pub keep: bool,
    /// Address of the VIP.
    pub vip: IpAddr,
    /// Address that the Service asks for.
    pub asked: Option<IpAddr>,
    /// Floating IP on the VIP's port.
    pub current: Option<&'a FloatingIp>,
    /// What there is under the address that is asked for; `None` when that was not looked for.
    pub found: Option<Option<&'a FloatingIp>>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: this address is the Service's.
    Show(IpAddr),
    /// Delete this one, which was made for a Service.
    Delete(String),
    /// Take this one off, which was not, or is to be kept.
    Detach(String),
    /// See whether there is one with this address.
    Look(IpAddr),
    /// Put this one on.
    Attach(String),
    /// Make one, with an address if one is asked for.
    Create(Option<IpAddr>),
}

/// Tells whether a floating IP was made for a Service.
pub fn is_ours(floating: &FloatingIp) -> bool {
    floating.standard.description.starts_with(names::FLOATING_IP_PREFIX)
}

/// Decides.
///
/// # Errors
/// The address that is asked for is another's, or the Service would need one and may not have it made.
pub fn decide(at: &Situation<'_>) -> Result<Decision, CloudError> {
    if at.vip.is_ipv6() {
        return Ok(Decision::Show(at.vip));
    }
    match at.current {
        Some(current) if at.internal && at.owner => {
            let id = current.id.clone();
            let delete = !at.keep && is_ours(current);
            Ok(if delete { Decision::Delete(id) } else { Decision::Detach(id) })
        }
        Some(current) if !at.internal => Ok(Decision::Show(current.floating_ip_address.unwrap_or(at.vip))),
        _ if at.internal => Ok(Decision::Show(at.vip)),
        _ if !at.owner => {
            let message =
                "the load balancer has no floating IP, and only the Service that it was made for may give it one";
            Err(CloudError::new(ErrorKind::Conflict, message))
        }
        _ => match (at.asked, at.found) {
            (None, _) => Ok(Decision::Create(None)),
            (Some(asked), None) => Ok(Decision::Look(asked)),
            (Some(asked), Some(None)) => Ok(Decision::Create(Some(asked))),
            (Some(_), Some(Some(found))) if found.port_id.is_none() => Ok(Decision::Attach(found.id.clone())),
            (Some(asked), Some(Some(found))) => {
                let port = found.port_id.as_deref().unwrap_or_default();
                let message = format!("floating IP {asked} is in use by port {port}");
                Err(CloudError::new(ErrorKind::Conflict, message))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &str = "203.0.113.9";

    fn floating(id: &str, description: &str, port: Option<&str>) -> FloatingIp {
        let mut found = FloatingIp { id: id.into(), port_id: port.map(Into::into), ..FloatingIp::default() };
        found.floating_ip_address = ASKED.parse().ok();
        found.standard.description = description.into();
        found
    }

    fn at(current: Option<&FloatingIp>) -> Situation<'_> {
        let vip = "10.0.0.5".parse().unwrap();
        Situation { internal: false, owner: true, keep: false, vip, asked: None, current, found: None }
    }

    #[test]
    fn an_external_service_keeps_what_it_has_or_gets_one() {
        let any = floating("f", "", Some("vip"));
        let asked: IpAddr = ASKED.parse().unwrap();
        assert_eq!(decide(&at(Some(&any))).unwrap(), Decision::Show(asked));
        assert_eq!(decide(&at(None)).unwrap(), Decision::Create(None));
        assert!(decide(&Situation { owner: false, ..at(None) }).is_err());
        assert_eq!(decide(&Situation { owner: false, ..at(Some(&any)) }).unwrap(), Decision::Show(asked));
        let vip = "2001:db8::1".parse().unwrap();
        assert_eq!(decide(&Situation { vip, ..at(None) }).unwrap(), Decision::Show(vip));
    }

    #[test]
    fn an_internal_service_loses_what_was_made_for_it_and_leaves_the_rest() {
        let ours = floating("f", "Floating IP for Kubernetes external service ns/web from cluster c", Some("vip"));
        let theirs = floating("f", "mine", Some("vip"));
        let internal = |current| Situation { internal: true, ..at(current) };
        assert_eq!(decide(&internal(Some(&ours))).unwrap(), Decision::Delete("f".into()));
        assert_eq!(decide(&internal(Some(&theirs))).unwrap(), Decision::Detach("f".into()));
        assert_eq!(decide(&Situation { keep: true, ..internal(Some(&ours)) }).unwrap(), Decision::Detach("f".into()));
        assert_eq!(decide(&internal(None)).unwrap(), Decision::Show("10.0.0.5".parse().unwrap()));
    }

    #[test]
    fn an_asked_address_is_looked_for_put_on_or_made() {
        let asked: IpAddr = ASKED.parse().unwrap();
        let asks = |found| Situation { asked: Some(asked), found, ..at(None) };
        let (free, taken) = (floating("f", "", None), floating("f", "", Some("other")));
        assert_eq!(decide(&asks(None)).unwrap(), Decision::Look(asked));
        assert_eq!(decide(&asks(Some(None))).unwrap(), Decision::Create(Some(asked)));
        assert_eq!(decide(&asks(Some(Some(&free)))).unwrap(), Decision::Attach("f".into()));
        assert!(decide(&asks(Some(Some(&taken)))).unwrap_err().to_string().contains("in use"));
    }
}
