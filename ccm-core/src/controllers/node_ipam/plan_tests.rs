//! Upstream's cases for its allocator, and what becomes of offers that fail.

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A ledger of clusters `network/mask by node mask`, with service networks.
fn ledger(clusters: &[(&str, u8)], services: &[&str]) -> CidrAllocator {
    let network = |(cluster, node_mask): &(&str, u8)| PodNetwork {
        cluster: net(cluster),
        node_mask: *node_mask,
    };
    let networks: Vec<_> = clusters.iter().map(network).collect();
    CidrAllocator::new(&networks, &services.iter().map(|s| net(s)).collect::<Vec<_>>()).unwrap()
}

/// A node whose UID is its name, with pod CIDRs.
fn node(name: &str, cidrs: &[&str]) -> NodeView {
    let pod_cidrs = cidrs.iter().map(|cidr| Arc::from(*cidr)).collect();
    NodeView {
        uid: name.into(),
        resource_version: "1".into(),
        pod_cidrs,
        ..NodeView::named(name)
    }
}

/// What a node that has nothing is offered; empty when there is nothing for it.
fn propose(ledger: &mut CidrAllocator, name: &str) -> Vec<String> {
    ledger.observe_node(&node(name, &[]));
    match ledger.decide(&Arc::from(name), name) {
        AllocationDecision::Write(cidrs) => cidrs.iter().map(ToString::to_string).collect(),
        AllocationDecision::Full | AllocationDecision::Nothing => Vec::new(),
    }
}

/// Gives a node what it is offered.
fn give(ledger: &mut CidrAllocator, name: &str) -> Vec<String> {
    let cidrs = propose(ledger, name);
    ledger.patch_applied(name, name);
    cidrs
}

fn taken(ledger: &CidrAllocator) -> Vec<u64> {
    ledger
        .pools()
        .iter()
        .map(|pool| pool.set().taken())
        .collect()
}

const SMALL: &[(&str, u8)] = &[("127.123.234.0/28", 30)];
const DUAL: &[(&str, u8)] = &[("127.123.234.0/24", 30), ("ace:cab:deca::/56", 64)];

// length: a table of cases
#[test]
fn what_nodes_have_at_the_start_is_taken_and_what_is_wrong_with_it_is_told() {
    /// Name, clusters, what the node has; what it is told, what is taken.
    type Case<'a> = (&'a str, &'a [(&'a str, u8)], &'a [&'a str], &'a [&'a str], &'a [u64]);
    let cases: &[Case<'_>] = &[
        ("nothing", &DUAL[..1], &[], &[], &[0]),
        ("nothing, dual", DUAL, &[], &[], &[0, 0]),
        ("right", &[("10.10.0.0/16", 24)], &["10.10.1.0/24"], &[], &[1]),
        (
            "right, dual",
            &[("10.10.0.0/16", 24), ("ace:cab:deca::/56", 64)],
            &["10.10.1.0/24", "ace:cab:deca:1::/64"],
            &[],
            &[1, 1],
        ),
        (
            "outside",
            &[("10.10.0.0/16", 24)],
            &["10.9.1.0/24"],
            &["pod CIDR 10.9.1.0/24 is not inside cluster CIDR 10.10.0.0/16"],
            &[0],
        ),
        (
            "more than there are cluster CIDRs",
            &[("10.10.0.0/16", 24)],
            &["10.10.1.0/24", "10.10.2.0/24"],
            &["pod CIDR 10.10.2.0/24 is one more than there are cluster CIDRs"],
            &[2],
        ),
        (
            "dual, the first outside",
            &[("10.10.0.0/16", 24), ("ace:cab:deca::/56", 64)],
            &["10.9.1.0/24", "ace:cab:deca:1::/64"],
            &["pod CIDR 10.9.1.0/24 is not inside cluster CIDR 10.10.0.0/16"],
            &[0, 1],
        ),
        (
            "dual, the second outside",
            &[("10.10.0.0/16", 24), ("ace:cab:deca::/56", 64)],
            &["10.10.1.0/24", "cab::/64"],
            &["pod CIDR cab::/64 is not inside cluster CIDR ace:cab:deca::/56"],
            &[1, 0],
        ),
        (
            "dual, the wrong way round: taken all the same",
            &[("10.10.0.0/16", 24), ("ace:cab:deca::/56", 64)],
            &["ace:cab:deca:1::/64", "10.10.1.0/24"],
            &[
                "pod CIDR ace:cab:deca:1::/64 is not inside cluster CIDR 10.10.0.0/16",
                "pod CIDR 10.10.1.0/24 is not inside cluster CIDR ace:cab:deca::/56",
            ],
            &[1, 1],
        ),
        (
            "garbage",
            &[("10.10.0.0/16", 24)],
            &["10.10.0.0.0/24"],
            &["pod CIDR \"10.10.0.0.0/24\" is not a network"],
            &[0],
        ),
        ("of another size", &[("10.10.0.0/16", 24)], &["10.10.4.0/22"], &[], &[4]),
        ("around the cluster's", &[("10.10.0.0/16", 24)], &["10.0.0.0/8"], &[], &[256]),
    ];
    for (name, clusters, cidrs, problems, expected) in cases {
        let mut ledger = ledger(clusters, &[]);
        ledger.observe_node(&node("a", cidrs));
        let told: Vec<String> = ledger
            .problems("a")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            (told, taken(&ledger)),
            (problems.iter().map(|&p| p.to_owned()).collect(), expected.to_vec()),
            "{name}"
        );
        ledger.node_deleted(&node("a", cidrs));
        assert!(taken(&ledger).iter().all(|count| *count == 0), "{name}");
    }
}

