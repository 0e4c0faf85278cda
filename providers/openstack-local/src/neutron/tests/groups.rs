use super::*;

fn group(world: &mut Fixture, name: &str) -> SecurityGroup {
    let request = SecurityGroupCreate { name: Some(name.into()), ..Default::default() };
    security_groups::create(&mut world.state, &world.ctx, request).unwrap()
}

fn ingress(group: &str, protocol: &str, port: u16) -> SecurityGroupRuleCreate {
    SecurityGroupRuleCreate {
        security_group_id: group.into(),
        direction: Direction::Ingress,
        protocol: Some(protocol.into()),
        port_range_min: Some(port),
        port_range_max: Some(port),
        ..Default::default()
    }
}

#[test]
fn a_group_begins_with_two_rules_that_let_everything_out() {
    let mut world = world();
    let group = group(&mut world, "g");
    let rules: Vec<_> = group
        .security_group_rules
        .iter()
        .map(|r| (r.direction, r.ethertype, r.protocol.clone()))
        .collect();
    assert_eq!(rules.len(), 2);
    for ethertype in [EtherType::Ipv4, EtherType::Ipv6] {
        assert!(rules.contains(&(Direction::Egress, ethertype, None)));
    }
}

#[test]
fn the_default_group_is_there_and_stays() {
    let mut world = world();
    group(&mut world, "g");
    let id = security_groups::default_of(&world.state, "p").unwrap();
    assert_eq!(
        security_groups::show(&world.state, &world.ctx, &id)
            .unwrap()
            .security_group_rules
            .len(),
        4
    );
    let second = SecurityGroupCreate { name: Some("default".into()), ..Default::default() };
    let second = security_groups::create(&mut world.state, &world.ctx, second);
    assert_eq!(refused(second), (409, "SecurityGroupDefaultAlreadyExists".into()));
    let renamed = SecurityGroupUpdate { name: Some("other".into()), ..Default::default() };
    let renamed = security_groups::update(&mut world.state, &world.ctx, &id, renamed);
    assert_eq!(refused(renamed), (409, "SecurityGroupCannotUpdateDefault".into()));
    let deleted = security_groups::delete(&mut world.state, &world.ctx, &id);
    assert_eq!(refused(deleted), (409, "SecurityGroupCannotRemoveDefault".into()));
}

#[test]
fn a_group_in_use_stays_and_takes_its_rules_along() {
    let mut world = world();
    let group = group(&mut world, "g");
    let port = world.port();
    let with = PortUpdate {
        security_groups: Some(vec![group.id.clone()]),
        ..Default::default()
    };
    ports::update(&mut world.state, &world.ctx, &port.id, with).unwrap();
    let deleted = security_groups::delete(&mut world.state, &world.ctx, &group.id);
    assert_eq!(refused(deleted), (409, "SecurityGroupInUse".into()));
    ports::delete(&mut world.state, &world.ctx, &port.id).unwrap();
    security_groups::delete(&mut world.state, &world.ctx, &group.id).unwrap();
    assert!(
        !security_group_rules::list(&world.state, &world.ctx)
            .iter()
            .any(|rule| rule.security_group_id == group.id)
    );
}

#[test]
fn rules_are_made_together_or_not_at_all_and_never_twice() {
    let mut world = world();
    let group = group(&mut world, "g").id;
    let Fixture { state, ctx, .. } = &mut world;
    let both = vec![ingress(&group, "tcp", 80), ingress(&group, "TCP", 81)];
    let made = security_group_rules::create(state, ctx, both).unwrap();
    assert_eq!((made.len(), made[1].protocol.as_deref()), (2, Some("tcp")));
    for (name, requests, kind) in [
        (
            "there",
            vec![ingress(&group, "tcp", 82), ingress(&group, "6", 80)],
            "SecurityGroupRuleExists",
        ),
        (
            "twice",
            vec![ingress(&group, "udp", 9), ingress(&group, "17", 9)],
            "DuplicateSecurityGroupRuleInPost",
        ),
    ] {
        assert_eq!(
            refused(security_group_rules::create(state, ctx, requests)),
            (409, kind.to_owned()),
            "{name}"
        );
    }
    let any = SecurityGroupRuleCreate {
        remote_ip_prefix: Some("10.0.0.0/24".into()),
        ..ingress(&group, "tcp", 80)
    };
    security_group_rules::create(state, ctx, vec![any.clone()]).unwrap();
    // The same range, told with bits beyond the prefix.
    let same = SecurityGroupRuleCreate { remote_ip_prefix: Some("10.0.0.7/24".into()), ..any };
    assert_eq!(
        refused(security_group_rules::create(state, ctx, vec![same])),
        (409, "SecurityGroupRuleExists".into())
    );
    let shown = security_groups::show(state, ctx, &group).unwrap();
    assert_eq!((shown.security_group_rules.len(), shown.standard.revision_number), (5, 3));
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let mut world = world();
    let group = group(&mut world, "g").id;
    let rule = || ingress(&group, "tcp", 80);
    let none = SecurityGroupRuleCreate { port_range_min: None, port_range_max: None, ..rule() };
    for (name, request, status, kind) in [
        (
            "range turned",
            SecurityGroupRuleCreate { port_range_min: Some(81), ..rule() },
            400,
            "SecurityGroupInvalidPortRange",
        ),
        ("port 0", ingress(&group, "tcp", 0), 400, "SecurityGroupInvalidPortValue"),
        (
            "half a range",
            SecurityGroupRuleCreate { port_range_max: None, ..rule() },
            400,
            "SecurityGroupInvalidPortRange",
        ),
        (
            "no protocol",
            SecurityGroupRuleCreate { protocol: None, ..rule() },
            400,
            "SecurityGroupProtocolRequiredWithPorts",
        ),
        ("protocol", ingress(&group, "smtp", 25), 400, "SecurityGroupRuleInvalidProtocol"),
        ("portless", ingress(&group, "esp", 25), 400, "SecurityGroupInvalidProtocolForPort"),
        (
            "version",
            SecurityGroupRuleCreate { remote_ip_prefix: Some("fd00::/8".into()), ..none.clone() },
            400,
            "SecurityGroupRuleParameterConflict",
        ),
        (
            "range",
            SecurityGroupRuleCreate { remote_ip_prefix: Some("here".into()), ..none.clone() },
            400,
            "HTTPBadRequest",
        ),
        (
            "group",
            SecurityGroupRuleCreate { remote_group_id: Some("none".into()), ..none.clone() },
            404,
            "SecurityGroupNotFound",
        ),
        (
            "own group",
            SecurityGroupRuleCreate { security_group_id: "none".into(), ..none },
            404,
            "SecurityGroupNotFound",
        ),
    ] {
        let refusal = security_group_rules::create(&mut world.state, &world.ctx, vec![request]);
        assert_eq!(refused(refusal), (status, kind.to_owned()), "{name}");
    }
}

#[test]
fn ten_groups_are_the_most_and_the_default_one_counts() {
    let mut world = world();
    for number in 0..9 {
        group(&mut world, &number.to_string());
    }
    let request = SecurityGroupCreate { name: Some("more".into()), ..Default::default() };
    assert_eq!(
        refused(security_groups::create(&mut world.state, &world.ctx, request)),
        (409, "OverQuota".into())
    );
}
