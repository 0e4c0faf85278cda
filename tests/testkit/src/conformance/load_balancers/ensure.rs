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
    context::{CloudSnapshot, load_balancers, port},
    ids,
    interpret::OTHER_PORT,
    service_driver::{ErrorReaction, Operation, ServiceDriver, show},
};

/// Maximum sleep of one provider call.
pub(super) const MAX_SLEEP: Duration = Duration::from_secs(2);
/// Time from creation to service of a load balancer in the rule about pending calls.
const ACTIVATION: Duration = Duration::from_secs(90);
/// Maximum number of calls of one operation into which a rule injects a fault.
pub(super) const MAX_CALLS: u64 = 100;

type LbRuleContext<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

pub(super) async fn ensure_makes_one(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    for mode in [ReadMode::Fresh, ReadMode::Cached] {
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes).await?;
        let done = driver
            .call_until_done(Operation::Ensure(mode), ErrorReaction::Fail)
            .await?;
        done.map_err(Problem::Failed)?;
        ctx.snapshot()
            .await?
            .served_since(&before, &driver)
            .map_err(Problem::Failed)?;
    }
    Ok(())
}

pub(super) async fn status_usable(ctx: &LbRuleContext<'_>) -> Verdict {
    let before = ctx.snapshot().await?;
    let mut driver = ctx.driver(&ctx.nodes(1).await?).await?;
    let status = driver.ensure().await?;
    let snapshot = ctx.snapshot().await?;
    let addresses: BTreeSet<_> = snapshot
        .new_since(&before)
        .flat_map(|load_balancer| load_balancer.addresses.clone())
        .collect();
    expect(!status.ingress.is_empty(), || {
        "ensure is done, but the status has no entry".to_owned()
    })?;
    for (index, entry) in status.ingress.iter().enumerate() {
        check_status_entry(entry, &addresses)
            .map_err(|observed| Problem::Failed(format!("status entry {index}: {observed}")))?;
        expect(!status.ingress[..index].contains(entry), || {
            format!("status entry {index} is listed twice")
        })?;
    }
    Ok(())
}

fn check_status_entry(entry: &LbIngress, addresses: &BTreeSet<String>) -> Result<(), String> {
    if entry.ip.is_none() && entry.hostname.is_none() {
        return Err("neither address nor hostname".to_owned());
    }
    if let Some(name) = &entry.hostname
        && !syntax::is_subdomain(name)
    {
        return Err(format!("{name:?} is not a DNS name"));
    }
    match (entry.ip_mode.as_deref(), entry.ip) {
        (None | Some("VIP" | "Proxy"), Some(_)) | (None, None) => {}
        (mode, ip) => return Err(format!("IP mode {mode:?} with address {ip:?}")),
    }
    let published = entry
        .ip
        .map(|ip| ip.to_string())
        .into_iter()
        .chain(entry.hostname.as_deref().map(str::to_owned));
    match published
        .filter(|text| !addresses.contains(text))
        .collect::<Vec<_>>()
    {
        unknown if unknown.is_empty() => Ok(()),
        unknown => Err(format!("{unknown:?} is not among the load balancer's {addresses:?}")),
    }
}

pub(super) async fn ensure_is_idempotent(ctx: &LbRuleContext<'_>) -> Verdict {
    let mut driver = ctx.driver(&ctx.nodes(2).await?).await?;
    driver.ensure().await?;
    let before = ctx.snapshot().await?;
    let service = driver.service.clone();
    for new_process in [false, true] {
        for mode in [ReadMode::Cached, ReadMode::Fresh] {
            if new_process {
                driver.provider = ctx.provider().await?;
            }
            ctx.cloud.script(None).await?;
            let outcome = driver
                .call_once(&driver.op(), Operation::Ensure(mode))
                .await?;
            let process = if new_process {
                "a new process"
            } else {
                "the same process"
            };
            let observed = |observed: String| {
                Problem::Failed(format!("repeated in {process} with {mode:?}: {observed}"))
            };
            expect(matches!(outcome.result, Ok(Progress::Done)), || show(&outcome.result))
                .map_err(prefix(&observed))?;
            let writes = ctx.cloud.call_count().await?.writes;
            expect(writes == 0, || format!("{writes} writing calls")).map_err(prefix(&observed))?;
            driver.apply_outcome(&outcome);
            let changes = ctx.snapshot().await?.changes_since(&before);
            expect(changes.is_empty(), || changes).map_err(prefix(&observed))?;
            expect(driver.service == service, || {
                format!(
                    "status or annotations changed: {:?} {:?}",
                    driver.service.status, driver.service.annotations
                )
            })
            .map_err(prefix(&observed))?;
        }
    }
    Ok(())
}

