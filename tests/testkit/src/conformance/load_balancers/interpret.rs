use std::{net::IpAddr, time::Duration};

use ccm_core::{
    k8s::{IpFamily, LbIngress, LbStatus, Protocol, ServiceView, SessionAffinity, well_known},
    provider::{BackendKind, Digest, LbSupport, ReadMode, ServiceInterpretation},
};

use super::{
    super::{
        CloudLoadBalancer, LoadBalancerCloud,
        context::RuleContext,
        report::{Problem, Verdict, expect},
    },
    context::{load_balancers, port},
    ids,
    service_driver::{ErrorReaction, Operation, ServiceDriver},
};

/// Key of a label or annotation that no provider reads.
pub(super) const UNREAD: &str = "conformance.example/unread";
/// Name of the feature that requires two address families.
const TWO_FAMILIES: &str = "two address families";
/// Port that no other Service of the kit has.
pub(super) const OTHER_PORT: u16 = 7777;

type LbRuleContext<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

fn digest(driver: &ServiceDriver<'_>, service: &ServiceView) -> Verdict<Digest> {
    match load_balancers(&driver.provider)?.interpret(service) {
        ServiceInterpretation::Valid { digest, .. } => Ok(digest),
        other => Err(Problem::Blocked(ids::CLAIMED, format!("{other:?}"))),
    }
}

pub(super) async fn claims_its_services(ctx: &LbRuleContext<'_>) -> Verdict {
    let provider = ctx.provider().await?;
    let provider = load_balancers(&provider)?;
    let service = ctx.service();
    let classes = provider.classes();
    for class in [service.class.clone()]
        .into_iter()
        .chain(classes.iter().map(|class| Some((**class).into())))
    {
        let result = provider.interpret(&ServiceView { class: class.clone(), ..service.clone() });
        expect(matches!(result, ServiceInterpretation::Valid { .. }), || {
            format!("class {class:?}: {result:?}")
        })?;
    }
    let unsupported = provider.supports().validate(&service);
    expect(unsupported.is_empty(), || {
        format!("a plain TCP Service is not supported: {unsupported:?}")
    })?;
    let empty_class = classes.iter().find(|class| class.trim().is_empty());
    expect(empty_class.is_none(), || format!("an empty class among {classes:?}"))
}

pub(super) async fn endpoints_announced(ctx: &LbRuleContext<'_>) -> Verdict {
    let driver = ctx.driver(&[]).await?;
    let provider = load_balancers(&driver.provider)?;
    let plain = driver.service.clone();
    digest(&driver, &plain)?;
    let with_endpoints = ctx.cloud.endpoint_service(plain.clone());
    let services = variations(&driver, ctx)?
        .into_iter()
        .map(|(_, service)| service);
    for service in services.chain(with_endpoints.clone()).chain([plain]) {
        let endpoints = matches!(
            provider.interpret(&service),
            ServiceInterpretation::Valid { backends: BackendKind::Endpoints, .. }
        );
        expect(!endpoints || provider.supports_endpoint_backends(), || {
            format!(
                "supports_endpoint_backends is false, but endpoints are backends with annotations {:?}",
                service.annotations
            )
        })?;
        if with_endpoints.as_ref() == Some(&service) && provider.supports_endpoint_backends() {
            expect(endpoints, || {
                format!("{:?} does not have endpoints as backends", provider.interpret(&service))
            })?;
        }
    }
    Ok(())
}

pub(super) async fn interpret_is_pure(ctx: &LbRuleContext<'_>) -> Verdict {
    let (first, second) = (ctx.driver(&[]).await?, ctx.driver(&[]).await?);
    digest(&first, &first.service)?;
    ctx.cloud.script(None).await?;
    let provider = load_balancers(&first.provider)?;
    for service in variations(&first, ctx)?
        .into_iter()
        .map(|(_, service)| service)
        .chain([first.service.clone()])
    {
        let results = [
            provider.interpret(&service),
            provider.interpret(&service.clone()),
            load_balancers(&second.provider)?.interpret(&service),
        ];
        expect(results.iter().all(|result| *result == results[0]), || {
            format!("different results for the same Service: {results:?}")
        })?;
        let supports = [provider.supports(), load_balancers(&second.provider)?.supports()];
        expect(supports[0] == supports[1], || format!("supports() differs: {supports:?}"))?;
    }
    let made = ctx.cloud.call_count().await?.calls();
    expect(made == 0, || format!("{made} cloud calls were made"))
}

