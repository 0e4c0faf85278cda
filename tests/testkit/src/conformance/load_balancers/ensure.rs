use std::{collections::BTreeSet, time::Duration};

use ccm_core::{
    k8s::{LbIngress, ServiceView},
    provider::{ErrorKind, LbOutcome, Progress, ReadMode, SourceRanges},
};
use ipnet::IpNet;
use tokio::time::Instant;

use super::{
    super::{
        InjectedCallFault, InjectedFault, LoadBalancerCloud,
        context::RuleContext,
        report::{Problem, Verdict, expect},
        syntax,
    },
    cloud::AllowedSources,
    context::{CloudSnapshot, balancers, port},
    ids,
    interpret::OTHER_PORT,
    service_driver::{DriverCall, ErrorReaction, ServiceDriver, show},
};

/// Longest that a call may sleep.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_secs(2);
/// How long a new balancer is made to take where that shall be seen.
const ACTIVATION: Duration = Duration::from_secs(90);
/// Calls of one step that are spoilt at most.
pub(super) const MAX_CALLS: u64 = 100;

type LbBench<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

pub(super) async fn ensured(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    for depth in [ReadMode::Fresh, ReadMode::Cached] {
        let before = bench.world().await?;
        let mut tenant = bench.tenant(&nodes).await?;
        let done = tenant
            .settle(DriverCall::Ensure(depth), ErrorReaction::Fail)
            .await?;
        done.map_err(Problem::Failed)?;
        bench
            .world()
            .await?
            .served(&before, &tenant)
            .map_err(Problem::Failed)?;
    }
    Ok(())
}

pub(super) async fn status_usable(bench: &LbBench<'_>) -> Verdict {
    let before = bench.world().await?;
    let mut tenant = bench.tenant(&bench.nodes(1).await?).await?;
    let status = tenant.ensure().await?;
    let world = bench.world().await?;
    let addresses: BTreeSet<_> = world
        .new_since(&before)
        .flat_map(|balancer| balancer.addresses.clone())
        .collect();
    expect(!status.ingress.is_empty(), || "done, but no entry point is published".to_owned())?;
    for (index, entry) in status.ingress.iter().enumerate() {
        entry_point(entry, &addresses)
            .map_err(|seen| Problem::Failed(format!("entry point {index}: {seen}")))?;
        expect(!status.ingress[..index].contains(entry), || {
            format!("entry point {index} is given twice")
        })?;
    }
    Ok(())
}

fn entry_point(entry: &LbIngress, addresses: &BTreeSet<String>) -> Result<(), String> {
    if entry.ip.is_none() && entry.hostname.is_none() {
        return Err("neither address nor name".to_owned());
    }
    if let Some(name) = &entry.hostname
        && !syntax::is_subdomain(name)
    {
        return Err(format!("{name:?} is no DNS name"));
    }
    match (entry.ip_mode.as_deref(), entry.ip) {
        (None | Some("VIP" | "Proxy"), Some(_)) | (None, None) => {}
        (mode, ip) => return Err(format!("IP mode {mode:?} with address {ip:?}")),
    }
    let given = entry
        .ip
        .map(|ip| ip.to_string())
        .into_iter()
        .chain(entry.hostname.as_deref().map(str::to_owned));
    match given
        .filter(|given| !addresses.contains(given))
        .collect::<Vec<_>>()
    {
        strange if strange.is_empty() => Ok(()),
        strange => Err(format!("{strange:?} is not the load balancer's, which has {addresses:?}")),
    }
}

pub(super) async fn idempotent(bench: &LbBench<'_>) -> Verdict {
    let mut tenant = bench.tenant(&bench.nodes(2).await?).await?;
    tenant.ensure().await?;
    let before = bench.world().await?;
    let service = tenant.service.clone();
    for fresh in [false, true] {
        for depth in [ReadMode::Cached, ReadMode::Fresh] {
            if fresh {
                tenant.provider = bench.provider().await?;
            }
            bench.cloud.script(None).await?;
            let outcome = tenant.once(&tenant.op(), DriverCall::Ensure(depth)).await?;
            let process = if fresh {
                "a new process"
            } else {
                "the same process"
            };
            let seen =
                |seen: String| Problem::Failed(format!("again in {process}, {depth:?}: {seen}"));
            expect(matches!(outcome.result, Ok(Progress::Done)), || show(&outcome.result))
                .map_err(prefix(&seen))?;
            let writes = bench.cloud.call_count().await?.writes;
            expect(writes == 0, || format!("{writes} writing calls")).map_err(prefix(&seen))?;
            tenant.keep(&outcome);
            let changes = bench.world().await?.changes(&before);
            expect(changes.is_empty(), || changes).map_err(prefix(&seen))?;
            expect(tenant.service == service, || {
                format!(
                    "status or annotations changed: {:?} {:?}",
                    tenant.service.status, tenant.service.annotations
                )
            })
            .map_err(prefix(&seen))?;
        }
    }
    Ok(())
}