fn prefix(with: &impl Fn(String) -> Problem) -> impl Fn(Problem) -> Problem {
    move |problem| match problem {
        Problem::Failed(observed) => with(observed),
        other => other,
    }
}

pub(super) async fn changes_arrive(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    for mode in [ReadMode::Fresh, ReadMode::Cached] {
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes[..1]).await?;
        let status = driver.ensure().await?;
        let own = driver.service.ports[0].clone();
        let other = port(own.protocol, OTHER_PORT, 32001);
        for ports in [vec![own.clone(), other.clone()], vec![other], vec![own]] {
            driver.service.ports = ports.into();
            driver.nodes = nodes.clone();
            let done = driver
                .call_until_done(Operation::Ensure(mode), ErrorReaction::Fail)
                .await?;
            done.map_err(Problem::Failed)?;
            ctx.snapshot()
                .await?
                .served_since(&before, &driver)
                .map_err(Problem::Failed)?;
        }
        expect(driver.service.status == status, || {
            format!("the status changed from {status:?} to {:?}", driver.service.status)
        })?;
        driver.remove().await?;
    }
    Ok(())
}

pub(super) async fn verify_repairs(ctx: &LbRuleContext<'_>) -> Verdict {
    let before = ctx.snapshot().await?;
    let mut driver = ctx.driver(&ctx.nodes(2).await?).await?;
    driver.ensure().await?;
    let id = ctx
        .snapshot()
        .await?
        .served_since(&before, &driver)
        .map(|b| b.id.clone())
        .map_err(blocked)?;
    if !ctx.cloud.damage(&id).await? {
        return Err(Problem::Unsupported(
            "the cloud's adapter cannot damage a load balancer".to_owned(),
        ));
    }
    let done = driver
        .call_until_done(Operation::Ensure(ReadMode::Fresh), ErrorReaction::Fail)
        .await?;
    done.map_err(Problem::Failed)?;
    ctx.snapshot()
        .await?
        .served_since(&before, &driver)
        .map_err(Problem::Failed)?;
    Ok(())
}

/// Reports a load balancer that is not in its desired state. Another rule judges that.
pub(super) fn blocked(observed: String) -> Problem {
    Problem::Blocked(ids::ENSURED, observed)
}

