use std::time::Duration;

use ccm_core::{
    k8s::{IpFamily, LbIngress, LbStatus, Protocol, ServiceView, SessionAffinity, well_known},
    provider::{BackendKind, Digest, LbSupport, ReadMode, ServiceInterpretation},
};

use super::{
    super::{
        LoadBalancerCloud,
        context::RuleContext,
        report::{Problem, Verdict, expect},
    },
    context::{balancers, port},
    ids,
    service_driver::{DriverCall, ErrorReaction, ServiceDriver},
};

/// Label and annotation that no provider reads.
pub(super) const UNREAD: &str = "conformance.example/unread";
/// What a Service wishes that requires two address families.
const TWO_FAMILIES: &str = "two address families";
/// A port that no Service of the kit has otherwise.
pub(super) const OTHER_PORT: u16 = 7777;

type LbBench<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

fn digest(tenant: &ServiceDriver<'_>, service: &ServiceView) -> Verdict<Digest> {
    match balancers(&tenant.provider)?.interpret(service) {
        ServiceInterpretation::Valid { digest, .. } => Ok(digest),
        other => Err(Problem::Blocked(ids::CLAIMED, format!("{other:?}"))),
    }
}

pub(super) async fn claimed(bench: &LbBench<'_>) -> Verdict {
    let provider = bench.provider().await?;
    let provider = balancers(&provider)?;
    let service = bench.service();
    let classes = provider.classes();
    for class in [service.class.clone()]
        .into_iter()
        .chain(classes.iter().map(|class| Some((**class).into())))
    {
        let claim = provider.interpret(&ServiceView { class: class.clone(), ..service.clone() });
        expect(matches!(claim, ServiceInterpretation::Valid { .. }), || {
            format!("class {class:?}: {claim:?}")
        })?;
    }
    let refused = provider.supports().validate(&service);
    expect(refused.is_empty(), || format!("a plain TCP Service asks for too much: {refused:?}"))?;
    let odd = classes.iter().find(|class| class.trim().is_empty());
    expect(odd.is_none(), || format!("a class without a name among {classes:?}"))
}

pub(super) async fn endpoints_announced(bench: &LbBench<'_>) -> Verdict {
    let tenant = bench.tenant(&[]).await?;
    let provider = balancers(&tenant.provider)?;
    let plain = tenant.service.clone();
    digest(&tenant, &plain)?;
    let with_endpoints = bench.cloud.endpoint_service(plain.clone());
    let services = variations(&tenant, bench)?
        .into_iter()
        .map(|(_, service)| service);
    for service in services.chain(with_endpoints.clone()).chain([plain]) {
        let endpoints = matches!(
            provider.interpret(&service),
            ServiceInterpretation::Valid { backends: BackendKind::Endpoints, .. }
        );
        expect(!endpoints || provider.supports_endpoint_backends(), || {
            format!(
                "supports_endpoint_backends is false, but so are claimed annotations {:?}",
                service.annotations
            )
        })?;
        if with_endpoints.as_ref() == Some(&service) && provider.supports_endpoint_backends() {
            expect(endpoints, || format!("{:?} are no endpoints", provider.interpret(&service)))?;
        }
    }
    Ok(())
}

pub(super) async fn pure(bench: &LbBench<'_>) -> Verdict {
    let (first, second) = (bench.tenant(&[]).await?, bench.tenant(&[]).await?);
    digest(&first, &first.service)?;
    bench.cloud.script(None).await?;
    let provider = balancers(&first.provider)?;
    for service in variations(&first, bench)?
        .into_iter()
        .map(|(_, service)| service)
        .chain([first.service.clone()])
    {
        let claims = [
            provider.interpret(&service),
            provider.interpret(&service.clone()),
            balancers(&second.provider)?.interpret(&service),
        ];
        expect(claims.iter().all(|claim| *claim == claims[0]), || {
            format!("one Service, several claims: {claims:?}")
        })?;
        let supports = [provider.supports(), balancers(&second.provider)?.supports()];
        expect(supports[0] == supports[1], || format!("the support changes: {supports:?}"))?;
    }
    let made = bench.cloud.call_count().await?.calls();
    expect(made == 0, || format!("{made} cloud calls were made"))
}

