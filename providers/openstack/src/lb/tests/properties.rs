//! Whatever a Service says and said before: it comes to rest, to the same whatever the order of
//! ports, nodes and former states, and what is not its own stays.

use std::sync::Arc;

use ccm_core::k8s::{Protocol, ServiceView};
use proptest::{collection::vec, prelude::*, sample::select};

use super::fixture::{Fixture, internal, published, service, with};
use ccm_testkit::suite::sized;

/// What a Service may say, with the value.
const SAYINGS: [(&str, &str); 8] = [
    ("enable-health-monitor", "true"),
    ("x-forwarded-for", "true"),
    ("proxy-protocol", "v1"),
    ("timeout-client-data", "60000"),
    ("connection-limit", "100"),
    ("health-monitor-delay", "10"),
    ("keep-floatingip", "true"),
    ("flavor-id", ""),
];

#[derive(Clone, Debug)]
struct TestState {
    ports: Vec<u16>,
    udp: bool,
    sayings: Vec<(&'static str, &'static str)>,
    internal: bool,
}

fn state() -> impl Strategy<Value = TestState> {
    let ports = proptest::sample::subsequence(vec![80, 443, 8443], 1..=3);
    (ports, any::<bool>(), vec(select(SAYINGS.to_vec()), 0..3), any::<bool>())
        .prop_map(|(ports, udp, sayings, internal)| TestState { ports, udp, sayings, internal })
}

impl TestState {
    fn service(&self) -> ServiceView {
        let mut service = service("web", &self.ports);
        if self.udp {
            service.ports[0].protocol = Protocol::Udp;
        }
        for (name, value) in &self.sayings {
            service = with(service, name, value);
        }
        if self.internal {
            internal(service)
        } else {
            service
        }
    }
}

/// A Service that says what it shall, with what was published of it before.
fn next(last: &ServiceView, state: &TestState) -> ServiceView {
    let mut service = ServiceView { status: last.status.clone(), ..state.service() };
    let written = last
        .annotations
        .iter()
        .filter(|(key, _)| key.contains("/load-balancer-"));
    service
        .annotations
        .extend(written.map(|(key, value)| (key.clone(), value.clone())));
    service
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

/// Everything there is of another Service.
fn others(rig: &Fixture) -> Vec<String> {
    rig.everything()
        .into_iter()
        .filter(|line| line.contains("_other") || line.contains("default_other"))
        .collect()
}

/// Makes another Service's balancer, then brings this one from state to state. `None` where one
/// cannot be had.
async fn walk(
    groups: bool,
    states: &[TestState],
    turn: bool,
) -> Option<(Fixture, ServiceView, Vec<String>)> {
    let mut rig = Fixture::with(3, |settings, _| settings.manage_security_groups = groups).await;
    rig.settle(&service("other", &[80])).await;
    let before = others(&rig);
    assert!(!before.is_empty());
    if turn {
        rig.nodes.reverse();
    }
    let mut last = ServiceView::named("default", "web");
    for state in states {
        let mut service = next(&last, state);
        if turn {
            service.ports.reverse();
        }
        let outcome = rig
            .ensure(&service, ccm_core::provider::ReadMode::Fresh)
            .await;
        // What cannot be served is refused at once, and what there is stays.
        if matches!(&outcome.result, Err(error) if error.kind() == ccm_core::provider::ErrorKind::InvalidInput)
        {
            return None;
        }
        last = rig.settle(&published(&service, &outcome)).await;
    }
    Some((rig, last, before))
}

/// Listeners, pools and monitors are numbered by the place of their ports.
fn unnumbered(line: &str) -> String {
    let kinds = ["listener_", "pool_", "monitor_"];
    kinds.iter().fold(line.to_owned(), |line, kind| {
        (0..4).fold(line, |line, n| line.replace(&format!("{kind}{n}_"), kind))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: u32::try_from(sized(8, 24).unwrap()).unwrap(), max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_for_what_was_ensured_is_empty_and_foreign_things_stay(groups: bool, states in vec(state(), 1..4)) {
        run(async {
            let Some((rig, service, before)) = walk(groups, &states, false).await else { return };
            assert_eq!(rig.plan(&service).await.unwrap(), []);
            rig.requests();
            rig.settle(&service).await;
            let writes: Vec<_> = rig.requests().into_iter().filter(|request| !request.starts_with("GET")).collect();
            assert_eq!(writes, [""; 0]);
            assert_eq!(others(&rig), before);
            rig.remove(&service).await;
            assert_eq!(others(&rig), before);
            let left: Vec<_> = rig.lbs().iter().map(|lb| Arc::<str>::from(lb.name.as_str())).collect();
            assert_eq!(left.len(), 1, "{left:?}");
        });
    }

    #[test]
    fn the_order_of_ports_and_nodes_does_not_matter(groups: bool, states in vec(state(), 1..3)) {
        let end = |turn: bool| run(async {
            let (rig, ..) = walk(groups, &states, turn).await?;
            let mut lines: Vec<String> = rig.everything().iter().map(|line| unnumbered(line)).collect();
            lines.sort();
            Some(lines)
        });
        prop_assert_eq!(end(false), end(true));
    }
}