fn prefix(with: &impl Fn(String) -> Problem) -> impl Fn(Problem) -> Problem {
    move |problem| match problem {
        Problem::Failed(seen) => with(seen),
        other => other,
    }
}

pub(super) async fn changes_arrive(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    for depth in [ReadMode::Fresh, ReadMode::Cached] {
        let before = bench.world().await?;
        let mut tenant = bench.tenant(&nodes[..1]).await?;
        let status = tenant.ensure().await?;
        let own = tenant.service.ports[0].clone();
        let other = port(own.protocol, OTHER_PORT, 32001);
        for ports in [vec![own.clone(), other.clone()], vec![other], vec![own]] {
            tenant.service.ports = ports.into();
            tenant.nodes = nodes.clone();
            let done = tenant
                .settle(DriverCall::Ensure(depth), ErrorReaction::Fail)
                .await?;
            done.map_err(Problem::Failed)?;
            bench
                .world()
                .await?
                .served(&before, &tenant)
                .map_err(Problem::Failed)?;
        }
        expect(tenant.service.status == status, || {
            format!("the entry point was {status:?} and became {:?}", tenant.service.status)
        })?;
        tenant.remove().await?;
    }
    Ok(())
}

pub(super) async fn repairs(bench: &LbBench<'_>) -> Verdict {
    let before = bench.world().await?;
    let mut tenant = bench.tenant(&bench.nodes(2).await?).await?;
    tenant.ensure().await?;
    let id = bench
        .world()
        .await?
        .served(&before, &tenant)
        .map(|b| b.id.clone())
        .map_err(blocked)?;
    if !bench.cloud.damage(&id).await? {
        return Err(Problem::Unsupported(
            "the cloud's adapter cannot damage a load balancer".to_owned(),
        ));
    }
    let done = tenant
        .settle(DriverCall::Ensure(ReadMode::Fresh), ErrorReaction::Fail)
        .await?;
    done.map_err(Problem::Failed)?;
    bench
        .world()
        .await?
        .served(&before, &tenant)
        .map_err(Problem::Failed)?;
    Ok(())
}

/// Says that a balancer is not there as it should be, which is another rule's matter.
pub(super) fn blocked(seen: String) -> Problem {
    Problem::Blocked(ids::ENSURED, seen)
}

