//! What is listed, made and deleted.

use ccm_core::{
    k8s::NodeView,
    provider::{CloudProvider, Route, RouteChange},
    write_gate::WriteGate,
};
use ipnet::{IpNet, Ipv6Net};
use std::{net::Ipv6Addr, sync::Arc};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        RouteCloud,
        context::{CLUSTER, RuleContext},
        report::{Problem, Verdict, expect},
    },
    bench::{all_done, check, create, show, show_error},
    ids,
};

/// Name of the cluster that must not be disturbed.
const OTHER_CLUSTER: &str = "conformance-other";

type RouteBench<'a> = RuleContext<'a, dyn RouteCloud>;

/// Creates a route and checks that it is listed as it should be.
async fn round_trip(
    bench: &RouteBench<'_>,
    provider: &Arc<dyn CloudProvider>,
    node: &Arc<NodeView>,
    destination: IpNet,
) -> Verdict {
    let before = bench.world().await?;
    let failed = |seen| Problem::Failed(format!("{destination}: {seen}"));
    all_done(&bench.apply(provider, &[create(node, destination)]).await?).map_err(failed)?;
    bench
        .holds(&before, &[(destination.trunc(), node)])
        .await?
        .map_err(failed)?;
    for provider in [provider, &bench.provider().await?] {
        let listed = bench
            .list_with(provider, &bench.op(), &[node.clone()])
            .await?;
        let routes = listed.map_err(|error| failed(show_error(&error)))?;
        let found: Vec<_> = routes
            .iter()
            .filter(|route| route.destination.trunc() == destination.trunc())
            .collect();
        let right = |route: &Route| {
            route.destination == destination.trunc()
                && route.node.as_ref() == Some(&node.name)
                && !route.blackhole
        };
        expect(found.len() == 1 && right(found[0]), || {
            format!("{destination} to {}: listed is {found:?}", node.name)
        })?;
    }
    Ok(())
}

pub(super) async fn listed(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    round_trip(bench, &provider, &node, bench.network()).await?;
    let IpNet::V4(network) = bench.network() else {
        return Ok(());
    };
    // As somebody may write it, with bits of a host.
    let untidy = ipnet::Ipv4Net::new_assert(network.hosts().last().unwrap_or(network.addr()), 24);
    round_trip(bench, &provider, &node, untidy.into()).await
}

pub(super) async fn both_families(bench: &RouteBench<'_>) -> Verdict {
    if !bench.cloud.ipv6() {
        return Err(Problem::Unsupported("the cloud has no IPv6 routes".to_owned()));
    }
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let six = |last: u16| Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, last), 64);
    bench.listed(&provider, &node).await?;
    round_trip(bench, &provider, &node, six(0).trunc().into()).await
}

pub(super) async fn create_again(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let destination = bench.network();
    let before = bench.world().await?;
    bench
        .created(&provider, &[create(&node, destination)])
        .await?;
    for provider in [provider, bench.provider().await?] {
        let answers = bench
            .apply(&provider, &[create(&node, destination)])
            .await?;
        check(all_done(&answers), "created again")?;
        check(bench.holds(&before, &[(destination, &node)]).await?, "created again")?;
    }
    Ok(())
}

pub(super) async fn delete_again(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let before = bench.world().await?;
    let route = bench.listed(&provider, &node).await?;
    let delete = [RouteChange::Delete(route)];
    all_done(&bench.apply(&provider, &delete).await?)
        .map_err(|seen| Problem::Blocked(ids::DELETED, seen))?;
    for provider in [provider, bench.provider().await?] {
        check(all_done(&bench.apply(&provider, &delete).await?), "deleted again")?;
        check(bench.holds(&before, &[]).await?, "deleted again")?;
    }
    Ok(())
}

pub(super) async fn delete_exactly(bench: &RouteBench<'_>) -> Verdict {
    let (first, second, provider) =
        (bench.node().await?, bench.node().await?, bench.provider().await?);
    let before = bench.world().await?;
    let mut left = Vec::new();
    for node in [&first, &first, &second] {
        left.push((bench.listed(&provider, node).await?, node));
    }
    while !left.is_empty() {
        // The middle one first, by a process that did not make it.
        let (route, _) = left.remove(left.len() / 2);
        let provider = bench.provider().await?;
        check(
            all_done(
                &bench
                    .apply(&provider, &[RouteChange::Delete(route.clone())])
                    .await?,
            ),
            "delete",
        )?;
        let rest: Vec<_> = left
            .iter()
            .map(|(route, node)| (route.destination, *node))
            .collect();
        check(
            bench.holds(&before, &rest).await?,
            &format!("after {} was deleted", route.destination),
        )?;
    }
    Ok(())
}

pub(super) async fn lost_instance_deleted(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let before = bench.world().await?;
    let route = bench.listed(&provider, &node).await?;
    bench.cloud.remove_node(&node.name).await?;
    let provider = bench.provider().await?;
    check(
        all_done(
            &bench
                .apply(&provider, &[RouteChange::Delete(route)])
                .await?,
        ),
        "the instance is gone",
    )?;
    check(bench.holds(&before, &[]).await?, "the instance is gone")
}