pub(super) async fn digest_ignores_noise(ctx: &LbRuleContext<'_>) -> Verdict {
    let mut driver = ctx.driver(&ctx.nodes(1).await?).await?;
    let plain = driver.service.clone();
    let expected = digest(&driver, &plain)?;
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
        expect(digest(&driver, &service)? == expected, || format!("{what} changes the digest"))?;
    }
    driver.ensure().await?;
    let written = driver.service.annotations.clone();
    expect(digest(&driver, &driver.service)? == expected, || {
        format!("the annotations that ensure asked to write change the digest: {written:?}")
    })
}

/// Returns Services that differ from the driver's, each with a supported feature or setting.
pub(super) fn variations(
    driver: &ServiceDriver<'_>,
    ctx: &LbRuleContext<'_>,
) -> Verdict<Vec<(String, ServiceView)>> {
    let plain = &driver.service;
    let supports = load_balancers(&driver.provider)?.supports();
    let mut more: Vec<(String, ServiceView)> = required_variations(plain, supports);
    let node_port = port(Protocol::Tcp, plain.ports[0].port.get(), 32000);
    more.push((
        "node port".to_owned(),
        ServiceView { ports: Box::new([node_port]), ..plain.clone() },
    ));
    more.extend(feature_services(ctx.cloud, plain, supports));
    more.extend(with_settings(ctx.cloud, plain));
    Ok(more)
}

/// Returns a Service for each annotation that changes the load balancer in the cloud.
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

/// Returns the Service with one more port.
pub(super) fn with_another_port(plain: &ServiceView) -> ServiceView {
    let other = port(Protocol::Tcp, OTHER_PORT, 32001);
    ServiceView {
        ports: plain.ports.iter().cloned().chain([other]).collect(),
        ..plain.clone()
    }
}