/// Old source ranges of a Service, new source ranges, and clients that may connect in between.
type SourceRangeChange<'a> = (Option<&'a [&'a str]>, &'a [&'a str], &'a [&'a str]);

/// Source ranges for the Services below. Some overlap.
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

/// Checks that no client outside `allowed` can connect to a load balancer created since `before`.
fn check_no_other_clients(
    snapshot: &CloudSnapshot,
    before: &CloudSnapshot,
    allowed: &[IpNet],
) -> Verdict {
    for load_balancer in snapshot
        .new_since(before)
        .filter(|load_balancer| !load_balancer.ports.is_empty())
    {
        expect(load_balancer.clients.within(allowed), || {
            format!(
                "load balancer {} allows {:?}, but only {allowed:?} may connect",
                load_balancer.id, load_balancer.clients
            )
        })?;
    }
    Ok(())
}

pub(super) async fn never_more_open(ctx: &LbRuleContext<'_>) -> Verdict {
    if !load_balancers(&ctx.provider().await?)?
        .supports()
        .source_ranges
    {
        return Err(Problem::Unsupported("the provider does not support source ranges".to_owned()));
    }
    let either = [FIRST, SECOND].concat();
    let changes: [SourceRangeChange<'_>; 3] = [
        (None, &FIRST, &FIRST),
        (Some(&FIRST), &SECOND, &either),
        (Some(&[]), &SECOND, &["0.0.0.0/0"]),
    ];
    for (old, new, meanwhile) in changes {
        for call in (1..=MAX_CALLS).step_by(ctx.cloud.stride().max(1)) {
            let before = ctx.snapshot().await?;
            let mut driver = ctx.driver(&ctx.nodes(1).await?).await?;
            if let Some(old) = old {
                driver.service = restricted(&driver.service, old);
                driver.ensure().await?;
            }
            driver.service = restricted(&driver.service, new);
            ctx.cloud
                .script(Some(InjectedCallFault::fail(call, InjectedFault::Transient).lasting()))
                .await?;
            driver
                .call_once(&driver.op(), Operation::Ensure(ReadMode::Fresh))
                .await?;
            let fault_hit = ctx.cloud.call_count().await?.calls() >= call;
            ctx.cloud.script(None).await?;
            check_no_other_clients(&ctx.snapshot().await?, &before, &networks(meanwhile))?;
            driver.ensure().await?;
            let snapshot = ctx.snapshot().await?;
            check_no_other_clients(&snapshot, &before, &networks(new))?;
            check_allowed_clients(&snapshot, &before, &driver)?;
            driver.remove().await?;
            if !fault_hit {
                break;
            }
        }
    }
    Ok(())
}

/// Checks that all clients in the source ranges can connect.
fn check_allowed_clients(
    snapshot: &CloudSnapshot,
    before: &CloudSnapshot,
    driver: &ServiceDriver<'_>,
) -> Verdict {
    let Ok(SourceRanges::Only(wanted)) = SourceRanges::of(&driver.service) else {
        return Ok(());
    };
    for load_balancer in snapshot.new_since(before) {
        let AllowedSources::Only(clients) = &load_balancer.clients else {
            continue;
        };
        let missing: Vec<_> = wanted
            .iter()
            .filter(|net| !clients.iter().any(|client| client.contains(*net)))
            .collect();
        expect(missing.is_empty(), || {
            format!("load balancer {} does not allow {missing:?}", load_balancer.id)
        })?;
    }
    Ok(())
}

pub(super) async fn waits_outside(ctx: &LbRuleContext<'_>) -> Verdict {
    // This call comes first, because an adapter may replace its cloud here.
    let slow = ctx.cloud.activate_after(ACTIVATION).await?;
    let nodes = ctx.nodes(1).await?;
    let mut driver = ctx.driver(&nodes).await?;
    let started = Instant::now();
    for operation in [Operation::Ensure(ReadMode::Fresh), Operation::Update, Operation::Delete] {
        let throttled = InjectedFault::Throttled(Duration::from_secs(7));
        ctx.cloud
            .script(Some(InjectedCallFault::fail(1, throttled).lasting()))
            .await?;
        call_briefly(&driver, operation, Duration::ZERO).await?;
        for round in 0.. {
            ctx.cloud.script(None).await?;
            let outcome = call_briefly(&driver, operation, started.elapsed()).await?;
            driver.apply_outcome(&outcome);
            match outcome.result {
                Ok(Progress::Done) => break,
                Ok(Progress::Pending { after, reason }) => {
                    let named = !after.is_zero() && !reason.is_empty();
                    expect(named && round < 1000, || {
                        format!("{operation:?} is pending for {after:?}: {reason:?}")
                    })?;
                    tokio::time::sleep(after).await;
                }
                // Other rules judge this: the object does not exist, or has no members yet.
                Err(error)
                    if error.kind() == ErrorKind::NotFound
                        && operation != Operation::Ensure(ReadMode::Fresh) =>
                {
                    break;
                }
                Err(error) => {
                    return Err(Problem::Failed(format!(
                        "{operation:?} returned {} instead of Pending",
                        show(&Err(error))
                    )));
                }
            }
        }
        if slow && operation == Operation::Ensure(ReadMode::Fresh) {
            let done = started.elapsed();
            expect(done >= ACTIVATION, || {
                format!(
                    "done after {done:?}, but the load balancer serves only after {ACTIVATION:?}"
                )
            })?;
        }
    }
    Ok(())
}

/// Calls the provider once and checks that it does not sleep too long.
async fn call_briefly(
    driver: &ServiceDriver<'_>,
    operation: Operation,
    pending_for: Duration,
) -> Verdict<LbOutcome> {
    let began = Instant::now();
    let outcome = driver
        .call_once(&driver.op().with_pending_for(pending_for), operation)
        .await?;
    let took = began.elapsed();
    let calls = u32::try_from(driver.ctx.cloud.call_count().await?.calls()).unwrap_or(u32::MAX);
    let limit = MAX_SLEEP + driver.ctx.cloud.answer_time() * calls.saturating_add(1);
    expect(took <= limit, || format!("{operation:?} took {took:?} for {calls} cloud calls"))?;
    Ok(outcome)
}

/// Time from the acceptance to the completion of a change in the rules about slow changes. It is
/// longer than a call may sleep.
const COMPLETION: Duration = Duration::from_secs(20);

pub(super) async fn slow_change(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    for restart in [false, true] {
        // A load balancer that serves gets another port and another member.
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes[..1]).await?;
        driver.ensure().await?;
        if !ctx.cloud.complete_after(COMPLETION).await? {
            return Err(Problem::Unsupported("the cloud's changes are never pending".to_owned()));
        }
        let own = driver.service.ports[0].clone();
        let other = port(own.protocol, OTHER_PORT, 32001);
        driver.service.ports = vec![own, other].into();
        driver.nodes.clone_from(&nodes);
        // The first call begins it.
        let ensure = Operation::Ensure(ReadMode::Cached);
        let outcome = driver.call_once(&driver.op(), ensure).await?;
        let pending = matches!(outcome.result, Ok(Progress::Pending { .. }));
        expect(pending, || format!("while it is pending: {}", show(&outcome.result)))?;
        driver.apply_outcome(&outcome);
        if restart {
            driver.provider = ctx.provider().await?;
        }
        // The others complete it. Done means that the cloud shows it.
        for operation in [ensure, Operation::Delete] {
            let done = driver
                .call_until_done(operation, ErrorReaction::Fail)
                .await?;
            done.map_err(Problem::Failed)?;
            let snapshot = ctx.snapshot().await?;
            if operation == ensure {
                snapshot
                    .served_since(&before, &driver)
                    .map_err(|observed| Problem::Failed(format!("answered as done: {observed}")))?;
            } else {
                let left = snapshot.changes_since(&before);
                expect(left.is_empty(), || format!("answered as deleted: {left}"))?;
            }
        }
        ctx.cloud.complete_after(Duration::ZERO).await?;
    }
    Ok(())
}

pub(super) async fn late_failure(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    for completion in [Duration::from_millis(500), COMPLETION] {
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes[..1]).await?;
        driver.ensure().await?;
        let slow = ctx.cloud.complete_after(completion).await?;
        if !slow || !ctx.cloud.fail_next_accepted().await? {
            return Err(Problem::Unsupported(
                "the cloud's accepted changes never fail later".to_owned(),
            ));
        }
        driver.nodes.clone_from(&nodes);
        let done = driver
            .call_until_done(Operation::Ensure(ReadMode::Cached), ErrorReaction::Retry)
            .await?;
        done.map_err(Problem::Failed)?;
        ctx.snapshot()
            .await?
            .served_since(&before, &driver)
            .map_err(|observed| Problem::Failed(format!("answered as done: {observed}")))?;
        ctx.cloud.complete_after(Duration::ZERO).await?;
        driver.remove().await?;
    }
    Ok(())
}
