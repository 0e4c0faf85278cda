//! Whatever a Service says and said before: it comes to rest, to the same whatever the order of
//! ports and nodes, and what is not its own stays.

use ccm_core::{
    k8s::{Protocol, ServiceView},
    provider::{LoadBalancers as _, ServiceInterpretation},
};
use proptest::{collection::vec, prelude::*, sample::select};

use super::fixture::{Fixture, published, service, with};
use crate::config::Settings;

/// What a Service may say, with the value.
const SAYINGS: [(&str, &str); 8] = [
    ("cross-zone-load-balancing-enabled", "true"),
    ("target-group-attributes", "deregistration_delay.timeout_seconds=60"),
    ("target-group-attributes", "preserve_client_ip.enabled=false"),
    ("healthcheck-interval", "20"),
    ("healthcheck-protocol", "http"),
    ("proxy-protocol", "*"),
    ("additional-resource-tags", "team=x"),
    ("manage-backend-security-group-rules", "false"),
];

#[derive(Clone, Debug)]
struct TestState {
    ports: Vec<u16>,
    udp: bool,
    sayings: Vec<(&'static str, &'static str)>,
}

fn state() -> impl Strategy<Value = TestState> {
    let ports = proptest::sample::subsequence(vec![80, 443, 8443], 1..=3);
    let sayings = vec(select(SAYINGS.to_vec()), 0..3);
    (ports, any::<bool>(), sayings).prop_map(|(ports, udp, sayings)| TestState {
        ports,
        udp,
        sayings,
    })
}

impl TestState {
    fn service(&self) -> ServiceView {
        let mut service = service("web", &self.ports);
        if self.udp {
            service.ports[0].protocol = Protocol::Udp;
        }
        self.sayings
            .iter()
            .fold(service, |service, (name, value)| with(service, name, value))
    }
}

/// Runs in virtual time, where the pauses between looks cost nothing.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs no resources")
        .block_on(future)
}

/// Another Service's, which has to stay as it is.
fn other() -> ServiceView {
    service("other1", &[80])
}

/// Makes another Service's balancer, then brings this one from state to state. `None` where one is
/// refused.
async fn walk(groups: bool, states: &[TestState], turn: bool) -> Option<(Fixture, ServiceView)> {
    let mut rig =
        Fixture::with(3, Settings { managed_security_groups: groups, ..Settings::default() });
    let status = rig.settle(&other()).await;
    let beside = published(&other(), &status);
    if turn {
        rig.nodes.reverse();
    }
    let mut last = ServiceView::named("default", "web");
    for state in states {
        let mut service = ServiceView { status: last.status.clone(), ..state.service() };
        if turn {
            service.ports.reverse();
        }
        if matches!(rig.balancers.interpret(&service), ServiceInterpretation::Invalid(_)) {
            return None;
        }
        let status = rig.settle(&service).await;
        last = published(&service, &status);
    }
    assert_eq!(rig.plan(&beside).await.unwrap(), [], "what is another Service's was changed");
    Some((rig, last))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_for_what_was_ensured_is_empty_and_foreign_things_stay(groups: bool, states in vec(state(), 1..4)) {
        run(async {
            let Some((rig, service)) = walk(groups, &states, false).await else { return };
            assert_eq!(rig.plan(&service).await.unwrap(), []);
            rig.remove(&service).await;
            let status = rig.settle(&other()).await;
            assert_eq!(rig.plan(&published(&other(), &status)).await.unwrap(), []);
        });
    }

    // One process makes it, another, which sees ports and nodes in another order, finds nothing to
    // do.
    #[test]
    fn the_order_of_ports_and_nodes_does_not_matter(groups: bool, states in vec(state(), 1..3)) {
        run(async {
            let Some((rig, mut service)) = walk(groups, &states, true).await else { return };
            let mut rig = rig.restart();
            rig.nodes.reverse();
            service.ports.reverse();
            assert_eq!(rig.plan(&service).await.unwrap(), []);
        });
    }
}
