use ccm_aws::api::{
    AwsErrorCause, Filter, InstanceId,
    ec2::{
        DescribeInstances, InstanceState, ModifyInstanceAttribute, ModifyNetworkInterfaceAttribute,
    },
};

use super::fixture::{RequestFixture, tags};

fn by_id(ids: &[&str]) -> DescribeInstances {
    DescribeInstances {
        ids: ids.iter().map(|id| InstanceId::from(*id)).collect(),
        ..DescribeInstances::default()
    }
}

pub(crate) async fn look_ups(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [subnet, _]) = rig.network().await?;
    let group = rig.fixture.security_group(&vpc, "nodes", &[]).await?;
    let made = rig
        .fixture
        .instance(&subnet, "m6g.large", &[&group], &[("kubernetes.io/cluster/c", "owned")])
        .await?;
    rig.fixture
        .instance(&subnet, "m6g.large", &[&group], &[])
        .await?;

    let found = rig.send(by_id(&[&made.id])).await?;
    let [instance] = &found.items[..] else {
        anyhow::bail!("{found:?}")
    };
    assert_eq!((&*instance.id, found.next), (&*made.id, None));
    assert_eq!(instance.state, Some(InstanceState::Running));
    assert_eq!((&*instance.instance_type, &*instance.zone), ("m6g.large", &*subnet.zone));
    assert_eq!(
        (instance.vpc.as_deref(), instance.subnet.as_deref()),
        (Some(&*vpc.id), Some(&*subnet.id))
    );
    assert_eq!(
        (&*instance.private_ip, &*instance.private_dns_name),
        (&*made.private_ip, &*made.private_dns_name)
    );
    assert_eq!(instance.tags, tags(&[("kubernetes.io/cluster/c", "owned")]));
    assert_eq!(instance.security_groups, [(group.as_str().into(), "nodes".into())]);
    let [interface] = &instance.interfaces[..] else {
        anyhow::bail!("{instance:?}")
    };
    assert_eq!((interface.device_index, interface.in_use), (Some(0), true));
    assert_eq!(interface.private_ips, [Box::from(made.private_ip.as_str())]);
    assert_eq!(interface.security_groups, [group.as_str().into()]);

    for (name, value) in [
        ("private-dns-name", &*made.private_dns_name),
        ("tag-key", "kubernetes.io/cluster/c"),
        ("tag:kubernetes.io/cluster/c", "owned"),
    ] {
        // A name of its own each: moto numbers addresses.
        let filters = vec![
            Filter::new(name, [value]),
            Filter::new("instance-state-name", ["pending", "running"]),
        ];
        let found = rig
            .send(DescribeInstances { filters, ..DescribeInstances::default() })
            .await?;
        assert_eq!(found.items.iter().map(|i| &*i.id).collect::<Vec<_>>(), [&*made.id], "{name}");
    }
    // What this version of moto cannot filter it answers with a page of HTML: an error with a
    // status and no code.
    let filters =
        vec![Filter::new("network-interface.addresses.private-ip-address", [&*made.private_ip])];
    let error = rig
        .failure(DescribeInstances { filters, ..DescribeInstances::default() })
        .await?;
    assert!(
        matches!(&error.cause, AwsErrorCause::Response { code, status: 500, .. } if code.is_empty()),
        "{error:?}"
    );

    assert_eq!(
        rig.refused(by_id(&[&made.id, "i-0123456789abcdef0"]))
            .await?,
        "InvalidInstanceID.NotFound"
    );
    Ok(())
}

pub(crate) async fn pages(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [subnet, _]) = rig.network().await?;
    for _ in 0..7 {
        rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    }
    let mut request = DescribeInstances { max_results: Some(5), ..DescribeInstances::default() };
    let first = rig.send(request.clone()).await?;
    assert_eq!(first.items.len(), 5);
    request.token = first.next;
    assert!(request.token.is_some());
    let second = rig.send(request).await?;
    assert_eq!((second.items.len(), second.next), (2, None));
    let sizes: Vec<_> = rig.moto.overlay().take();
    let sizes: Vec<_> = sizes
        .iter()
        .map(|request| request.parameter("MaxResults"))
        .collect();
    assert_eq!(sizes, [Some("5"), Some("5")]);
    // Without a limit of the caller there is one nevertheless; a request by ID may not have any.
    let found = rig.send(DescribeInstances::default()).await?;
    let id = found.items[0].id.clone();
    rig.send(by_id(&[&id])).await?;
    let sizes: Vec<_> = rig.moto.overlay().take();
    let sizes: Vec<_> = sizes
        .iter()
        .map(|request| request.parameter("MaxResults"))
        .collect();
    assert_eq!(sizes, [Some("1000"), None]);
    Ok(())
}

pub(crate) async fn states(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [subnet, _]) = rig.network().await?;
    let made = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    for (action, state) in [
        ("StopInstances", InstanceState::Stopped),
        ("StartInstances", InstanceState::Running),
        ("TerminateInstances", InstanceState::Terminated),
    ] {
        rig.fixture.instance_state(action, &made.id).await?;
        assert_eq!(rig.send(by_id(&[&made.id])).await?.items[0].state, Some(state), "{action}");
    }
    // Of a terminated one nothing is left that a route could lead to; others keep theirs.
    let other = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    let found = rig.send(by_id(&[&made.id, &other.id])).await?.items;
    for instance in found {
        let remains =
            (instance.interfaces.len(), &*instance.private_ip, &*instance.private_dns_name);
        let expected = if *instance.id == *made.id {
            (0, "", "")
        } else {
            (1, &*other.private_ip, &*other.private_dns_name)
        };
        assert_eq!(remains, expected, "{}", instance.id);
    }
    Ok(())
}

pub(crate) async fn source_checks(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [subnet, _]) = rig.network().await?;
    let made = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    let id = InstanceId::from(made.id.as_str());
    rig.send(ModifyInstanceAttribute { id: id.clone(), source_dest_check: false })
        .await?;
    let instance = rig.send(by_id(&[&id])).await?.items.remove(0);
    assert_eq!(instance.source_dest_check, Some(false));

    let interface = instance.interfaces[0].id.clone();
    rig.send(ModifyNetworkInterfaceAttribute { id: interface, source_dest_check: false })
        .await?;
    let instance = rig.send(by_id(&[&id])).await?.items.remove(0);
    assert_eq!(instance.interfaces[0].source_dest_check, Some(false));
    Ok(())
}
