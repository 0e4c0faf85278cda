//! Builds the status of a Service.

use std::net::IpAddr;

use ccm_core::k8s::{LbIngress, LbStatus};

use super::model::StatusFormat;

/// Returns the status of a load balancer with this address, and a second one if it has two.
///
/// A host name made of the address keeps clients inside the cluster from bypassing the load
/// balancer, which adds a header to what it forwards; `ipMode: Proxy` says the same to clusters
/// that support it.
pub(super) fn build(address: IpAddr, second: Option<IpAddr>, format: &StatusFormat) -> LbStatus {
    let mut addresses = vec![address];
    // A host name stands for both, and none can be made of an IPv6 address.
    let has_hostname = format.hostname.is_some() || (format.proxy && format.suffix.is_some());
    if !has_hostname {
        addresses.extend(second);
    }
    LbStatus {
        ingress: addresses
            .into_iter()
            .map(|address| ingress(address, format))
            .collect(),
    }
}

fn ingress(address: IpAddr, format: &StatusFormat) -> LbIngress {
    if let Some(hostname) = &format.hostname {
        return ingress_with_hostname(hostname.clone());
    }
    if !format.proxy {
        return ingress_with_ip(address, "VIP");
    }
    match &format.suffix {
        Some(suffix) => ingress_with_hostname(format!("{address}.{suffix}").into()),
        None => ingress_with_ip(address, "Proxy"),
    }
}

fn ingress_with_hostname(hostname: Box<str>) -> LbIngress {
    LbIngress { hostname: Some(hostname), ..LbIngress::default() }
}

fn ingress_with_ip(address: IpAddr, mode: &str) -> LbIngress {
    LbIngress {
        ip: Some(address),
        ip_mode: Some(mode.into()),
        ..LbIngress::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A01 A02 A03 A04
    #[test]
    fn host_names_go_before_addresses() {
        let suffix: Option<Box<str>> = Some("nip.io".into());
        let named = StatusFormat {
            hostname: Some("web.example.org".into()),
            proxy: true,
            suffix: suffix.clone(),
        };
        let cases = [
            (named, (None, Some("web.example.org"), None)),
            (
                StatusFormat {
                    proxy: true,
                    suffix: suffix.clone(),
                    ..StatusFormat::default()
                },
                (None, Some("10.10.0.6.nip.io"), None),
            ),
            (
                StatusFormat { suffix, ..StatusFormat::default() },
                (Some("10.10.0.6"), None, Some("VIP")),
            ),
            (
                StatusFormat { proxy: true, ..StatusFormat::default() },
                (Some("10.10.0.6"), None, Some("Proxy")),
            ),
        ];
        for (format, (ip, hostname, mode)) in cases {
            let status = build("10.10.0.6".parse().unwrap(), None, &format);
            let [ingress] = &*status.ingress else {
                panic!("{status:?}")
            };
            assert_eq!(ingress.ip.map(|ip| ip.to_string()).as_deref(), ip, "{format:?}");
            assert_eq!(ingress.hostname.as_deref(), hostname, "{format:?}");
            assert_eq!(ingress.ip_mode.as_deref(), mode, "{format:?}");
        }
    }

    /// The API server would reject a host name such as `2001:db8::5.nip.io`, and the status with it.
    #[test]
    fn no_host_name_is_made_of_a_second_address() {
        let second = Some("2001:db8::5".parse().unwrap());
        let count = |format: &StatusFormat| {
            build("10.10.0.6".parse().unwrap(), second, format)
                .ingress
                .len()
        };
        let proxy = StatusFormat { proxy: true, ..StatusFormat::default() };
        let suffix = StatusFormat { suffix: Some("nip.io".into()), ..proxy.clone() };
        assert_eq!([count(&StatusFormat::default()), count(&proxy), count(&suffix)], [2, 2, 1]);
    }
}