#[test]
fn a_node_gets_the_first_free_block_of_each_cluster_cidr() {
    /// Name, clusters, services, what others have; what a new node gets.
    type Case<'a> = (&'a str, &'a [(&'a str, u8)], &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        ("the first", &[("127.123.234.0/24", 30)], &[], &[], &["127.123.234.0/30"]),
        (
            "beside services",
            &[("127.123.234.0/24", 30)],
            &["127.123.234.0/26"],
            &[],
            &["127.123.234.64/30"],
        ),
        (
            "beside services and nodes",
            &[("127.123.234.0/24", 30)],
            &["127.123.234.0/26"],
            &["127.123.234.64/30", "127.123.234.68/30", "127.123.234.72/30", "127.123.234.80/30"],
            &["127.123.234.76/30"],
        ),
        ("dual", DUAL, &["127.123.234.0/26"], &[], &["127.123.234.64/30", "ace:cab:deca::/64"]),
        (
            "dual, IPv6 first",
            &[("ace:cab:deca::/56", 64), ("127.123.234.0/24", 30)],
            &["127.123.234.0/26"],
            &[],
            &["ace:cab:deca::/64", "127.123.234.64/30"],
        ),
        (
            "three",
            &[("127.123.234.0/24", 30), ("abc:def::/56", 64), ("10.0.0.0/8", 24)],
            &["127.123.234.0/26"],
            &[],
            &["127.123.234.64/30", "abc:def::/64", "10.0.0.0/24"],
        ),
        (
            "the gap",
            &[("10.10.0.0/22", 24)],
            &[],
            &["10.10.0.0/24", "10.10.2.0/24"],
            &["10.10.1.0/24"],
        ),
        (
            "nothing left",
            SMALL,
            &[],
            &["127.123.234.0/29", "127.123.234.8/30", "127.123.234.12/30"],
            &[],
        ),
    ];
    for (name, clusters, services, others, expected) in cases {
        let mut ledger = ledger(clusters, services);
        for _ in 0..2 {
            for cidr in *others {
                ledger.observe_node(&node(cidr, &[cidr]));
            }
        }
        assert_eq!(propose(&mut ledger, "new"), *expected, "{name}");
    }
}