pub(super) async fn blackhole(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let other = bench.node().await?;
    let route = bench.listed(&provider, &node).await?;
    bench.listed(&provider, &other).await?;
    bench.cloud.remove_node(&node.name).await?;
    for nodes in [vec![node.clone(), other.clone()], vec![other.clone()]] {
        for provider in [&provider, &bench.provider().await?] {
            let routes = bench.list(provider, &nodes).await?;
            let shown = routes
                .iter()
                .find(|listed| listed.destination == route.destination);
            expect(shown.is_none_or(|listed| listed.blackhole || listed.node.is_none()), || {
                format!("the instance of node {} is gone, listed is {shown:?}", node.name)
            })?;
        }
    }
    Ok(())
}

pub(super) async fn foreign_untouched(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let foreign = bench.network();
    if !bench.cloud.add_foreign(&node, foreign).await? {
        return Err(Problem::Unsupported("the cloud has no routes but this cluster's".to_owned()));
    }
    let before = bench.world().await?;
    let own = bench.listed(&provider, &node).await?;
    let routes = bench.list(&provider, &[node.clone()]).await?;
    let seen = routes.iter().find(|route| route.destination == foreign);
    expect(seen.is_none(), || format!("a foreign route is listed: {seen:?}"))?;
    // One that is made up from parts of both, and ours to the same network.
    let mixed = Route { destination: foreign, ..own.clone() };
    for change in [RouteChange::Delete(mixed), create(&node, foreign), RouteChange::Delete(own)] {
        let answers = bench.apply(&provider, &[change.clone()]).await?;
        let world = bench.world().await?;
        let lost: Vec<_> = before.difference(&world).collect();
        expect(lost.is_empty(), || format!("{} ({answers:?}) took {lost:?}", show(&change)))?;
    }
    Ok(())
}

pub(super) async fn clusters_apart(bench: &RouteBench<'_>) -> Verdict {
    let (node, ours, theirs) =
        (bench.node().await?, bench.provider().await?, bench.other_provider().await?);
    let own = bench.listed(&ours, &node).await?;
    let there = bench.op_with(OTHER_CLUSTER, CancellationToken::new(), WriteGate::always_open());
    let destination = bench.network();
    let answers = bench
        .apply_with(&theirs, &there, &[create(&node, destination)])
        .await?;
    check(all_done(&answers), "another cluster's route")?;
    let before = bench.world().await?;
    let blocked =
        |error: ccm_core::provider::CloudError| Problem::Blocked(ids::LISTED, show_error(&error));
    let listed = bench
        .list_with(&theirs, &there, &[node.clone()])
        .await?
        .map_err(blocked)?;
    let strange = listed
        .iter()
        .find(|route| route.destination == own.destination);
    expect(strange.is_none(), || format!("another cluster lists {strange:?}"))?;
    let Some(route) = listed
        .into_iter()
        .find(|route| route.destination == destination)
    else {
        return Err(Problem::Failed(format!("another cluster does not list {destination}")));
    };
    let seen = bench.list(&ours, &[node]).await?;
    let strange = seen.iter().find(|route| route.destination == destination);
    expect(strange.is_none(), || format!("another cluster's route is listed: {strange:?}"))?;
    let answers = bench.apply(&ours, &[RouteChange::Delete(route)]).await?;
    let lost: Vec<_> = before.difference(&bench.world().await?).cloned().collect();
    expect(lost.is_empty(), || {
        format!("another cluster's route could be deleted ({answers:?}): {lost:?}")
    })
}

pub(super) async fn list_is_fresh(bench: &RouteBench<'_>) -> Verdict {
    let (node, old, other) =
        (bench.node().await?, bench.provider().await?, bench.provider().await?);
    bench.list(&old, &[node.clone()]).await?;
    let route = bench.listed(&other, &node).await?;
    let there = |routes: &[Route]| {
        routes
            .iter()
            .any(|listed| listed.destination == route.destination)
    };
    let seen = bench.list(&old, &[node.clone()]).await?;
    expect(there(&seen), || format!("{} was just made, listed is {seen:?}", route.destination))?;
    let answers = bench
        .apply(&other, &[RouteChange::Delete(route.clone())])
        .await?;
    all_done(&answers).map_err(|seen| Problem::Blocked(ids::DELETED, seen))?;
    let seen = bench.list(&old, &[node]).await?;
    expect(!there(&seen), || format!("{} was just deleted, listed is {seen:?}", route.destination))
}

pub(super) async fn list_is_read_only(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    bench.listed(&provider, &node).await?;
    bench.cloud.remove_node(&node.name).await?;
    let before = bench.world().await?;
    bench.cloud.script(None).await?;
    let (gate, _keeper) = WriteGate::closed();
    let op = bench.op_with(CLUSTER, CancellationToken::new(), gate);
    let listed = bench
        .list_with(&bench.provider().await?, &op, &[node])
        .await?;
    let writes = bench.cloud.call_count().await?.writes;
    let same = bench.world().await? == before;
    expect(writes == 0 && same, || {
        format!("{writes} writing calls, changed the cloud: {}", !same)
    })?;
    expect(listed.is_ok(), || {
        format!(
            "without the right to write: {}",
            listed.err().map(|e| show_error(&e)).unwrap_or_default()
        )
    })
}