pub(super) async fn digest_ignores_noise(bench: &LbBench<'_>) -> Verdict {
    let mut tenant = bench.tenant(&bench.nodes(1).await?).await?;
    let plain = tenant.service.clone();
    let want = digest(&tenant, &plain)?;
    let status = LbStatus {
        ingress: vec![LbIngress {
            ip: "192.0.2.99".parse().ok(),
            ip_mode: Some("VIP".into()),
            ..LbIngress::default()
        }],
    };
    let mut labelled = plain.clone();
    labelled.labels.insert(UNREAD.into(), "1".into());
    let mut annotated = plain.clone();
    annotated.annotations.insert(UNREAD.into(), "1".into());
    let noise = [
        ("status", ServiceView { status, ..plain.clone() }),
        ("resource version", ServiceView { resource_version: "2".into(), ..plain.clone() }),
        (
            "finalizers",
            ServiceView {
                finalizers: Box::new([well_known::FINALIZER_LOAD_BALANCER.into()]),
                ..plain.clone()
            },
        ),
        ("a label", labelled),
        ("an annotation", annotated),
    ];
    for (what, service) in noise {
        expect(digest(&tenant, &service)? == want, || format!("{what} changes the digest"))?;
    }
    tenant.ensure().await?;
    let written = tenant.service.annotations.clone();
    expect(digest(&tenant, &tenant.service)? == want, || {
        format!("what ensure answered changes the digest: annotations {written:?}")
    })
}

/// Makes Services that ask for something else than the tenant's, within what the provider supports.
pub(super) fn variations(
    tenant: &ServiceDriver<'_>,
    bench: &LbBench<'_>,
) -> Verdict<Vec<(String, ServiceView)>> {
    let plain = &tenant.service;
    let supports = balancers(&tenant.provider)?.supports();
    let mut more: Vec<(String, ServiceView)> = always(plain, supports);
    let node_port = port(Protocol::Tcp, plain.ports[0].port.get(), 32000);
    more.push((
        "node port".to_owned(),
        ServiceView { ports: Box::new([node_port]), ..plain.clone() },
    ));
    more.extend(wishes(bench.cloud, plain, supports));
    more.extend(with_settings(bench.cloud, plain));
    Ok(more)
}

/// Makes a Service with each annotation that changes the cloud's load balancer.
pub(super) fn with_settings(
    cloud: &dyn LoadBalancerCloud,
    plain: &ServiceView,
) -> Vec<(String, ServiceView)> {
    let with = |(key, value): (String, String)| {
        let mut service = plain.clone();
        service
            .annotations
            .insert(key.as_str().into(), value.as_str().into());
        (format!("annotation {key}: {value}"), service)
    };
    cloud.settings().into_iter().map(with).collect()
}

/// Makes a Service with one port more.
pub(super) fn with_another_port(plain: &ServiceView) -> ServiceView {
    let other = port(Protocol::Tcp, OTHER_PORT, 32001);
    ServiceView {
        ports: plain.ports.iter().cloned().chain([other]).collect(),
        ..plain.clone()
    }
}

/// Makes the Services that every provider must tell apart from `plain`.
fn always(plain: &ServiceView, supports: LbSupport) -> Vec<(String, ServiceView)> {
    let other = port(Protocol::Tcp, OTHER_PORT, 32001);
    let mut list = vec![
        ("port".to_owned(), ServiceView { ports: Box::new([other]), ..plain.clone() }),
        ("second port".to_owned(), with_another_port(plain)),
    ];
    if supports.source_ranges {
        let ranges = Box::new(["198.51.100.0/24".into()]);
        list.push((
            "source ranges".to_owned(),
            ServiceView { source_ranges: ranges, ..plain.clone() },
        ));
        let mut annotated = plain.clone();
        annotated
            .annotations
            .insert(well_known::ANNOTATION_SOURCE_RANGES.into(), "203.0.113.0/24".into());
        list.push(("source ranges in an annotation".to_owned(), annotated));
    }
    list
}

