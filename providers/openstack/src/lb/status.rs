//! Builds the status of a Service.

use std::net::IpAddr;

use ccm_core::k8s::{LbIngress, LbStatus};

use super::model::StatusFormat;

/// Returns the status of a load balancer with this address.
///
/// A host name made of the address keeps clients inside the cluster from bypassing the load
/// balancer, which adds a header to what it forwards; `ipMode: Proxy` says the same to clusters
/// that support it.
pub(super) fn of(address: IpAddr, published_address: &StatusFormat) -> LbStatus {
    let hostname =
        |hostname: Box<str>| LbIngress { hostname: Some(hostname), ..LbIngress::default() };
    let ip = |mode: &str| LbIngress {
        ip: Some(address),
        ip_mode: Some(mode.into()),
        ..LbIngress::default()
    };
    let ingress =
        match (&published_address.hostname, published_address.proxy, &published_address.suffix) {
            (Some(name), ..) => hostname(name.clone()),
            (None, true, Some(suffix)) => hostname(format!("{address}.{suffix}").into()),
            (None, true, None) => ip("Proxy"),
            (None, false, _) => ip("VIP"),
        };
    LbStatus { ingress: vec![ingress] }
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
        for (shown, (ip, hostname, mode)) in cases {
            let status = of("10.10.0.6".parse().unwrap(), &shown);
            let [ingress] = &*status.ingress else {
                panic!("{status:?}")
            };
            assert_eq!(ingress.ip.map(|ip| ip.to_string()).as_deref(), ip, "{shown:?}");
            assert_eq!(ingress.hostname.as_deref(), hostname, "{shown:?}");
            assert_eq!(ingress.ip_mode.as_deref(), mode, "{shown:?}");
        }
    }
}