#[test]
fn a_released_block_is_given_again() {
    let mut ledger = ledger(SMALL, &[]);
    let all: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .flat_map(|name| give(&mut ledger, name))
        .collect();
    assert_eq!(
        all,
        ["127.123.234.0/30", "127.123.234.4/30", "127.123.234.8/30", "127.123.234.12/30"]
    );
    assert_eq!(propose(&mut ledger, "e"), [""; 0]);
    ledger.node_deleted(&node("b", &[]));
    assert_eq!(ledger.take_changes().1, [Arc::from("e")], "the one that waits is told");
    assert_eq!(propose(&mut ledger, "e"), ["127.123.234.4/30"]);
    ledger.node_not_found("e", "e");
    assert_eq!(propose(&mut ledger, "f"), ["127.123.234.4/30"]);
}

#[test]
fn a_node_that_is_being_deleted_keeps_its_block_until_it_is_gone() {
    for deleting in [false, true] {
        let mut ledger = ledger(&[("10.10.0.0/23", 24)], &[]);
        let first = NodeView { deleting, ..node("a", &["10.10.0.0/24"]) };
        ledger.observe_node(&first);
        assert_eq!(give(&mut ledger, "b"), ["10.10.1.0/24"], "{deleting}");
        assert_eq!(propose(&mut ledger, "c"), [""; 0], "{deleting}");
        ledger.node_deleted(&first);
        assert_eq!(propose(&mut ledger, "c"), ["10.10.0.0/24"], "{deleting}");
    }
}

#[test]
fn no_block_overlaps_with_services_wherever_they_lie() {
    for service in [
        "10.0.255.0/24",
        "10.1.0.0/24",
        "10.1.255.0/24",
        "10.2.0.0/24",
        "10.1.7.128/25",
        "10.1.16.0/20",
    ] {
        let mut ledger = ledger(&[("10.1.0.0/16", 24)], &[service]);
        let given: Vec<String> = (0..260)
            .flat_map(|i| give(&mut ledger, &format!("n{i}")))
            .collect();
        assert!(given.len() >= 240, "{service}");
        for block in given {
            let (block, service) = (net(&block), net(service));
            assert!(!block.contains(&service) && !service.contains(&block), "{block} {service}");
        }
    }
}

