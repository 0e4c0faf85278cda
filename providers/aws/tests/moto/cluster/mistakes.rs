//! What users and administrators get wrong: one event that says it, and no load balancer that
//! nobody owns.

use ccm_testkit::moto::fault_proxy::Fault;
use serde_json::{Value, json};

use super::fixture::{ClusterFixture, service};

const FLAGS: [&str; 1] = ["--controllers=service"];
const CREATE: &str = "CreateLoadBalancer";

async fn begin(stage: &mut ClusterFixture<'_>) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\n".into();
    stage.nodes(1).await?;
    stage.start(&FLAGS).await?;
    Ok(())
}

/// One event has all mistakes, and AWS is not asked for any change.
pub(crate) async fn mistakes_are_told_together(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    begin(stage).await?;
    let annotations = [
        ("healthcheck-interval", "often"),
        ("cross-zone-load-balancing-enabled", "maybe"),
        ("scheme", "secret"),
        ("alpn-policy", "HTTP9"),
        ("name", "a-name-that-is-longer-than-32-characters"),
        ("eip-allocations", "eipalloc-1"),
        ("subnets", "public-a,public-b"),
    ];
    stage
        .create(&service("web", &[("TCP", 80)], &annotations))
        .await?;
    let texts = [
        "failed to parse annotation service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval=often",
        "aws-load-balancer-cross-zone-load-balancing-enabled=maybe",
        "unknown scheme: secret",
        "invalid ALPN policy HTTP9",
        "load balancer name cannot be longer than 32 characters",
        "count of EIP allocations (1) and subnets (2) must match",
    ];
    stage.event("web", "SyncLoadBalancerFailed", &texts).await?;
    let warnings: Vec<_> = stage
        .events("web")
        .await?
        .into_iter()
        .filter(|(reason, _)| reason != "EnsuringLoadBalancer")
        .collect();
    anyhow::ensure!(warnings.len() == 1, "{warnings:#?}");
    let writes = stage.take_writes();
    anyhow::ensure!(writes.is_empty(), "{writes:?}");
    // Put right, it is served at once.
    let none: Vec<_> = annotations
        .iter()
        .map(|(key, _)| (*key, Value::Null))
        .collect();
    stage.annotate("web", &none).await?;
    stage.served(&["web"]).await?;
    stage.stop().await
}

/// Things that AWS does not have, or that nobody serves.
pub(crate) async fn what_is_not_there_is_told(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    begin(stage).await?;
    let certificate =
        "arn:aws:acm:us-west-2:123456789012:certificate/00000000-0000-0000-0000-000000000000";
    let cases = [
        (
            "subnets",
            ("subnets", "public-a,nowhere"),
            "SyncLoadBalancerFailed",
            "expected to find 2, but found 1 subnets",
        ),
        (
            "zones",
            ("subnets", "public-a,private-a"),
            "SyncLoadBalancerFailed",
            "multiple subnets in same Availability Zone us-west-2a",
        ),
        ("certificate", ("ssl-cert", certificate), "AWSRequestRefused", "CertificateNotFound"),
        (
            "type",
            ("type", "clb"),
            "SyncLoadBalancerFailed",
            "load balancer type \"clb\" is not supported; use \"nlb\"",
        ),
    ];
    for (at, (name, annotation, _, _)) in cases.iter().enumerate() {
        let mut manifest = service(name, &[("TCP", 80)], &[*annotation]);
        manifest["spec"]["ports"][0]["nodePort"] = json!(30100 + at);
        stage.create(&manifest).await?;
    }
    for (name, _, reason, text) in cases {
        stage.event(name, reason, &[text]).await?;
    }
    // What was begun for the one whose certificate is missing is its own, and goes with it.
    let names = cases.map(|(name, ..)| name);
    for name in names {
        stage.delete(name).await?;
    }
    stage.vanished(&names).await?;
    let world = stage.world().await?;
    world
        .has(&["!default/", "!target group of nobody", "!group nodes: tcp"])
        .map_err(anyhow::Error::msg)?;
    stage.stop().await
}

