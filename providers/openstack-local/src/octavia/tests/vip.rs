//! Addresses: ports of Neutron that come and go with load balancers.

use crate::api::neutron::{FloatingIpCreate, PortCreate};

use super::*;
use crate::neutron::{floating_ips, ports};

#[test]
fn the_port_of_an_address_comes_and_goes_with_its_load_balancer() {
    for (provider, name, owner, device) in [
        ("amphora", "octavia-lb-", "Octavia", "lb-"),
        ("ovn", "ovn-lb-vip-", "ovn-lb-vip", "ovn-lb-"),
    ] {
        let mut cloud = Cloud::new();
        let lb = cloud.post_lb(json!({"provider": provider})).unwrap();
        let port = cloud
            .run(|state, ctx| ports::show(state, ctx, lb["vip_port_id"].as_str().unwrap()))
            .unwrap();
        let lb = id(&cloud.lb(&id(&lb)));
        assert_eq!((port.name, port.device_id), (format!("{name}{lb}"), format!("{device}{lb}")));
        assert_eq!((port.device_owner.as_str(), &*port.standard.project_id), (owner, PROJECT));
        let shown = cloud.lb(&lb);
        assert_eq!(shown["vip_address"], port.fixed_ips[0].ip_address.to_string());
        assert_eq!(
            (&shown["vip_subnet_id"], &shown["vip_network_id"]),
            (&json!(cloud.subnet), &json!(port.network_id))
        );
        cloud.rest();
        cloud
            .run(|state, ctx| load_balancers::delete(state, ctx, &lb, false))
            .unwrap();
        assert!(
            cloud
                .run(|state, ctx| ports::show(state, ctx, &port.id))
                .is_ok(),
            "as long as it is being deleted"
        );
        cloud.rest();
        assert_eq!(refusal(cloud.run(|state, ctx| ports::show(state, ctx, &port.id))).0, 404);
    }
}

#[test]
fn an_address_can_be_asked_for_and_is_given_once() {
    let mut cloud = Cloud::new();
    let lb = cloud.post_lb(json!({"vip_address": "127.1.0.77"})).unwrap();
    assert_eq!(lb["vip_address"], "127.1.0.77");
    assert_eq!(refusal(cloud.post_lb(json!({"vip_address": "127.1.0.77"}))).0, 409);
    assert_eq!(refusal(cloud.post_lb(json!({"vip_address": "10.0.0.1"}))).0, 400);
    assert_eq!(cloud.state.octavia.load_balancers.len(), 1);
}

#[test]
fn a_network_alone_gives_its_first_subnet() {
    let mut cloud = Cloud::new();
    let network = cloud
        .state
        .neutron
        .subnets
        .get(&cloud.subnet)
        .unwrap()
        .network_id
        .clone();
    let lb = cloud
        .post_lb(json!({"vip_network_id": network, "vip_subnet_id": null}))
        .unwrap();
    assert_eq!(lb["vip_subnet_id"], json!(cloud.subnet));
    let nowhere = cloud.post_lb(
        json!({"vip_network_id": network, "vip_subnet_id": null, "vip_address": "10.9.9.9"}),
    );
    assert_eq!(
        refusal(nowhere).1,
        "Validation failure: Supplied network does not contain a subnet for VIP address specified."
    );
    let unknown = "3f9ae6c8-0ad0-4a2d-9b3f-0b3cbf4e9d31";
    for (field, what) in
        [("vip_subnet_id", "Subnet"), ("vip_network_id", "Network"), ("vip_port_id", "Port")]
    {
        let text = format!("{what} {unknown} not found.");
        assert_eq!(refusal(cloud.post_lb(json!({field: unknown}))), (400, text));
    }
}

#[test]
fn a_port_that_was_there_stays() {
    let mut cloud = Cloud::new();
    let network_id = cloud
        .state
        .neutron
        .subnets
        .get(&cloud.subnet)
        .unwrap()
        .network_id
        .clone();
    let request = PortCreate { network_id, ..PortCreate::default() };
    let port = cloud
        .run(|state, ctx| ports::create(state, ctx, request))
        .unwrap();
    assert_eq!(port.security_groups.len(), 1, "that of the project");
    let body = json!({"vip_port_id": port.id, "vip_subnet_id": null});
    let lb = cloud.post_lb(body.clone()).unwrap();
    assert_eq!(
        (&lb["vip_address"], &lb["vip_port_id"]),
        (&json!(port.fixed_ips[0].ip_address), &json!(port.id))
    );
    assert_eq!(
        refusal(cloud.post_lb(body)),
        (
            400,
            format!(
                "Validation failure: Port {} is already used by device lb-{} ",
                port.id,
                id(&lb)
            )
        )
    );
    cloud.rest();
    cloud
        .run(|state, ctx| load_balancers::delete(state, ctx, &id(&lb), false))
        .unwrap();
    cloud.rest();
    let port = cloud
        .run(|state, ctx| ports::show(state, ctx, &port.id))
        .unwrap();
    assert_eq!((port.device_id.as_str(), port.device_owner.as_str()), ("", ""));
    // Octavia took its groups off, as the real one does.
    assert!(port.security_groups.is_empty(), "{port:?}");
}

/// A floating IP outlives the address that it was on.
#[test]
fn a_floating_ip_is_left_detached() {
    let mut cloud = Cloud::new();
    let external = cloud.external();
    let lb = cloud.post_lb(json!({})).unwrap();
    let port = lb["vip_port_id"].as_str().unwrap().to_owned();
    let request = FloatingIpCreate {
        floating_network_id: external,
        port_id: Some(port.clone()),
        ..FloatingIpCreate::default()
    };
    let floating = cloud
        .run(|state, ctx| floating_ips::create(state, ctx, request))
        .unwrap();
    assert_eq!(floating.port_id, Some(port));
    cloud.rest();
    cloud
        .run(|state, ctx| load_balancers::delete(state, ctx, &id(&lb), false))
        .unwrap();
    cloud.rest();
    let floating = cloud
        .run(|state, ctx| floating_ips::show(state, ctx, &floating.id))
        .unwrap();
    assert_eq!((floating.port_id, floating.fixed_ip_address), (None, None));
}
