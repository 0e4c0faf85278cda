//! Rules for listing, creating and deleting routes.

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
    context::{check_all_succeeded, create, fail_on_error, show, show_error},
    ids,
};

/// Name of a second cluster that must not be affected.
const OTHER_CLUSTER: &str = "conformance-other";

type RouteRuleContext<'a> = RuleContext<'a, dyn RouteCloud>;

/// Creates a route and checks that it is listed with its node and canonical destination.
async fn create_and_check_listing(
    ctx: &RouteRuleContext<'_>,
    provider: &Arc<dyn CloudProvider>,
    node: &Arc<NodeView>,
    destination: IpNet,
) -> Verdict {
    let before = ctx.snapshot().await?;
    let failed = |observed| Problem::Failed(format!("{destination}: {observed}"));
    check_all_succeeded(&ctx.apply(provider, &[create(node, destination)]).await?)
        .map_err(failed)?;
    ctx.check_routes_in_cloud(&before, &[(destination.trunc(), node)])
        .await?
        .map_err(failed)?;
    for provider in [provider, &ctx.provider().await?] {
        let listed = ctx.list_with(provider, &ctx.op(), &[node.clone()]).await?;
        let routes = listed.map_err(|error| failed(show_error(&error)))?;
        let found: Vec<_> = routes
            .iter()
            .filter(|route| route.destination.trunc() == destination.trunc())
            .collect();
        let is_expected = |route: &Route| {
            route.destination == destination.trunc()
                && route.node.as_ref() == Some(&node.name)
                && !route.blackhole
        };
        expect(found.len() == 1 && is_expected(found[0]), || {
            format!("{destination} to {} is listed as {found:?}", node.name)
        })?;
    }
    Ok(())
}

pub(super) async fn listed_as_made(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    create_and_check_listing(ctx, &provider, &node, ctx.network()).await?;
    let IpNet::V4(network) = ctx.network() else {
        return Ok(());
    };
    // A user may write the destination with host bits.
    let untidy = ipnet::Ipv4Net::new_assert(network.hosts().last().unwrap_or(network.addr()), 24);
    create_and_check_listing(ctx, &provider, &node, untidy.into()).await
}

pub(super) async fn both_families(ctx: &RouteRuleContext<'_>) -> Verdict {
    if !ctx.cloud.ipv6() {
        return Err(Problem::Unsupported("the cloud has no IPv6 routes".to_owned()));
    }
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let six = |last: u16| Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, last), 64);
    ctx.create_and_list(&provider, &node).await?;
    create_and_check_listing(ctx, &provider, &node, six(0).trunc().into()).await
}

pub(super) async fn create_existing(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let destination = ctx.network();
    let before = ctx.snapshot().await?;
    ctx.create_all(&provider, &[create(&node, destination)])
        .await?;
    for provider in [provider, ctx.provider().await?] {
        let answers = ctx.apply(&provider, &[create(&node, destination)]).await?;
        fail_on_error(check_all_succeeded(&answers), "created again")?;
        fail_on_error(
            ctx.check_routes_in_cloud(&before, &[(destination, &node)])
                .await?,
            "created again",
        )?;
    }
    Ok(())
}

pub(super) async fn delete_missing(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let before = ctx.snapshot().await?;
    let route = ctx.create_and_list(&provider, &node).await?;
    let delete = [RouteChange::Delete(route)];
    check_all_succeeded(&ctx.apply(&provider, &delete).await?)
        .map_err(|observed| Problem::Blocked(ids::DELETED, observed))?;
    for provider in [provider, ctx.provider().await?] {
        fail_on_error(check_all_succeeded(&ctx.apply(&provider, &delete).await?), "deleted again")?;
        fail_on_error(ctx.check_routes_in_cloud(&before, &[]).await?, "deleted again")?;
    }
    Ok(())
}

pub(super) async fn delete_exactly_listed(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (first, second, provider) = (ctx.node().await?, ctx.node().await?, ctx.provider().await?);
    let before = ctx.snapshot().await?;
    let mut left = Vec::new();
    for node in [&first, &first, &second] {
        left.push((ctx.create_and_list(&provider, node).await?, node));
    }
    while !left.is_empty() {
        // Delete the middle route first, in a process that did not create it.
        let (route, _) = left.remove(left.len() / 2);
        let provider = ctx.provider().await?;
        fail_on_error(
            check_all_succeeded(
                &ctx.apply(&provider, &[RouteChange::Delete(route.clone())])
                    .await?,
            ),
            "delete",
        )?;
        let rest: Vec<_> = left
            .iter()
            .map(|(route, node)| (route.destination, *node))
            .collect();
        fail_on_error(
            ctx.check_routes_in_cloud(&before, &rest).await?,
            &format!("after {} was deleted", route.destination),
        )?;
    }
    Ok(())
}

pub(super) async fn delete_without_instance(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let before = ctx.snapshot().await?;
    let route = ctx.create_and_list(&provider, &node).await?;
    ctx.cloud.remove_node(&node.name).await?;
    let provider = ctx.provider().await?;
    fail_on_error(
        check_all_succeeded(&ctx.apply(&provider, &[RouteChange::Delete(route)]).await?),
        "after the instance was deleted",
    )?;
    fail_on_error(ctx.check_routes_in_cloud(&before, &[]).await?, "after the instance was deleted")
}

