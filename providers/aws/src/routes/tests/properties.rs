use proptest::prelude::*;

use super::*;
use crate::fake::Crash;

/// What is at a destination before the pass.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    Node(usize),
    Gone,
    Appliance,
    Gateway,
}

const NODES: usize = 4;
const NETWORKS: usize = 6;

fn before() -> impl Strategy<Value = Before> {
    prop_oneof![
        Just(Before::Nothing),
        (0..NODES).prop_map(Before::Node),
        Just(Before::Gone),
        Just(Before::Appliance),
        Just(Before::Gateway),
    ]
}

/// Lays out a table of random routes: destinations 0 to 3 are the nodes' networks, the others
/// nobody's.
async fn lay_out(rig: &Fixture, before: &[Before], table: &RouteTableId) {
    let gone = rig
        .world
        .aws
        .instance(&rig.world.private[0])
        .tag("kubernetes.io/cluster/test", "owned")
        .launch();
    let appliance = rig.world.aws.instance(&rig.world.private[0]).launch();
    let gateway = rig.world.aws.internet_gateway(&rig.world.vpc);
    for (i, before) in before.iter().enumerate() {
        let to = match before {
            Before::Nothing => continue,
            Before::Gateway => {
                rig.world
                    .aws
                    .gateway_route(table, &pod_cidr(i).to_string(), &gateway);
                continue;
            }
            Before::Node(node) => &rig.world.nodes[*node],
            Before::Gone => &gone,
            Before::Appliance => &appliance,
        };
        let target = RouteTarget::Instance(to.clone());
        let request = ec2::CreateRoute { table: table.clone(), destination: pod_cidr(i), target };
        rig.world.aws.ask(request).await.unwrap();
    }
    rig.world.aws.forget_instance(&gone);
}

fn is_foreign(before: Before) -> bool {
    matches!(before, Before::Appliance | Before::Gateway)
}

/// Passes until nothing changes; errors may only come from destinations that are taken, or from a
/// crash.
async fn settle(rig: &Fixture) {
    for _ in 0..4 {
        let _ = rig.pass().await;
        tokio::time::advance(Duration::from_secs(10)).await;
    }
}

async fn check(before: &[Vec<Before>], crash: Option<(usize, Crash)>) {
    let world = FakeCluster::small(NODES);
    let other = world.aws.route_table(&world.vpc, &[], &[]);
    let tables = [world.table.clone(), other];
    let settings = match before.len() {
        1 => Settings::default(),
        _ => Settings { route_tables: tables.to_vec(), ..Settings::default() },
    };
    let mut rig = Fixture::with(world, settings);
    for (table, before) in tables.iter().zip(before) {
        lay_out(&rig, before, table).await;
    }
    let foreign = |i: usize| before.iter().any(|before| is_foreign(before[i]));
    let shown_before: Vec<_> = tables
        .iter()
        .map(|table| rig.world.aws.routes(table))
        .collect();
    if let Some((n, kind)) = crash {
        rig.world.aws.crash_at_write(n, kind);
        let _ = rig.pass().await;
        rig.world.aws.restart_process();
        // The process starts anew and knows nothing.
        let (world, settings) = (rig.world.clone(), (*rig.routes.scope.settings).clone());
        rig = Fixture::with(world, settings);
    }
    settle(&rig).await;
    for (t, table) in tables.iter().enumerate().take(before.len()) {
        let routes = rig.world.aws.routes(table);
        let at = |routes: &[ec2::Route], i: usize| {
            routes
                .iter()
                .find(|route| route.destination == Some(pod_cidr(i)))
                .cloned()
        };
        for (i, before) in before[t].iter().enumerate() {
            let (was, is) = (at(&shown_before[t], i), at(&routes, i));
            if is_foreign(*before) {
                assert_eq!(is, was, "a foreign route was touched");
            } else if i < NODES && !foreign(i) {
                let is = is.unwrap_or_else(|| panic!("network {i} has no route in table {t}"));
                assert_eq!(is.instance.as_ref(), Some(&rig.world.nodes[i]));
            } else if i >= NODES {
                assert_eq!(is, None, "network {i} of nobody has a route");
            }
        }
    }
    if (0..NETWORKS).all(|i| !foreign(i)) {
        rig.world.aws.reset_calls();
        rig.pass().await.unwrap();
        assert_eq!(rig.world.aws.writes(), 0, "the result is not stable");
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(test);
}

fn table() -> impl Strategy<Value = Vec<Before>> {
    proptest::collection::vec(before(), NETWORKS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_table_converges_and_nothing_foreign_is_touched(before in table()) {
        run(check(&[before], None));
    }

    #[test]
    fn several_tables_converge_as_well(one in table(), two in table()) {
        run(check(&[one, two], None));
    }

    #[test]
    fn a_crash_at_any_write_is_made_up_for(before in table(), n in 1..8_usize, lost in any::<bool>()) {
        let kind = if lost { Crash::Before } else { Crash::After };
        run(check(&[before], Some((n, kind))));
    }
}
