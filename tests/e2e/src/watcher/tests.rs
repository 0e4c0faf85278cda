use serde_json::{Value, json};

use super::*;

fn service(kind: &str, uid: &str, finalizer: bool, address: bool) -> Service {
    let finalizers: &[&str] = if finalizer {
        &["service.kubernetes.io/load-balancer-cleanup"]
    } else {
        &[]
    };
    let ingress: Vec<Value> = if address {
        vec![json!({"ip": "198.18.0.1"})]
    } else {
        Vec::new()
    };
    let value = json!({
        "metadata": {"name": "s", "uid": uid, "finalizers": finalizers},
        "spec": {"type": kind},
        "status": {"loadBalancer": {"ingress": ingress}},
    });
    serde_json::from_value(value).expect("it is a Service")
}

fn history(news: Vec<WatchChange<Service>>) -> History {
    let mut history = History::default();
    for news in news {
        history.hear(news);
    }
    history
}

#[test]
fn a_service_that_loses_finalizer_or_address_while_it_wants_them_is_bereft() {
    let full = || WatchChange::Here(service("LoadBalancer", "u", true, true));
    for (finalizer, address) in [(false, true), (true, false)] {
        let history = history(vec![
            full(),
            WatchChange::Here(service("LoadBalancer", "u", finalizer, address)),
        ]);
        assert_eq!(history.bereft.len(), 1, "{finalizer} {address}");
    }
    let released = vec![full(), WatchChange::Here(service("ClusterIP", "u", true, true))];
    let released = history(
        released
            .into_iter()
            .chain([WatchChange::Here(service("ClusterIP", "u", false, false))])
            .collect(),
    );
    assert_eq!(released.bereft, []);
}

#[test]
fn farewells_are_counted_however_they_are_seen() {
    let wanted = |uid: &str| service("LoadBalancer", uid, true, true);
    for (what, news) in [
        ("type", WatchChange::Here(service("ClusterIP", "u", true, true))),
        ("gone", WatchChange::Gone(wanted("u"))),
        ("replaced", WatchChange::Here(wanted("other"))),
        ("gone in a gap", WatchChange::All(Vec::new())),
    ] {
        let history = history(vec![WatchChange::All(vec![wanted("u")]), news]);
        assert_eq!(history.farewells, [("u".to_owned(), 1)].into(), "{what}");
    }
    assert!(
        history(vec![WatchChange::Here(wanted("u")), WatchChange::Here(wanted("u"))])
            .farewells
            .is_empty()
    );
}

#[test]
fn a_service_that_goes_with_its_finalizer_and_without_a_mark_was_not_held() {
    let unheld = |finalizer: bool, marked: bool| {
        let mut last = service("LoadBalancer", "u", finalizer, false);
        let mark = marked.then_some("2026-01-02T03:04:05Z");
        last.metadata.deletion_timestamp =
            serde_json::from_value(json!(mark)).expect("it is a time");
        history(vec![
            WatchChange::All(vec![service("LoadBalancer", "u", false, false)]),
            WatchChange::Gone(last),
        ])
        .unheld
        .len()
    };
    assert_eq!([unheld(true, false), unheld(true, true), unheld(false, false)], [1, 0, 0]);
    let gap = history(vec![
        WatchChange::All(vec![service("LoadBalancer", "u", true, false)]),
        WatchChange::All(Vec::new()),
    ]);
    assert_eq!(gap.unheld.len(), 0, "nobody knows");
}

fn node(name: &str, region: &str, cidr: Option<&str>) -> WatchChange<Node> {
    let cidrs: Vec<_> = cidr.into_iter().collect();
    let value = json!({
        "metadata": {"name": name, "uid": name, "labels": {REGION: region}},
        "spec": {"podCIDRs": cidrs},
    });
    WatchChange::Here(serde_json::from_value(value).expect("it is a Node"))
}

#[test]
fn pod_networks_that_change_or_are_given_twice_are_found() {
    let renetworked = |news: Vec<WatchChange<Node>>| {
        let mut state = WatcherState::default();
        for news in news {
            state.hear(news);
        }
        state.renetworked.len()
    };
    let given = || node("a", "r", Some("10.0.1.0/24"));
    assert_eq!(renetworked(vec![node("a", "r", None), given(), given()]), 0);
    assert_eq!(renetworked(vec![given(), node("a", "r", Some("10.0.2.0/24"))]), 1, "changed");
    assert_eq!(renetworked(vec![given(), node("a", "r", None)]), 1, "taken away");
    assert_eq!(renetworked(vec![given(), node("b", "r", Some("10.0.1.0/24"))]), 1, "given twice");
    assert_eq!(
        renetworked(vec![given(), node("b", "other", Some("10.0.1.0/24"))]),
        0,
        "another scenario's"
    );
}