pub(super) async fn blackhole_is_told(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let other = ctx.node().await?;
    let route = ctx.create_and_list(&provider, &node).await?;
    ctx.create_and_list(&provider, &other).await?;
    ctx.cloud.remove_node(&node.name).await?;
    for nodes in [vec![node.clone(), other.clone()], vec![other.clone()]] {
        for provider in [&provider, &ctx.provider().await?] {
            let routes = ctx.list(provider, &nodes).await?;
            let shown = routes
                .iter()
                .find(|listed| listed.destination == route.destination);
            expect(shown.is_none_or(|listed| listed.blackhole || listed.node.is_none()), || {
                format!(
                    "the instance of node {} was deleted, but the route is listed as {shown:?}",
                    node.name
                )
            })?;
        }
    }
    Ok(())
}

pub(super) async fn foreign_untouched(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let foreign = ctx.network();
    if !ctx.cloud.add_foreign(&node, foreign).await? {
        return Err(Problem::Unsupported(
            "the cloud has no routes of other tables or clusters".to_owned(),
        ));
    }
    let before = ctx.snapshot().await?;
    let own = ctx.create_and_list(&provider, &node).await?;
    let routes = ctx.list(&provider, &[node.clone()]).await?;
    let observed = routes.iter().find(|route| route.destination == foreign);
    expect(observed.is_none(), || format!("a foreign route is listed: {observed:?}"))?;
    // A mix of both routes, a route of ours to the same network, and our own route.
    let mixed = Route { destination: foreign, ..own.clone() };
    for change in [RouteChange::Delete(mixed), create(&node, foreign), RouteChange::Delete(own)] {
        let answers = ctx.apply(&provider, &[change.clone()]).await?;
        let snapshot = ctx.snapshot().await?;
        let lost: Vec<_> = before.difference(&snapshot).collect();
        expect(lost.is_empty(), || format!("{} ({answers:?}) deleted {lost:?}", show(&change)))?;
    }
    Ok(())
}

pub(super) async fn clusters_apart(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, ours, theirs) =
        (ctx.node().await?, ctx.provider().await?, ctx.other_provider().await?);
    let own = ctx.create_and_list(&ours, &node).await?;
    let there = ctx.op_with(OTHER_CLUSTER, CancellationToken::new(), WriteGate::always_open());
    let destination = ctx.network();
    let answers = ctx
        .apply_with(&theirs, &there, &[create(&node, destination)])
        .await?;
    fail_on_error(check_all_succeeded(&answers), "another cluster's route")?;
    let before = ctx.snapshot().await?;
    let blocked =
        |error: ccm_core::provider::CloudError| Problem::Blocked(ids::LISTED, show_error(&error));
    let listed = ctx
        .list_with(&theirs, &there, &[node.clone()])
        .await?
        .map_err(blocked)?;
    let foreign = listed
        .iter()
        .find(|route| route.destination == own.destination);
    expect(foreign.is_none(), || format!("another cluster lists our route: {foreign:?}"))?;
    let Some(route) = listed
        .into_iter()
        .find(|route| route.destination == destination)
    else {
        return Err(Problem::Failed(format!("another cluster does not list {destination}")));
    };
    let observed = ctx.list(&ours, &[node]).await?;
    let foreign = observed
        .iter()
        .find(|route| route.destination == destination);
    expect(foreign.is_none(), || format!("another cluster's route is listed: {foreign:?}"))?;
    let answers = ctx.apply(&ours, &[RouteChange::Delete(route)]).await?;
    let lost: Vec<_> = before.difference(&ctx.snapshot().await?).cloned().collect();
    expect(lost.is_empty(), || {
        format!("another cluster's route could be deleted ({answers:?}): {lost:?}")
    })
}

pub(super) async fn list_is_fresh(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, old, other) = (ctx.node().await?, ctx.provider().await?, ctx.provider().await?);
    ctx.list(&old, &[node.clone()]).await?;
    let route = ctx.create_and_list(&other, &node).await?;
    let there = |routes: &[Route]| {
        routes
            .iter()
            .any(|listed| listed.destination == route.destination)
    };
    let observed = ctx.list(&old, &[node.clone()]).await?;
    expect(there(&observed), || {
        format!("{} was just created, but the list is {observed:?}", route.destination)
    })?;
    let answers = ctx
        .apply(&other, &[RouteChange::Delete(route.clone())])
        .await?;
    check_all_succeeded(&answers).map_err(|observed| Problem::Blocked(ids::DELETED, observed))?;
    let observed = ctx.list(&old, &[node]).await?;
    expect(!there(&observed), || {
        format!("{} was just deleted, but the list is {observed:?}", route.destination)
    })
}

pub(super) async fn list_is_read_only(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    ctx.create_and_list(&provider, &node).await?;
    ctx.cloud.remove_node(&node.name).await?;
    let before = ctx.snapshot().await?;
    ctx.cloud.script(None).await?;
    let (gate, _keeper) = WriteGate::closed();
    let op = ctx.op_with(CLUSTER, CancellationToken::new(), gate);
    let listed = ctx.list_with(&ctx.provider().await?, &op, &[node]).await?;
    let writes = ctx.cloud.call_count().await?.writes;
    let same = ctx.snapshot().await? == before;
    expect(writes == 0 && same, || format!("{writes} writing calls, cloud changed: {}", !same))?;
    expect(listed.is_ok(), || {
        format!(
            "with a closed write gate: {}",
            listed.err().map(|e| show_error(&e)).unwrap_or_default()
        )
    })
}
