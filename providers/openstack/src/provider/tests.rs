//! Tests of the provider against a local cloud.

use ccm_core::{k8s::NodeView, provider::LabelRequirement};
use openstack_local::server::{LocalCloud, Settings as CloudSettings};

use super::{settings as mapped, *};
use crate::{
    client::in_process::{self, InProcess},
    config::{Environment, parse},
    lb::settings::LoadBalancerSettings as LbSettings,
};

async fn provider() -> OpenStackProvider {
    let cloud = LocalCloud::in_memory(CloudSettings::default());
    let settings = in_process::settings(&cloud);
    let client = Client::connect(&settings, InProcess::new(&cloud))
        .await
        .unwrap();
    OpenStackProvider::connect(settings, client, "kubernetes".into())
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_scheme_says_whose_a_node_is() {
    let provider = provider().await;
    let cases = [
        (None, NodeOwnership::Ours),
        (Some("openstack:///a"), NodeOwnership::Ours),
        (Some("openstack://elsewhere/a"), NodeOwnership::Ours),
        (Some("/a"), NodeOwnership::Ours),
        (Some("aws:///a"), NodeOwnership::Foreign),
    ];
    for (id, claim) in cases {
        let node = NodeView { provider_id: id.map(Into::into), ..NodeView::named("n") };
        assert_eq!(provider.node_ownership(&node), claim, "{id:?}");
    }
    assert!(
        provider
            .mutation_operations()
            .contains(&"loadbalancer_members_update")
    );
    assert!(!provider.mutation_operations().contains(&"loadbalancer_get"));
}

fn settings(lines: &str) -> Settings {
    let text = format!("[Global]\nauth-url=http://k/v3\nuser-id=u\npassword=p\n{lines}");
    parse(&text, &Environment::default()).unwrap()
}

#[test]
fn what_is_configured_reaches_the_capabilities() {
    let all = settings(
        "region=r\n[Networking]\nipv6-support-disabled\npublic-network-name=p\naddress-sort-order=10.0.0.0/8\n\
         [LoadBalancer]\nlb-provider=ovn\nlb-method=SOURCE_IP_PORT\nnode-selector=a=b, c\nfloating-subnet=x*\n\
         container-store=external\nmonitor-delay=9s\n[LoadBalancerClass \"gold\"]\nfloating-subnet-id=id\n",
    );
    let instances = mapped::instance_settings(&all);
    assert_eq!(
        (&*instances.region, instances.regional_ids, instances.addresses.no_ipv6),
        ("r", false, true)
    );
    assert_eq!((instances.addresses.public.len(), instances.addresses.sort_order.len()), (1, 1));
    let balancers = LbSettings::from(all.load_balancer.as_ref().unwrap());
    assert_eq!((balancers.driver.as_str(), &*balancers.method), ("ovn", "SOURCE_IP_PORT"));
    let labels =
        [LabelRequirement::Equals("a".into(), "b".into()), LabelRequirement::Exists("c".into())];
    assert_eq!(balancers.node_selector[..], labels);
    assert!(!balancers.barbican);
    assert_eq!(balancers.checks.delay.as_secs(), 9);
    assert_ne!(balancers.networks.floating_subnet, balancers.classes["gold"].floating_subnet);
}

/// Both sides have defaults; they must be the same ones.
#[test]
fn defaults_of_load_balancers_are_those_of_the_configuration() {
    let configured = LbSettings::from(settings("").load_balancer.as_ref().unwrap());
    assert_eq!(format!("{configured:?}"), format!("{:?}", LbSettings::default()));
}