/// A missing permission is named as a policy spells it; a quota is told; both heal.
pub(crate) async fn refusals_of_aws_are_told_and_heal(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    begin(stage).await?;
    stage
        .overlay()
        .fail(Fault::refused(CREATE, 403, "AccessDenied"));
    stage
        .create(&service("denied", &[("TCP", 80)], &[]))
        .await?;
    stage
        .event("denied", "AWSPermissionDenied", &["elasticloadbalancing:CreateLoadBalancer"])
        .await?;
    stage.overlay().heal();
    stage
        .annotate("denied", &[("healthcheck-interval", "20".into())])
        .await?;
    stage.served(&["denied"]).await?;

    stage
        .overlay()
        .fail(Fault::refused(CREATE, 400, "TooManyLoadBalancers"));
    stage.create(&service("many", &[("TCP", 81)], &[])).await?;
    stage
        .event("many", "AWSQuotaExceeded", &["TooManyLoadBalancers"])
        .await?;
    stage.overlay().heal();
    stage.overlay().fail(Fault::refused(
        "AuthorizeSecurityGroupIngress",
        403,
        "UnauthorizedOperation",
    ));
    stage
        .annotate("many", &[("healthcheck-interval", "20".into())])
        .await?;
    stage
        .event("many", "AWSPermissionDenied", &["ec2:AuthorizeSecurityGroupIngress"])
        .await?;
    stage.overlay().heal();
    stage.delete("many").await?;
    stage.delete("denied").await?;
    stage.vanished(&["many", "denied"]).await?;
    let world = stage.world().await?;
    world
        .has(&["!default/", "!target group of nobody", "!group nodes: tcp"])
        .map_err(anyhow::Error::msg)?;
    stage.stop().await
}

/// Everything is logged, in both formats, while AWS serves and refuses; what was logged is looked
/// through after each test.
pub(crate) async fn no_credential_is_shown_at_any_verbosity(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\n".into();
    stage.nodes(1).await?;
    for (name, format) in [("text", "--logging-format=text"), ("json", "--logging-format=json")] {
        stage.start(&[FLAGS[0], "--v=10", format]).await?;
        stage
            .overlay()
            .fail(Fault::refused(CREATE, 403, "AccessDenied"));
        stage.create(&service(name, &[("TCP", 80)], &[])).await?;
        stage
            .event(name, "AWSPermissionDenied", &["elasticloadbalancing:CreateLoadBalancer"])
            .await?;
        stage.overlay().heal();
        stage
            .annotate(name, &[("healthcheck-interval", "20".into())])
            .await?;
        stage.served(&[name]).await?;
        // There was something to see.
        anyhow::ensure!(
            stage.log().contains("idle connection for"),
            "the log says nothing of what goes over the wire"
        );
        stage.delete(name).await?;
        stage.vanished(&[name]).await?;
        stage.stop().await?;
    }
    Ok(())
}

/// What cannot be changed is refused, and the load balancer stays as it is.
pub(crate) async fn what_cannot_change_stays(stage: &mut ClusterFixture<'_>) -> anyhow::Result<()> {
    begin(stage).await?;
    stage
        .create(&service("web", &[("TCP", 80)], &[("type", "nlb")]))
        .await?;
    stage.served(&["web"]).await?;
    let before = stage.world().await?;
    stage.take_requests();
    stage.annotate("web", &[("type", "clb".into())]).await?;
    stage
        .event("web", "SyncLoadBalancerFailed", &["load balancer type \"clb\" is not supported"])
        .await?;
    stage
        .annotate("web", &[("type", "nlb".into()), ("scheme", "internal".into())])
        .await?;
    stage
        .event("web", "SyncLoadBalancerFailed", &["scheme cannot be changed"])
        .await?;
    let writes = stage.take_writes();
    anyhow::ensure!(writes.is_empty(), "{writes:?}");
    stage
        .world()
        .await?
        .same(&before)
        .map_err(anyhow::Error::msg)?;
    // OU5: without the annotation it is deleted all the same, and protection is heard before.
    let protection = ("attributes", "deletion_protection.enabled=true".into());
    stage
        .annotate("web", &[("scheme", Value::Null), ("type", Value::Null), protection])
        .await?;
    let protected = ": attribute deletion_protection.enabled=true";
    stage
        .settles("protected", |world| world.has(&[&*format!("default/web{protected}")]))
        .await?;
    stage.delete("web").await?;
    stage
        .event("web", "DeletionProtected", &["deletion_protection"])
        .await?;
    // Without the annotation the protection counts as enabled by hand.
    stage
        .annotate("web", &[("attributes", "deletion_protection.enabled=false".into())])
        .await?;
    // The next attempt comes after minutes, or at once with a new process.
    stage.stop().await?;
    stage.start(&FLAGS).await?;
    stage.vanished(&["web"]).await?;
    stage
        .world()
        .await?
        .has(&["!default/", "!target group of nobody"])
        .map_err(anyhow::Error::msg)?;
    stage.stop().await
}
