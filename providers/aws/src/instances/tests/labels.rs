//! Labels with the zone's ID and the place in the network.

use std::collections::BTreeSet;

use super::*;
use crate::{
    api::{AwsError, ec2::InstanceState},
    config::TypePattern,
    instances::{
        FIRST_LAYER_LABEL, ZONE_ID_LABEL,
        network_topology::{Layers, Topology},
        zones::Zones,
    },
};

const REQUIRED: &str = "p5en.48xlarge";
const OTHER: &str = "m6g.large";

impl Fixture {
    fn placed(&self, instance_type: &str) -> InstanceId {
        self.instance()
            .instance_type(instance_type)
            .network_nodes(&["nn-a", "nn-b", "nn-c"])
            .launch()
    }

    async fn layers(
        &self,
        topology: &Topology,
        id: &InstanceId,
        instance_type: &str,
    ) -> Result<Layers, AwsError> {
        let asked = [(id.clone(), instance_type.into())];
        topology
            .layers(&self.op, &self.scope.client, &TypePattern::default(), &asked)
            .await
            .remove(id)
            .unwrap()
    }

    async fn zone_ids(&self, zones: &Zones, names: &[&str]) -> Result<Vec<String>, AwsError> {
        let names: BTreeSet<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
        let ids = zones.ids(&self.op, &self.scope.client, &names).await?;
        Ok(ids
            .into_iter()
            .map(|(zone, id)| format!("{zone}={id}"))
            .collect())
    }
}

fn layers_of(meta: &InstanceMetadata) -> Vec<(&str, &str)> {
    meta.additional_labels
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect()
}

// IN14
#[tokio::test(start_paused = true)]
async fn a_new_node_gets_the_id_of_its_zone_and_its_layers() {
    let rig = Fixture::new(0);
    let id = rig.placed(OTHER);
    let meta = rig.meta(query(node_of(&id), MetadataScope::All)).await;
    let expected = [
        ("topology.k8s.aws/network-node-layer-1", "nn-a"),
        ("topology.k8s.aws/network-node-layer-2", "nn-b"),
        ("topology.k8s.aws/network-node-layer-3", "nn-c"),
        ("topology.k8s.aws/zone-id", "usw2-az2"),
    ];
    assert_eq!(layers_of(&meta), expected);
}

#[tokio::test(start_paused = true)]
async fn questions_about_existence_do_not_wait_for_topology() {
    let rig = Fixture::new(1);
    let id = rig.placed(OTHER);
    rig.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_secs(5));
    let slow = rig.ask_one(query(node_of(&id), MetadataScope::All));
    let quick = async {
        // The instance and the zones are known by then, and the topology is asked for.
        tokio::time::sleep(Duration::from_secs(7)).await;
        let began = tokio::time::Instant::now();
        let answer = rig
            .ask_one(aged(node_of(&id), MetadataScope::PowerState, 10))
            .await;
        assert_eq!((power(&answer), began.elapsed()), (Some(PowerState::Running), Duration::ZERO));
    };
    assert_eq!(power(&tokio::join!(slow, quick).0), Some(PowerState::Running));
    assert_eq!(rig.calls(Action::DescribeInstanceTopology), 1);
}

// IN14
#[tokio::test(start_paused = true)]
async fn labels_that_are_there_are_not_asked_for() {
    let rig = Fixture::new(0);
    let id = rig.placed(OTHER);
    let node = labelled(node_of(&id), &[(ZONE_ID_LABEL, "x"), (FIRST_LAYER_LABEL, "y")]);
    assert!(
        rig.meta(query(node, MetadataScope::All))
            .await
            .additional_labels
            .is_empty()
    );
    for need in [MetadataScope::PowerState, MetadataScope::Addresses] {
        assert!(
            rig.meta(query(node_of(&id), need))
                .await
                .additional_labels
                .is_empty()
        );
    }
    assert_eq!(rig.calls(Action::DescribeInstanceTopology), 0);
    assert_eq!(rig.calls(Action::DescribeAvailabilityZones), 0);
}

