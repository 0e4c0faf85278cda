use super::*;
use crate::{api::Tags, ownership_tags::OWNED};

fn groups(given: &[&str], extra: &[&str]) -> ClassicGroups {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    ClassicGroups { given: ids(given), extra: ids(extra) }
}

// Upstream's `TestSortELBSecurityGroupList`, and its order where both rules contradict each other.
#[test]
fn the_group_that_nodes_admit_is_the_one_that_upstream_chooses() {
    type Ids<'a> = &'a [&'a str];
    let cases: [(Ids<'_>, Ids<'_>, Ids<'_>, Ids<'_>, &str); 8] = [
        (&["own"], &[], &[], &["own"], "own"),
        (&["x", "own"], &[], &["x"], &["own"], "own"),
        (&["x", "own"], &[], &["x"], &[], "own"),
        (&["own", "x"], &[], &["x"], &["x"], "x"),
        (&["b", "a"], &["a", "b"], &[], &[], "a"),
        (&["b", "a"], &["a", "b"], &[], &["b"], "a"),
        (&["a", "b"], &["a", "b"], &[], &["b"], "b"),
        (&["c", "b", "a"], &["a"], &["b", "c"], &[], "a"),
    ];
    for (lb_groups, given, extra, tagged, expected) in cases {
        let lb_groups: Vec<SecurityGroupId> = lb_groups.iter().map(|id| (*id).into()).collect();
        let found = traffic_group(&lb_groups, &groups(given, extra), |id| tagged.contains(&&**id));
        assert_eq!(found, Some(expected.into()), "{lb_groups:?} {given:?} {extra:?} {tagged:?}");
    }
    assert_eq!(traffic_group(&[], &groups(&[], &[]), |_| true), None);
}

fn rule(protocol: &str, source: &str) -> Rule {
    Rule {
        protocol: protocol.into(),
        ports: (protocol != "-1").then_some((30000, 32767)),
        source: RuleSource::Group(source.into(), Some("1".into())),
        description: Box::default(),
    }
}

fn all(groups: &[(&str, bool, Vec<Rule>)]) -> GroupsById {
    let group = |(id, is_tagged, ingress): &(&str, bool, Vec<Rule>)| {
        let mut tags = Tags::new();
        if *is_tagged {
            tags.insert("kubernetes.io/cluster/c".into(), OWNED.into());
        }
        let group = SecurityGroup {
            id: (*id).into(),
            name: (*id).into(),
            description: Box::default(),
            vpc: None,
            ingress: ingress.clone(),
            tags,
        };
        (group.id.clone(), Arc::new(group))
    };
    groups.iter().map(group).collect()
}

#[test]
fn nodes_are_opened_and_closed_as_upstream_does() {
    let there = all(&[
        ("lb", true, vec![rule("-1", "lb")]),
        ("old", true, vec![rule("-1", "lb"), rule("tcp", "lb")]),
        ("plain", false, vec![rule("-1", "lb")]),
        ("narrow", true, vec![rule("tcp", "lb")]),
        ("other", true, vec![rule("-1", "lb2")]),
        ("new", true, vec![]),
    ]);
    let source = SecurityGroupId::from("lb");
    let needed = ["narrow", "new"].map(SecurityGroupId::from).into();
    let granted = grants(&there, &source, &needed);
    assert_eq!(granted.keys().map(|id| &**id).collect::<Vec<_>>(), ["new"]);
    let expected = Rule {
        source: RuleSource::Group("lb".into(), None),
        ..rule("-1", "lb")
    };
    assert_eq!(granted[&SecurityGroupId::from("new")].grant, [expected]);
    // A narrowed rule, a group without tag, and the group itself stay.
    let revoked = revocations(&there, &Cluster::new("c", false), &source, &needed);
    assert_eq!(revoked.keys().map(|id| &**id).collect::<Vec<_>>(), ["old"]);
    assert_eq!(revoked[&SecurityGroupId::from("old")].revoke, [rule("-1", "lb")]);
}