#[test]
fn two_nodes_with_one_block_are_both_told_and_the_block_is_free_only_without_both() {
    let mut ledger = ledger(SMALL, &[]);
    assert!(
        ledger
            .observe_node(&node("a", &["127.123.234.0/30"]))
            .is_empty()
    );
    assert_eq!(ledger.observe_node(&node("b", &["127.123.234.0/29"])), [Arc::from("a")]);
    let told = |ledger: &CidrAllocator, name| {
        ledger
            .problems(name)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(told(&ledger, "a"), ["pod CIDR 127.123.234.0/30 overlaps with that of node b"]);
    assert_eq!(told(&ledger, "b"), ["pod CIDR 127.123.234.0/29 overlaps with that of node a"]);
    ledger.node_deleted(&node("b", &[]));
    assert_eq!(taken(&ledger), [1]);
    assert!(told(&ledger, "a").is_empty());
    ledger.observe_node(&node("b", &["127.123.234.0/30"]));
    ledger.node_deleted(&node("a", &[]));
    assert_eq!(taken(&ledger), [1]);
    ledger.node_deleted(&node("b", &[]));
    assert_eq!(taken(&ledger), [0]);
}

#[test]
fn a_node_inside_the_services_is_told() {
    let mut ledger = ledger(SMALL, &["127.123.234.0/30"]);
    ledger.observe_node(&node("a", &["127.123.234.0/30"]));
    assert_eq!(
        ledger.problems("a"),
        [PodCidrProblem::Service("127.123.234.0/30".into(), net("127.123.234.0/30"))]
    );
    ledger.node_deleted(&node("a", &[]));
    assert_eq!(taken(&ledger), [1], "that of the services stays");
}

/// Go takes a block of the first family, finds none of the second, and loses the first: one more
/// with each retry (W32).
#[test]
fn nothing_is_taken_of_one_family_when_the_other_has_nothing_left() {
    let mut ledger = ledger(&[("10.0.0.0/24", 28), ("fd00::/63", 64)], &[]);
    for name in ["a", "b"] {
        assert_eq!(give(&mut ledger, name).len(), 2);
    }
    for _ in 0..50 {
        assert_eq!(propose(&mut ledger, "c"), [""; 0]);
    }
    assert_eq!(taken(&ledger), [2, 2]);
    let (_, woken) = ledger.take_changes();
    assert!(woken.is_empty(), "{woken:?}");
    ledger.node_deleted(&node("a", &[]));
    assert_eq!(ledger.take_changes().1, [Arc::from("c")]);
    assert_eq!(propose(&mut ledger, "c"), ["10.0.0.32/28", "fd00::/64"]);
}

#[test]
fn an_offer_is_free_again_when_it_surely_did_not_reach_the_node() {
    for end in [
        "withdrawn",
        "the node is gone",
        "the server does not have it",
        "it has another",
        "it is another",
    ] {
        let mut ledger = ledger(SMALL, &[]);
        assert_eq!(propose(&mut ledger, "a"), ["127.123.234.0/30"]);
        let expected = match end {
            "withdrawn" => {
                ledger.cancel("a", "a");
                0
            }
            "the node is gone" => {
                ledger.node_deleted(&node("a", &[]));
                0
            }
            "the server does not have it" => {
                ledger.node_not_found("a", "a");
                0
            }
            "it has another" => {
                ledger.observe_node(&node("a", &["127.123.234.4/30"]));
                1
            }
            _ => {
                ledger.observe_node(&NodeView { uid: "new".into(), ..node("a", &[]) });
                0
            }
        };
        assert_eq!(taken(&ledger), [expected], "{end}");
    }
}

#[test]
fn an_offer_whose_request_was_not_answered_stays_taken_until_it_cannot_land_any_more() {
    let fresh = |version: &str| NodeView { resource_version: version.into(), ..node("a", &[]) };
    let mut ledger = ledger(SMALL, &[]);
    assert_eq!(propose(&mut ledger, "a"), ["127.123.234.0/30"]);
    ledger.patch_unanswered("a", "a", "1");
    ledger.cancel("a", "a");
    assert!(ledger.has_in_flight_patch("a", "a"));
    ledger.node_read("a", "a", &fresh("1"));
    ledger.cancel("a", "a");
    assert_eq!(taken(&ledger), [1], "the same version: it may land yet");
    assert_eq!(propose(&mut ledger, "b"), ["127.123.234.4/30"]);
    ledger.node_read("a", "a", &fresh("2"));
    assert!(!ledger.has_in_flight_patch("a", "a"));
    assert_eq!(taken(&ledger), [1], "a later version: it cannot");
}

#[test]
fn a_request_that_was_not_answered_may_have_reached_the_node() {
    let mut ledger = ledger(SMALL, &[]);
    let cidrs = propose(&mut ledger, "a");
    ledger.patch_unanswered("a", "a", "1");
    ledger.cancel("a", "a");
    ledger.node_read(
        "a",
        "a",
        &NodeView { resource_version: "2".into(), ..node("a", &[&cidrs[0]]) },
    );
    assert_eq!((ledger.has_in_flight_patch("a", "a"), taken(&ledger)), (false, vec![1]));
    assert_eq!(ledger.decide(&Arc::from("a"), "a"), AllocationDecision::Nothing);
}

#[test]
fn a_block_that_another_allocator_gives_away_meanwhile_is_not_offered_again() {
    let mut ledger = ledger(DUAL, &[]);
    assert_eq!(propose(&mut ledger, "a"), ["127.123.234.0/30", "ace:cab:deca::/64"]);
    assert_eq!(
        ledger.observe_node(&node("b", &["127.123.234.0/30", "ace:cab:deca:7::/64"])),
        [Arc::from("a")]
    );
    assert_eq!(
        propose(&mut ledger, "a"),
        ["127.123.234.4/30", "ace:cab:deca::/64"],
        "the other family stays"
    );
    assert_eq!(taken(&ledger), [2, 2]);
    ledger.patch_unanswered("a", "a", "1");
    ledger.observe_node(&node("c", &["127.123.234.4/30", "ace:cab:deca:8::/64"]));
    assert_eq!(propose(&mut ledger, "a"), ["127.123.234.8/30", "ace:cab:deca::/64"]);
    ledger.node_deleted(&node("c", &[]));
    assert_eq!(taken(&ledger), [3, 2], "the request for the first one may land yet");
}

#[test]
fn what_the_server_said_is_not_taken_back_by_what_the_watch_still_shows() {
    let mut ledger = ledger(SMALL, &[]);
    give(&mut ledger, "a");
    ledger.observe_node(&node("a", &[]));
    assert_eq!(taken(&ledger), [1]);
    assert_eq!(ledger.decide(&Arc::from("a"), "a"), AllocationDecision::Nothing);
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Lets the cache show a node without what it has for so long that it is believed.
fn lose(ledger: &mut CidrAllocator, name: &str) {
    ledger.observe_node(&node(name, &[]));
    assert_eq!(ledger.record_missing_cidrs(name, name, secs(1000)), Some(secs(60)), "{name}");
    assert_eq!(ledger.record_missing_cidrs(name, name, secs(1060)), None, "{name}");
}

#[test]
fn a_node_without_what_it_was_given_is_believed_after_a_minute_and_offered_the_same() {
    for dual in [false, true] {
        let mut ledger = ledger(&DUAL[..if dual { 2 } else { 1 }], &[]);
        let before = give(&mut ledger, "a");
        give(&mut ledger, "b");
        assert_eq!(ledger.record_missing_cidrs("c", "c", secs(0)), None, "it is not known");
        assert_eq!(ledger.record_missing_cidrs("a", "a", secs(10)), Some(secs(60)));
        assert_eq!(ledger.record_missing_cidrs("a", "a", secs(69)), Some(secs(1)));
        assert_eq!(ledger.decide(&Arc::from("a"), "a"), AllocationDecision::Nothing);
        assert_eq!(
            ledger.record_missing_cidrs("a", "other", secs(70)),
            None,
            "a namesake has nothing"
        );
        assert_eq!(ledger.decide(&Arc::from("a"), "a"), AllocationDecision::Nothing);
        assert_eq!(ledger.record_missing_cidrs("a", "a", secs(70)), None);
        let taken_before = taken(&ledger);
        for _ in 0..2 {
            assert_eq!(propose(&mut ledger, "a"), before);
            assert_eq!(taken(&ledger), taken_before);
            ledger.cancel("a", "a");
            assert_eq!(
                taken(&ledger),
                taken_before,
                "it stays taken, for it, however often that fails"
            );
        }
        assert!(!propose(&mut ledger, "c").contains(&before[0]));
        assert_eq!(give(&mut ledger, "a"), before);
        assert_eq!(
            ledger.record_missing_cidrs("a", "a", secs(71)),
            Some(secs(60)),
            "from the beginning"
        );
        ledger.node_deleted(&node("a", &[]));
        assert_eq!(propose(&mut ledger, "a").len(), before.len());
    }
}

#[test]
fn a_cache_that_shows_what_a_node_has_again_is_waited_for_anew() {
    let mut ledger = ledger(SMALL, &[]);
    let cidrs = give(&mut ledger, "a");
    assert_eq!(ledger.record_missing_cidrs("a", "a", secs(0)), Some(secs(60)));
    ledger.observe_node(&node("a", &[&cidrs[0]]));
    assert_eq!(ledger.record_missing_cidrs("a", "a", secs(3600)), Some(secs(60)));
    assert_eq!(ledger.record_missing_cidrs("a", "a", secs(3660)), None);
    ledger.observe_node(&node("a", &[&cidrs[0]]));
    assert_eq!(
        (ledger.decide(&Arc::from("a"), "a"), taken(&ledger)),
        (AllocationDecision::Nothing, vec![1]),
        "it was late"
    );
}

#[test]
fn what_another_node_has_since_a_backup_was_restored_is_not_offered_again() {
    // The backup is from when "old" had the block that "new" got later. They are seen in either
    // order.
    for old_first in [true, false] {
        let mut ledger = ledger(&[("127.123.234.0/29", 30), ("ace:cab:deca::/63", 64)], &[]);
        assert_eq!(give(&mut ledger, "new"), ["127.123.234.0/30", "ace:cab:deca::/64"]);
        let old = node("old", &["127.123.234.0/30"]);
        if old_first {
            ledger.observe_node(&old);
            lose(&mut ledger, "new");
        } else {
            lose(&mut ledger, "new");
            ledger.observe_node(&old);
        }
        assert_eq!(
            propose(&mut ledger, "new"),
            ["127.123.234.4/30", "ace:cab:deca::/64"],
            "{old_first}"
        );
        ledger.cancel("new", "new");
        ledger.observe_node(&node("other", &["127.123.234.4/30"]));
        assert_eq!(
            propose(&mut ledger, "new"),
            [""; 0],
            "nothing is left of the first cluster CIDR"
        );
        assert_eq!(taken(&ledger), [2, 0]);
        ledger.node_deleted(&old);
        assert_eq!(ledger.take_changes().1, [Arc::from("new")]);
        assert_eq!(give(&mut ledger, "new").len(), 2);
    }
}

#[test]
fn a_node_that_had_a_network_of_another_size_is_offered_a_block_of_it_that_is_its_own() {
    let mut ledger = ledger(&[("10.0.0.0/24", 28)], &["10.0.0.64/28"]);
    ledger.observe_node(&node("a", &["10.0.0.64/26"]));
    ledger.observe_node(&node("b", &["10.0.0.80/28"]));
    lose(&mut ledger, "a");
    assert_eq!(
        propose(&mut ledger, "a"),
        ["10.0.0.96/28"],
        "the first is of services, the second has another node"
    );
    assert_eq!(taken(&ledger), [4]);
    ledger.patch_applied("a", "a");
    assert_eq!(taken(&ledger), [3]);
}

#[test]
fn nothing_is_settled_before_every_node_without_blocks_changed_or_is_gone() {
    let mut ledger = ledger(SMALL, &[]);
    let nodes = [node("a", &[]), node("b", &["127.123.234.0/30"]), node("c", &[])].map(Arc::new);
    ledger.record_initial_nodes(&nodes);
    assert!(!ledger.are_initial_nodes_confirmed());
    assert!(!ledger.node_changed_since_start("b"));
    assert!(!ledger.node_changed_since_start("a"));
    assert!(ledger.node_changed_since_start("c"));
    assert!(ledger.are_initial_nodes_confirmed());
}

#[test]
fn a_node_that_changed_between_the_first_list_and_the_start_is_settled() {
    let mut ledger = ledger(SMALL, &[]);
    let nodes = [node("a", &[]), node("b", &[])].map(Arc::new);
    assert!(!ledger.node_changed_since_start("a"));
    ledger.record_initial_nodes(&nodes);
    assert_eq!(ledger.unconfirmed_nodes(), ["b".into()]);
    assert!(ledger.node_changed_since_start("b"));
}

#[test]
fn changes_are_counted_once_and_per_cluster_cidr() {
    let mut ledger = ledger(&[("10.0.0.0/24", 28), ("fd00::/60", 64)], &["10.0.0.0/28"]);
    let changed =
        |taken, freed, skipped: &[u64]| PoolChanges { taken, freed, skipped: skipped.to_vec() };
    assert_eq!(ledger.take_changes().0, [changed(1, 0, &[]), changed(0, 0, &[])]);
    give(&mut ledger, "a");
    ledger.observe_node(&node("b", &["10.0.0.16/28"]));
    ledger.observe_node(&node("c", &["10.0.0.64/27", "fd00:0:0:1::/64"]));
    assert_eq!(ledger.take_changes().0, [changed(3, 0, &[1]), changed(2, 0, &[0])]);
    for name in ["a", "b", "c"] {
        ledger.node_deleted(&node(name, &[]));
    }
    assert_eq!(ledger.take_changes().0, [changed(0, 3, &[]), changed(0, 2, &[])]);
    assert_eq!(ledger.take_changes().0, [changed(0, 0, &[]), changed(0, 0, &[])]);
}