// IN14
#[tokio::test(start_paused = true)]
async fn a_failure_of_topology_matters_only_where_it_is_required() {
    let rig = Fixture::new(0);
    let (required, other) = (rig.placed(REQUIRED), rig.placed(OTHER));
    rig.world
        .aws
        .fail_always(Action::DescribeInstanceTopology, "InvalidParameterValue");
    let answers = rig
        .ask(&[&required, &other].map(|id| query(node_of(id), MetadataScope::All)))
        .await;
    assert!(answers[0].is_err());
    let Ok(InstanceStatus::Found { meta, .. }) = &answers[1] else {
        panic!("{answers:?}")
    };
    assert_eq!(layers_of(meta), [(ZONE_ID_LABEL, "usw2-az2")]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_instance_does_not_fail_the_topology_of_others() {
    let rig = Fixture::new(0);
    let (here, gone) = (rig.placed(REQUIRED), InstanceId::from("i-0123456789abcdef0"));
    let asked = [(gone.clone(), REQUIRED.into()), (here.clone(), REQUIRED.into())];
    let answers = Topology::default()
        .layers(&rig.op, &rig.scope.client, &TypePattern::default(), &asked)
        .await;
    assert_eq!(answers[&here].as_ref().unwrap().len(), 3);
    assert!(answers[&gone].is_err());
}

// TO1
#[test]
fn types_with_a_place_in_the_network_must_have_an_answer() {
    let default = TypePattern::default();
    for required in [
        "hpc6a.48xlarge",
        "hpc7g.4xlarge",
        "p3dn.24xlarge",
        "p5en.48xlarge",
        "p6e-gb200.36xlarge",
        "p6-b200.48xlarge",
        "trn1n.32xlarge",
        "trn2u.48xlarge",
    ] {
        assert!(default.matches(required), "{required}");
    }
    for other in ["m6g.large", "t3.large", "c3.large", "m5.large", "inf2.48xlarge"] {
        assert!(!default.matches(other), "{other}");
    }
    let own = TypePattern::parse("t3.large").unwrap();
    assert!(own.matches("t3.large") && !own.matches("trn2.48xlarge"));
}

// TO2
#[tokio::test(start_paused = true)]
async fn what_has_no_topology_is_asked_for_once_a_day() {
    let rig = Fixture::new(0);
    let bare = |instance_type: &str| rig.instance().instance_type(instance_type).launch();
    // Code of the answer, type, calls for two questions.
    let table = [
        (None, "", 0),
        (Some("UnsupportedOperation"), OTHER, 1),
        (Some("UnsupportedOperation"), REQUIRED, 1),
        (Some("UnauthorizedOperation"), REQUIRED, 1),
        (None, OTHER, 1),
        (None, REQUIRED, 1),
    ];
    for (code, instance_type, calls) in table {
        let topology = Topology::default();
        rig.world.aws.clear_faults();
        rig.world.aws.reset_calls();
        if let Some(code) = code {
            rig.world
                .aws
                .fail_always(Action::DescribeInstanceTopology, code);
        }
        let id = bare(instance_type);
        for _ in 0..2 {
            assert!(
                rig.layers(&topology, &id, instance_type)
                    .await
                    .unwrap()
                    .is_empty(),
                "{code:?} {instance_type}"
            );
        }
        assert_eq!(rig.calls(Action::DescribeInstanceTopology), calls, "{code:?} {instance_type}");
        tokio::time::advance(Duration::from_secs(24 * 3600)).await;
        rig.layers(&topology, &id, instance_type).await.unwrap();
        assert_eq!(
            rig.calls(Action::DescribeInstanceTopology),
            calls * 2,
            "{code:?} {instance_type}: a day later"
        );
    }
}

// TO2
#[tokio::test(start_paused = true)]
async fn a_type_without_topology_spares_all_its_instances_and_no_other() {
    let rig = Fixture::new(0);
    let topology = Topology::default();
    let bare = |instance_type: &str| rig.instance().instance_type(instance_type).launch();
    rig.layers(&topology, &bare(OTHER), OTHER).await.unwrap();
    rig.layers(&topology, &bare(OTHER), OTHER).await.unwrap();
    assert_eq!(rig.calls(Action::DescribeInstanceTopology), 1);
    // Of a required type only the one instance is without.
    rig.layers(&topology, &bare(REQUIRED), REQUIRED)
        .await
        .unwrap();
    assert_eq!(
        rig.layers(&topology, &rig.placed(REQUIRED), REQUIRED)
            .await
            .unwrap()
            .len(),
        3
    );
}

// TO2
#[tokio::test(start_paused = true)]
async fn other_failures_of_topology_are_errors_and_asked_for_again() {
    for code in ["RequestLimitExceeded", "InternalError", "InvalidParameterValue"] {
        let rig = Fixture::new(0);
        let topology = Topology::default();
        let id = rig.placed(REQUIRED);
        rig.world
            .aws
            .fail_always(Action::DescribeInstanceTopology, code);
        assert!(
            rig.layers(&topology, &id, REQUIRED)
                .await
                .unwrap_err()
                .has_code(code)
        );
        let once = rig.calls(Action::DescribeInstanceTopology);
        assert!(
            rig.layers(&topology, &id, REQUIRED)
                .await
                .unwrap_err()
                .has_code(code)
        );
        assert_eq!(rig.calls(Action::DescribeInstanceTopology), 2 * once, "{code}");
        rig.world.aws.clear_faults();
        assert_eq!(rig.layers(&topology, &id, REQUIRED).await.unwrap().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_does_not_run_yet_does_not_spoil_its_type() {
    let rig = Fixture::new(0);
    let topology = Topology::default();
    let pending = rig
        .instance()
        .instance_type(OTHER)
        .network_nodes(&["nn"])
        .state(InstanceState::Pending)
        .launch();
    let running = rig.placed(OTHER);
    let asked = [(pending.clone(), OTHER.into()), (running.clone(), OTHER.into())];
    let answers = topology
        .layers(&rig.op, &rig.scope.client, &TypePattern::default(), &asked)
        .await;
    assert!(answers[&pending].as_ref().unwrap().is_empty());
    assert_eq!(answers[&running].as_ref().unwrap().len(), 3);
    assert_eq!(
        rig.layers(&topology, &rig.placed(OTHER), OTHER)
            .await
            .unwrap()
            .len(),
        3
    );
}

// ZO1
#[tokio::test(start_paused = true)]
async fn zones_are_read_once_a_day_and_once_a_minute_while_one_is_missing() {
    let rig = Fixture::new(0);
    let zones = Zones::default();
    assert!(rig.zone_ids(&zones, &[]).await.unwrap().is_empty());
    assert_eq!(rig.calls(Action::DescribeAvailabilityZones), 0);
    for _ in 0..2 {
        let ids = rig
            .zone_ids(&zones, &["us-west-2a", "us-west-2b"])
            .await
            .unwrap();
        assert_eq!(ids, ["us-west-2a=usw2-az2", "us-west-2b=usw2-az1"]);
    }
    assert_eq!(rig.calls(Action::DescribeAvailabilityZones), 1);
    for reads in [1, 2, 3] {
        for _ in 0..2 {
            assert_eq!(
                rig.zone_ids(&zones, &["us-west-2a", "us-west-2z"])
                    .await
                    .unwrap(),
                ["us-west-2a=usw2-az2"]
            );
        }
        assert_eq!(rig.calls(Action::DescribeAvailabilityZones), reads);
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    rig.zone_ids(&zones, &["us-west-2a"]).await.unwrap();
    assert_eq!(rig.calls(Action::DescribeAvailabilityZones), 3);
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    rig.world
        .aws
        .fail_always(Action::DescribeAvailabilityZones, "UnauthorizedOperation");
    assert_eq!(
        rig.zone_ids(&zones, &["us-west-2a"]).await.unwrap().len(),
        1,
        "a zone keeps its ID"
    );
    assert!(rig.zone_ids(&zones, &["us-west-2z"]).await.is_err());
}

// ZO1
#[tokio::test(start_paused = true)]
async fn a_node_whose_zone_is_not_known_is_not_initialised() {
    let rig = Fixture::new(1);
    rig.world
        .aws
        .fail_always(Action::DescribeAvailabilityZones, "UnauthorizedOperation");
    let node = node_of(&rig.world.nodes[0]);
    assert!(
        rig.ask_one(query(node.clone(), MetadataScope::All))
            .await
            .is_err()
    );
    assert_eq!(
        power(&rig.ask_one(query(node, MetadataScope::Addresses)).await),
        Some(PowerState::Running)
    );
}

#[tokio::test(start_paused = true)]
async fn who_has_to_wait_for_the_topology_is_told_so_whatever_its_type() {
    let slow = crate::config::Rate { per_second: 0.1, burst: 1 };
    let rig = Fixture::limited(0, &Limits { topology: slow, ..Limits::default() });
    let (first, second) = (rig.placed(OTHER), rig.placed("m5.large"));
    let topology = Topology::default();
    assert_eq!(rig.layers(&topology, &first, OTHER).await.unwrap().len(), 3);
    let error = CloudError::from(
        rig.layers(&topology, &second, "m5.large")
            .await
            .unwrap_err(),
    );
    assert_eq!(error.kind(), ErrorKind::Throttled);
}