/// Makes a Service for each thing beyond TCP that the provider says it supports.
pub(super) fn wishes(
    cloud: &dyn LoadBalancerCloud,
    plain: &ServiceView,
    supports: LbSupport,
) -> Vec<(String, ServiceView)> {
    let with = |protocols: &[Protocol]| {
        let number = plain.ports[0].port.get();
        let ports = protocols
            .iter()
            .zip(0..)
            .map(|(protocol, i)| port(*protocol, number + 100 * i, 32100 + i));
        ServiceView { ports: ports.collect(), ..plain.clone() }
    };
    let affinity = SessionAffinity::ClientIp(Duration::from_secs(3 * 60 * 60));
    let mut no_node_ports = ServiceView { allocate_node_ports: false, ..plain.clone() };
    no_node_ports
        .ports
        .iter_mut()
        .for_each(|port| port.node_port = None);
    let families = Box::new([IpFamily::V4, IpFamily::V6]);
    let dual = ServiceView {
        ip_families: families,
        ip_family_policy: Some("RequireDualStack".into()),
        ..plain.clone()
    };
    let ranges = Box::new(["198.51.100.0/24".into()]);
    let address = cloud.free_address().map(Into::into);
    let list = [
        (
            supports.source_ranges,
            "source ranges",
            ServiceView { source_ranges: ranges, ..plain.clone() },
        ),
        (supports.udp, "UDP", with(&[Protocol::Udp])),
        (supports.sctp, "SCTP", with(&[Protocol::Sctp])),
        (
            supports.mixed_protocols && supports.udp,
            "TCP and UDP",
            with(&[Protocol::Tcp, Protocol::Udp]),
        ),
        (supports.dual_stack, TWO_FAMILIES, dual),
        (supports.no_node_ports, "no node ports", no_node_ports),
        (
            supports.load_balancer_ip && address.is_some(),
            "a chosen address",
            ServiceView { load_balancer_ip: address, ..plain.clone() },
        ),
        (
            supports.client_ip_affinity,
            "affinity",
            ServiceView { session_affinity: affinity, ..plain.clone() },
        ),
    ];
    let wished = list.into_iter().filter(|(on, ..)| *on);
    wished
        .map(|(_, what, service)| (what.to_owned(), cloud.wish(service)))
        .collect()
}

pub(super) async fn digest_sees_changes(bench: &LbBench<'_>) -> Verdict {
    let mut tenant = bench.tenant(&bench.nodes(1).await?).await?;
    let plain = tenant.service.clone();
    let old = digest(&tenant, &plain)?;
    for (what, service) in always(&plain, balancers(&tenant.provider)?.supports()) {
        expect(digest(&tenant, &service)? != old, || format!("{what}: same digest"))?;
    }
    // Of the rest, whatever moves the cloud.
    tenant.ensure().await?;
    let kept = tenant.service.clone();
    let before = bench.world().await?;
    for (what, changed) in variations(&tenant, bench)? {
        let provider = balancers(&tenant.provider)?;
        let served = matches!(provider.interpret(&changed), ServiceInterpretation::Valid { .. });
        if !served
            || !provider.supports().validate(&changed).is_empty()
            || digest(&tenant, &changed)? != old
        {
            continue;
        }
        tenant.service = changed;
        tenant.ensure().await?;
        let changes = bench.world().await?.changes(&before);
        expect(changes.is_empty(), || {
            format!("{what}: same digest, but ensure changes the cloud: {changes}")
        })?;
        tenant.service = kept.clone();
    }
    Ok(())
}

