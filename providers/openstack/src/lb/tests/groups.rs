//! Security groups of Services.

use ccm_core::k8s::ServiceView;

use super::fixture::{Fixture, address, service};

async fn managed(nodes: usize) -> Fixture {
    Fixture::with(nodes, |settings, _| settings.manage_security_groups = true).await
}

fn admits(rig: &Fixture) -> Vec<(u16, String)> {
    let rules = rig.rules();
    let mut found: Vec<_> = rules
        .iter()
        .map(|rule| {
            (rule.port_range_min.unwrap_or(0), rule.remote_ip_prefix.clone().unwrap_or_default())
        })
        .collect();
    found.sort();
    found
}

#[tokio::test(start_paused = true)]
async fn a_group_admits_the_subnet_to_node_ports_and_follows_nodes() {
    let mut rig = managed(2).await;
    let web = rig.settle(&service("web", &[80, 443])).await;
    let subnet = || "10.0.0.0/16".to_owned();
    assert_eq!(
        admits(&rig),
        [(30080, subnet()), (30443, subnet())],
        "and the rules of a new group are gone"
    );
    assert_eq!(rig.admitted(), [address(0), address(1)]);
    rig.add_node().await;
    rig.nodes.remove(0);
    rig.update(&web).await.unwrap();
    assert_eq!(rig.admitted(), [address(1), address(2)], "the node that left has it no more");
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    let less = rig.settle(&service("web", &[80])).await;
    assert_eq!(admits(&rig), [(30080, subnet())]);
    rig.remove(&less).await;
    assert_eq!((admits(&rig), rig.admitted()), (vec![], vec![]));
}

/// What the cloud refused to change serves on, and new nodes with it.
#[tokio::test(start_paused = true)]
async fn along_with_members_a_group_loses_nothing_and_admits_to_nothing_new() {
    for restarted in [false, true] {
        let mut rig = managed(2).await;
        let web = rig.settle(&service("web", &[80, 443])).await;
        if restarted {
            rig = rig.restart_with(|_| {}).await;
        }
        let before = admits(&rig);
        rig.add_node().await;
        rig.nodes.remove(0);
        let other = ServiceView { ports: service("web", &[80, 8080]).ports, ..web };
        rig.update(&other).await.unwrap();
        assert_eq!((admits(&rig), rig.admitted()), (before, vec![address(1), address(2)]));
        rig.settle(&other).await;
        let ports: Vec<_> = admits(&rig).into_iter().map(|(port, _)| port).collect();
        assert_eq!(ports, [30080, 38080], "its owner's change arrives");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_goes_when_it_is_not_to_be_any_more() {
    let rig = managed(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let rig = rig
        .restart_with(|settings| settings.manage_security_groups = false)
        .await;
    rig.settle(&web).await;
    assert_eq!((admits(&rig), rig.admitted()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn ovn_admits_clients() {
    let rig = Fixture::with(1, |settings, _| {
        settings.manage_security_groups = true;
        settings.driver = crate::lb::features::Driver::Ovn;
        settings.method = "SOURCE_IP_PORT".into();
    })
    .await;
    let mut web = service("web", &[80]);
    web.source_ranges = ["198.51.100.0/24".into()].into();
    rig.settle(&web).await;
    assert_eq!(admits(&rig), [(30080, "198.51.100.0/24".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_port_that_somebody_else_changes_meanwhile_loses_nothing() {
    use openstack_local::server::{Fault, FaultKind};
    let rig = managed(1).await;
    let faults = &rig.local.cloud().faults;
    faults.add(
        Fault::new("/network/v2.0/ports", FaultKind::status(412))
            .method("PUT")
            .times(1),
    );
    rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.admitted(), [address(0)]);
    let groups = rig.peek(|state| {
        let mut ports = state.neutron.ports.iter();
        ports
            .find(|port| port.device_id == "server-0")
            .unwrap()
            .security_groups
            .len()
    });
    assert_eq!(groups, 2, "its own group stays");
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_is_gone_already_ends_nothing() {
    use openstack_local::server::{Fault, FaultKind};
    let rig = managed(1).await;
    let message = Some("Security group rule does not exist".to_owned());
    let gone = FaultKind::Status { code: 404, retry_after: None, message };
    rig.local.cloud().faults.add(
        Fault::new("/network/v2.0/security-group-rules", gone)
            .method("DELETE")
            .times(1),
    );
    rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.admitted(), [address(0)]);
}
