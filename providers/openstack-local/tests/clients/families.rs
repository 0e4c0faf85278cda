//! The data plane where one side, or both, is IPv6.

use std::net::{IpAddr, Ipv6Addr};

use crate::rig::{Fixture, Namer, ask, binary_header, client, text_header, udp};

const SIX: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

pub(crate) async fn datagrams_pass_between_address_families() {
    for (vip, node) in [("::1", "127.8.0.1:0"), ("127.7.0.1", "[::1]:0"), ("::1", "[::1]:0")] {
        let a = Namer::at("a", node.parse().unwrap()).await;
        let mut config = udp(&[&a]);
        config.vip = vip.parse().unwrap();
        let rig = Fixture::new(config).await;
        assert_eq!(ask(&client(&rig).await, vip).await, format!("a{vip}"));
    }
}

pub(crate) async fn members_are_told_an_ipv6_client_in_the_text_header() {
    text_header(SIX, "TCP6").await;
}

pub(crate) async fn members_are_told_an_ipv6_client_in_the_binary_header() {
    binary_header(SIX, b"\x21\x00\x24").await;
}