pub(super) async fn invalid_input_refused(bench: &LbBench<'_>) -> Verdict {
    let tenant = bench.tenant(&[]).await?;
    let provider = balancers(&tenant.provider)?;
    bench.cloud.script(None).await?;
    for (key, value) in bench.cloud.bad_annotations() {
        let mut service = tenant.service.clone();
        service
            .annotations
            .insert(key.as_str().into(), value.as_str().into());
        let claim = provider.interpret(&service);
        let named = match &claim {
            ServiceInterpretation::Invalid(mistakes) => mistakes
                .iter()
                .any(|mistake| *mistake.field == *key && mistake.message.contains(&value)),
            _ => false,
        };
        expect(named, || format!("annotation {key}: {value:?}: {claim:?}"))?;
    }
    let mut bad = tenant.service.clone();
    bad.annotations
        .insert(well_known::ANNOTATION_SOURCE_RANGES.into(), "10.0.0.0/8,anywhere".into());
    let field = ServiceView {
        source_ranges: Box::new(["10.0.0.0/33".into()]),
        ..tenant.service.clone()
    };
    for service in [bad, field] {
        // One that is claimed is refused by the framework, which reads source ranges too.
        let claim = provider.interpret(&service);
        expect(!matches!(claim, ServiceInterpretation::ImplementedElsewhere), || {
            format!("bad source ranges: {claim:?}")
        })?;
    }
    let made = bench.cloud.call_count().await?.calls();
    expect(made == 0, || format!("{made} cloud calls were made"))
}

pub(super) async fn support_is_kept(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(1).await?;
    let mut plain = bench.tenant(&nodes).await?;
    plain.ensure().await?;
    let provider = balancers(&plain.provider)?;
    let (supports, endpoints) = (provider.supports(), provider.supports_endpoint_backends());
    let wished = |plain: &ServiceView| {
        let mut list = wishes(bench.cloud, plain, supports);
        let with_endpoints = endpoints
            .then(|| bench.cloud.endpoint_service(plain.clone()))
            .flatten();
        list.extend(with_endpoints.map(|service| ("endpoints".to_owned(), service)));
        list
    };
    for (what, _) in wished(&plain.service) {
        let before = bench.world().await?;
        let mut tenant = bench.tenant(&nodes).await?;
        // Asked for again, so that the ports are this Service's own.
        let wish = wished(&tenant.service)
            .into_iter()
            .find(|(w, _)| *w == what);
        let Some((_, service)) = wish else { continue };
        tenant.service = service;
        let refused = supports.validate(&tenant.service);
        expect(refused.is_empty(), || format!("{what}: {refused:?}"))?;
        let claim = balancers(&tenant.provider)?.interpret(&tenant.service);
        expect(matches!(claim, ServiceInterpretation::Valid { .. }), || {
            format!("{what}: {claim:?}")
        })?;
        let done = tenant
            .settle(DriverCall::Ensure(ReadMode::Fresh), ErrorReaction::Fail)
            .await?;
        done.map_err(|seen| Problem::Failed(format!("{what}: {seen}")))?;
        let world = bench.world().await?;
        let balancer = world
            .served(&before, &tenant)
            .map_err(|seen| Problem::Failed(format!("{what}: {seen}")))?;
        if let Some(wanted) = tenant.service.load_balancer_ip.as_deref() {
            expect(balancer.addresses.contains(wanted), || {
                format!("{what}: {:?}", balancer.addresses)
            })?;
        }
        tenant.remove().await?;
    }
    Ok(())
}

pub(super) async fn both_families_served(bench: &LbBench<'_>) -> Verdict {
    let mut tenant = bench.tenant(&bench.nodes(1).await?).await?;
    let supports = balancers(&tenant.provider)?.supports();
    let wish = wishes(bench.cloud, &tenant.service, supports)
        .into_iter()
        .find(|(what, _)| what == TWO_FAMILIES);
    let Some((_, service)) = wish else {
        return Err(Problem::Unsupported(
            "the provider does not support two address families".to_owned(),
        ));
    };
    let before = bench.world().await?;
    tenant.service = service;
    tenant.ensure().await?;
    let world = bench.world().await?;
    let balancer = world
        .served(&before, &tenant)
        .map_err(super::ensure::blocked)?;
    let both = bench.cloud.serves_both_families(balancer).await?;
    expect(both, || format!("found at {:?}", balancer.addresses))
}