/// Returns Services whose digest must differ from that of `plain` in every provider.
fn required_variations(plain: &ServiceView, supports: LbSupport) -> Vec<(String, ServiceView)> {
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

/// Returns a Service for each supported feature beyond TCP.
pub(super) fn feature_services(
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
    let six = ServiceView { ip_families: Box::new([IpFamily::V6]), ..plain.clone() };
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
        (supports.ipv6, "IPv6", six),
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
    list.into_iter()
        .filter(|(is_supported, ..)| *is_supported)
        .map(|(_, what, service)| (what.to_owned(), cloud.wish(service)))
        .collect()
}

pub(super) async fn digest_sees_changes(ctx: &LbRuleContext<'_>) -> Verdict {
    let mut driver = ctx.driver(&ctx.nodes(1).await?).await?;
    let plain = driver.service.clone();
    let old = digest(&driver, &plain)?;
    for (what, service) in required_variations(&plain, load_balancers(&driver.provider)?.supports())
    {
        expect(digest(&driver, &service)? != old, || format!("{what}: same digest"))?;
    }
    // Other variations must change the digest only if ensure changes the cloud for them.
    driver.ensure().await?;
    let original = driver.service.clone();
    let before = ctx.snapshot().await?;
    for (what, changed) in variations(&driver, ctx)? {
        let provider = load_balancers(&driver.provider)?;
        let served = matches!(provider.interpret(&changed), ServiceInterpretation::Valid { .. });
        if !served
            || !provider.supports().validate(&changed).is_empty()
            || digest(&driver, &changed)? != old
        {
            continue;
        }
        driver.service = changed;
        driver.ensure().await?;
        let changes = ctx.snapshot().await?.changes_since(&before);
        expect(changes.is_empty(), || {
            format!("{what}: same digest, but ensure changes the cloud: {changes}")
        })?;
        driver.service = original.clone();
    }
    Ok(())
}

pub(super) async fn invalid_input_refused(ctx: &LbRuleContext<'_>) -> Verdict {
    let driver = ctx.driver(&[]).await?;
    let provider = load_balancers(&driver.provider)?;
    ctx.cloud.script(None).await?;
    for (key, value) in ctx.cloud.bad_annotations() {
        let mut service = driver.service.clone();
        service
            .annotations
            .insert(key.as_str().into(), value.as_str().into());
        let result = provider.interpret(&service);
        let is_reported = match &result {
            ServiceInterpretation::Invalid(errors) => errors
                .iter()
                .any(|error| *error.field == *key && error.message.contains(&value)),
            _ => false,
        };
        expect(is_reported, || format!("annotation {key}: {value:?}: {result:?}"))?;
    }
    let mut bad = driver.service.clone();
    bad.annotations
        .insert(well_known::ANNOTATION_SOURCE_RANGES.into(), "10.0.0.0/8,anywhere".into());
    let field = ServiceView {
        source_ranges: Box::new(["10.0.0.0/33".into()]),
        ..driver.service.clone()
    };
    for service in [bad, field] {
        // A valid result is fine here, because the framework validates source ranges as well.
        let result = provider.interpret(&service);
        expect(!matches!(result, ServiceInterpretation::ImplementedElsewhere), || {
            format!("bad source ranges: {result:?}")
        })?;
    }
    let made = ctx.cloud.call_count().await?.calls();
    expect(made == 0, || format!("{made} cloud calls were made"))
}

pub(super) async fn support_is_kept(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(1).await?;
    let mut plain = ctx.driver(&nodes).await?;
    plain.ensure().await?;
    let provider = load_balancers(&plain.provider)?;
    let (supports, endpoints) = (provider.supports(), provider.supports_endpoint_backends());
    let all_services = |plain: &ServiceView| {
        let mut list = feature_services(ctx.cloud, plain, supports);
        let with_endpoints = endpoints
            .then(|| ctx.cloud.endpoint_service(plain.clone()))
            .flatten();
        list.extend(with_endpoints.map(|service| ("endpoints".to_owned(), service)));
        list
    };
    for (what, _) in all_services(&plain.service) {
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes).await?;
        // Computed again for the new Service, which has its own ports.
        let found = all_services(&driver.service)
            .into_iter()
            .find(|(name, _)| *name == what);
        let Some((_, service)) = found else { continue };
        driver.service = service;
        let unsupported = supports.validate(&driver.service);
        expect(unsupported.is_empty(), || format!("{what}: {unsupported:?}"))?;
        let result = load_balancers(&driver.provider)?.interpret(&driver.service);
        expect(matches!(result, ServiceInterpretation::Valid { .. }), || {
            format!("{what}: {result:?}")
        })?;
        let done = driver
            .call_until_done(Operation::Ensure(ReadMode::Fresh), ErrorReaction::Fail)
            .await?;
        done.map_err(|observed| Problem::Failed(format!("{what}: {observed}")))?;
        let snapshot = ctx.snapshot().await?;
        let load_balancer = snapshot
            .served_since(&before, &driver)
            .map_err(|observed| Problem::Failed(format!("{what}: {observed}")))?;
        if let Some(wanted) = driver.service.load_balancer_ip.as_deref() {
            expect(load_balancer.addresses.contains(wanted), || {
                format!("{what}: {:?}", load_balancer.addresses)
            })?;
        }
        check_family(&driver.service, load_balancer)
            .map_err(|observed| Problem::Failed(format!("{what}: {observed}")))?;
        driver.remove().await?;
    }
    Ok(())
}

/// Checks that a load balancer has an address of the Service's first address family. A host name may
/// lead to any address.
fn check_family(service: &ServiceView, load_balancer: &CloudLoadBalancer) -> Result<(), String> {
    let wants_ipv6 = service.ip_families.first() == Some(&IpFamily::V6);
    let mut addresses = load_balancer.addresses.iter();
    let fits = addresses.any(|address| match address.parse::<IpAddr>() {
        Ok(address) => address.is_ipv6() == wants_ipv6,
        Err(_) => true,
    });
    if fits || load_balancer.addresses.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the families are {:?}, but the addresses {:?}",
        service.ip_families, load_balancer.addresses
    ))
}

pub(super) async fn both_families_served(ctx: &LbRuleContext<'_>) -> Verdict {
    let mut driver = ctx.driver(&ctx.nodes(1).await?).await?;
    let supports = load_balancers(&driver.provider)?.supports();
    let found = feature_services(ctx.cloud, &driver.service, supports)
        .into_iter()
        .find(|(what, _)| what == TWO_FAMILIES);
    let Some((_, service)) = found else {
        return Err(Problem::Unsupported(
            "the provider does not support two address families".to_owned(),
        ));
    };
    let before = ctx.snapshot().await?;
    driver.service = service;
    driver.ensure().await?;
    let snapshot = ctx.snapshot().await?;
    let load_balancer = snapshot
        .served_since(&before, &driver)
        .map_err(super::ensure::blocked)?;
    let both = ctx.cloud.serves_both_families(load_balancer).await?;
    expect(both, || format!("only addresses {:?}", load_balancer.addresses))
}