/// What a Service says before, what it says then, and who may connect on the way.
type Restriction<'a> = (Option<&'a [&'a str]>, &'a [&'a str], &'a [&'a str]);

/// Source ranges of the Services below, of which some overlap.
const FIRST: [&str; 2] = ["198.51.100.0/24", "203.0.113.0/25"];
const SECOND: [&str; 2] = ["203.0.113.0/24", "192.0.2.7/32"];

fn networks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

fn restricted(service: &ServiceView, texts: &[&str]) -> ServiceView {
    ServiceView {
        source_ranges: texts.iter().map(|text| (*text).into()).collect(),
        ..service.clone()
    }
}

/// Checks that nobody outside `allowed` can connect to a balancer made since `before`.
fn closed_to_others(world: &CloudSnapshot, before: &CloudSnapshot, allowed: &[IpNet]) -> Verdict {
    for balancer in world
        .new_since(before)
        .filter(|balancer| !balancer.ports.is_empty())
    {
        expect(balancer.clients.within(allowed), || {
            format!(
                "load balancer {} admits {:?} where {allowed:?} may connect",
                balancer.id, balancer.clients
            )
        })?;
    }
    Ok(())
}

pub(super) async fn never_more_open(bench: &LbBench<'_>) -> Verdict {
    if !balancers(&bench.provider().await?)?
        .supports()
        .source_ranges
    {
        return Err(Problem::Unsupported("the provider has no source ranges".to_owned()));
    }
    let either = [FIRST, SECOND].concat();
    let changes: [Restriction<'_>; 3] = [
        (None, &FIRST, &FIRST),
        (Some(&FIRST), &SECOND, &either),
        (Some(&[]), &SECOND, &["0.0.0.0/0"]),
    ];
    for (old, new, meanwhile) in changes {
        for call in (1..=MAX_CALLS).step_by(bench.cloud.stride().max(1)) {
            let before = bench.world().await?;
            let mut tenant = bench.tenant(&bench.nodes(1).await?).await?;
            if let Some(old) = old {
                tenant.service = restricted(&tenant.service, old);
                tenant.ensure().await?;
            }
            tenant.service = restricted(&tenant.service, new);
            bench
                .cloud
                .script(Some(InjectedCallFault::fail(call, InjectedFault::Transient).lasting()))
                .await?;
            tenant
                .once(&tenant.op(), DriverCall::Ensure(ReadMode::Fresh))
                .await?;
            let spoilt = bench.cloud.call_count().await?.calls() >= call;
            bench.cloud.script(None).await?;
            closed_to_others(&bench.world().await?, &before, &networks(meanwhile))?;
            tenant.ensure().await?;
            let world = bench.world().await?;
            closed_to_others(&world, &before, &networks(new))?;
            admits(&world, &before, &tenant)?;
            tenant.remove().await?;
            if !spoilt {
                break;
            }
        }
    }
    Ok(())
}

/// Checks that those may connect who shall.
fn admits(world: &CloudSnapshot, before: &CloudSnapshot, tenant: &ServiceDriver<'_>) -> Verdict {
    let Ok(SourceRanges::Only(wanted)) = SourceRanges::of(&tenant.service) else {
        return Ok(());
    };
    for balancer in world.new_since(before) {
        let AllowedSources::Only(clients) = &balancer.clients else {
            continue;
        };
        let missing: Vec<_> = wanted
            .iter()
            .filter(|net| !clients.iter().any(|client| client.contains(*net)))
            .collect();
        expect(missing.is_empty(), || {
            format!("load balancer {} keeps {missing:?} out", balancer.id)
        })?;
    }
    Ok(())
}

pub(super) async fn waits_outside(bench: &LbBench<'_>) -> Verdict {
    // First, so that an adapter may begin with another cloud.
    let slow = bench.cloud.activate_after(ACTIVATION).await?;
    let nodes = bench.nodes(1).await?;
    let mut tenant = bench.tenant(&nodes).await?;
    let started = Instant::now();
    for step in [DriverCall::Ensure(ReadMode::Fresh), DriverCall::Update, DriverCall::Delete] {
        let throttled = InjectedFault::Throttled(Duration::from_secs(7));
        bench
            .cloud
            .script(Some(InjectedCallFault::fail(1, throttled).lasting()))
            .await?;
        in_brief(&tenant, step, Duration::ZERO).await?;
        for round in 0.. {
            bench.cloud.script(None).await?;
            let outcome = in_brief(&tenant, step, started.elapsed()).await?;
            tenant.keep(&outcome);
            match outcome.result {
                Ok(Progress::Done) => break,
                Ok(Progress::Pending { after, why }) => {
                    let named = !after.is_zero() && !why.is_empty();
                    expect(named && round < 1000, || {
                        format!("{step:?} is pending for {after:?}: {why:?}")
                    })?;
                    tokio::time::sleep(after).await;
                }
                // Not this rule's matter: what is not there, and that there may be no members yet.
                Err(error)
                    if error.kind() == ErrorKind::NotFound
                        && step != DriverCall::Ensure(ReadMode::Fresh) =>
                {
                    break;
                }
                Err(error) => {
                    return Err(Problem::Failed(format!(
                        "{step:?} waits as {}",
                        show(&Err(error))
                    )));
                }
            }
        }
        if slow && step == DriverCall::Ensure(ReadMode::Fresh) {
            let done = started.elapsed();
            expect(done >= ACTIVATION, || {
                format!("done after {done:?}, in service after {ACTIVATION:?}")
            })?;
        }
    }
    Ok(())
}

/// Asks once and checks that this does not take long by itself.
async fn in_brief(
    tenant: &ServiceDriver<'_>,
    step: DriverCall,
    pending_for: Duration,
) -> Verdict<LbOutcome> {
    let began = Instant::now();
    let outcome = tenant
        .once(&tenant.op().with_pending_for(pending_for), step)
        .await?;
    let took = began.elapsed();
    let calls = u32::try_from(tenant.bench.cloud.call_count().await?.calls()).unwrap_or(u32::MAX);
    let limit = LONGEST_SLEEP + tenant.bench.cloud.answer_time() * calls.saturating_add(1);
    expect(took <= limit, || format!("{step:?} took {took:?} for {calls} cloud calls"))?;
    Ok(outcome)
}
