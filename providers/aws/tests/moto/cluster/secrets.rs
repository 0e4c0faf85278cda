//! Credentials of every kind, while AWS takes them and while it refuses them in words that repeat
//! the request. Everything is logged; what was logged is looked through after each test.

use ccm_testkit::moto::fault_proxy::{Fault, ProxyFault};
use http::{Response, StatusCode, request::Parts};

use super::fixture::{ClusterFixture, service};

const FLAGS: [&str; 2] = ["--controllers=service", "--v=10"];
const ROLE: &str = "arn:aws:iam::123456789876:role/test";
/// A web identity, and what says who a pod is: both are JSON Web Tokens.
const WEB_IDENTITY: &str =
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ3ZWItaWRlbnRpdHkifQ.c2lnbmF0dXJlLW9mLXdlYi1pZGVudGl0eQ";
const POD_IDENTITY: &str =
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwb2QtaWRlbnRpdHkifQ.c2lnbmF0dXJlLW9mLXBvZC1pZGVudGl0eQ";
/// What is given for them.
const GIVEN_KEY: &str = "given.Kv4/Tr9+Bm2=";
const GIVEN_SESSION: &str = "given.Session/Xp3+Uw8=";
/// What an instance's programs ask its metadata service with.
const INSTANCE_TOKEN: &str = "instance.AQAEAMz8/Hq5Wd==";
/// In a file.
const FILE_KEY: &str = "file.Lz5/Nq7+Dh3=";

fn add(stage: &mut ClusterFixture<'_>) {
    for (name, secret) in [
        ("the web identity", WEB_IDENTITY),
        ("the pod's identity", POD_IDENTITY),
        ("the given secret key", GIVEN_KEY),
        ("the given session token", GIVEN_SESSION),
        ("the token for the metadata service", INSTANCE_TOKEN),
        ("the secret key of the file", FILE_KEY),
    ] {
        stage.secrets.add(name, secret);
    }
}

fn always(action: &str, make: fn(&Parts, &[u8]) -> Response<String>) -> Fault {
    Fault {
        action: action.into(),
        after: 0,
        times: usize::MAX,
        effect: ProxyFault::Answered(make),
    }
}

fn answer(status: StatusCode, body: impl Into<String>) -> Response<String> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer
}

/// So soon that they are renewed for each request.
fn end() -> String {
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(20);
    end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The answer of STS to both of its actions.
fn give(_: &Parts, body: &[u8]) -> Response<String> {
    let body = String::from_utf8_lossy(body);
    let action = if body.contains("WebIdentity") {
        "AssumeRoleWithWebIdentity"
    } else {
        "AssumeRole"
    };
    let credentials = format!(
        "<AccessKeyId>ASIAGIVEN</AccessKeyId><SecretAccessKey>{GIVEN_KEY}</SecretAccessKey>\
         <SessionToken>{GIVEN_SESSION}</SessionToken><Expiration>{}</Expiration>",
        end()
    );
    let result =
        format!("<{action}Result><Credentials>{credentials}</Credentials></{action}Result>");
    let xmlns = "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"";
    answer(StatusCode::OK, format!("<{action}Response {xmlns}>{result}</{action}Response>"))
}

/// The answer of the agent that serves credentials to pods.
fn give_pod(head: &Parts, _: &[u8]) -> Response<String> {
    if head
        .headers
        .get("authorization")
        .is_none_or(|token| token != POD_IDENTITY)
    {
        return answer(StatusCode::UNAUTHORIZED, "{}");
    }
    answer(StatusCode::OK, document())
}

/// The answers of an instance's metadata service, whose role is `nodes`.
fn give_instance(head: &Parts, _: &[u8]) -> Response<String> {
    let path = head.uri.path();
    if path == "/latest/api/token" {
        let mut token = answer(StatusCode::OK, INSTANCE_TOKEN);
        token
            .headers_mut()
            .insert("x-aws-ec2-metadata-token-ttl-seconds", 21_600.into());
        return token;
    }
    if head
        .headers
        .get("x-aws-ec2-metadata-token")
        .is_none_or(|token| token != INSTANCE_TOKEN)
    {
        return answer(StatusCode::UNAUTHORIZED, "");
    }
    match path.strip_prefix("/latest/meta-data/iam/security-credentials/") {
        Some("") => answer(StatusCode::OK, "nodes"),
        Some("nodes") => answer(StatusCode::OK, document()),
        _ => answer(StatusCode::NOT_FOUND, ""),
    }
}

/// Credentials as both of them give them.
fn document() -> String {
    let end = end();
    format!(
        r#"{{"Code":"Success","AccessKeyId":"ASIAGIVEN","SecretAccessKey":"{GIVEN_KEY}","Token":"{GIVEN_SESSION}","Expiration":"{end}"}}"#
    )
}

/// All of a request, as AWS repeats it when the signature does not match.
fn repeated(head: &Parts, body: &[u8]) -> String {
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| format!("{name}:{}\n", String::from_utf8_lossy(value.as_bytes())));
    let canonical = format!(
        "{}\n{}\n{}\n{}",
        head.method,
        head.uri,
        headers.collect::<String>(),
        String::from_utf8_lossy(body)
    );
    let words = format!("The Canonical String for this request should have been '{canonical}'");
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn refuse(head: &Parts, body: &[u8]) -> Response<String> {
    let message = repeated(head, body);
    let error = format!(
        "<Error><Type>Sender</Type><Code>SignatureDoesNotMatch</Code><Message>{message}</Message></Error>"
    );
    answer(
        StatusCode::FORBIDDEN,
        format!("<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>"),
    )
}

fn refuse_pod(head: &Parts, body: &[u8]) -> Response<String> {
    let said = repeated(head, body).replace('\n', " ").replace('"', "'");
    answer(
        StatusCode::UNAUTHORIZED,
        format!(r#"{{"Code":"SignatureDoesNotMatch","Message":"{said}"}}"#),
    )
}

/// A metadata service that takes its own token for another's, and says what it would have given.
fn refuse_instance(head: &Parts, body: &[u8]) -> Response<String> {
    match head.uri.path() {
        "/latest/api/token" => give_instance(head, body),
        _ => answer(StatusCode::UNAUTHORIZED, format!("{}\n{}", repeated(head, body), document())),
    }
}

/// Who gives credentials: how it does, how it refuses those that are renewed, and what is then
/// logged.
struct CredentialSource {
    gives: Fault,
    refuses: Option<(Fault, &'static str)>,
}

/// Serves a Service with what AWS gives, then is refused: by who gives credentials, and by who is
/// asked with them.
async fn journey(
    stage: &mut ClusterFixture<'_>,
    format: &str,
    gives: Option<CredentialSource>,
) -> anyhow::Result<()> {
    add(stage);
    stage.config += "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\n";
    stage.nodes(1).await?;
    let are_given = gives.is_some();
    let refuses = gives.and_then(|giver| {
        stage.overlay().fail(giver.gives);
        giver.refuses
    });
    stage.start(&[FLAGS[0], FLAGS[1], format]).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    let said = |words: &'static str, count: usize| {
        let stage = &*stage;
        async move || {
            let seen = stage.log().matches(words).count();
            anyhow::Ok(if seen >= count {
                Ok(())
            } else {
                Err(format!("{seen} of {count} refusals"))
            })
        }
    };
    // Whoever is asked with them.
    stage.overlay().fail(always("CreateLoadBalancer", refuse));
    stage.create(&service("more", &[("TCP", 81)], &[])).await?;
    stage
        .until("refusals are told", said("SignatureDoesNotMatch", 1))
        .await?;
    stage
        .event("more", "AWSPermissionDenied", &["SignatureDoesNotMatch"])
        .await?;
    let mut events = stage.events("more").await?;
    if let Some((refuse, told)) = refuses {
        let action = refuse.action.clone();
        stage.overlay().heal();
        let before = stage.log().matches(told).count();
        stage.overlay().fail(refuse);
        stage
            .annotate("web", &[("healthcheck-interval", "20".into())])
            .await?;
        stage
            .until("refused credentials are told", said(told, before + 1))
            .await?;
        events.extend(stage.events("web").await?);
        let asked = stage.take_requests();
        anyhow::ensure!(
            asked.iter().any(|one| one.action == action),
            "nobody was asked for credentials"
        );
    }
    stage.overlay().heal();
    let log = stage.log();
    stage.stop().await?;
    stage.secrets.check("an event", &format!("{events:?}"))?;
    anyhow::ensure!(log.contains("Canonical String"), "nothing of what AWS repeats is logged");
    anyhow::ensure!(
        log.contains("ASIAGIVEN") == are_given,
        "it is not who was given credentials that asks"
    );
    // The clients' own words, which come with the verbosity alone.
    anyhow::ensure!(
        log.contains("idle connection for"),
        "nothing of what the clients do is logged"
    );
    Ok(())
}

fn sts(stage: &ClusterFixture<'_>) -> String {
    format!("AWS_ENDPOINT_URL_STS={}", stage.overlay().url())
}

fn sts_gives(action: &str) -> CredentialSource {
    CredentialSource {
        gives: always(action, give),
        refuses: Some((always(action, refuse), "SignatureDoesNotMatch")),
    }
}

pub(crate) async fn keys_that_aws_repeats_are_not_shown(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    journey(stage, "--logging-format=text", None).await
}

pub(crate) async fn no_web_identity_and_nothing_it_gives_is_shown(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let file = stage.file("web-identity", WEB_IDENTITY)?;
    stage.environment = vec![
        format!("AWS_WEB_IDENTITY_TOKEN_FILE={file}"),
        format!("AWS_ROLE_ARN={ROLE}"),
        sts(stage),
    ];
    let action = "AssumeRoleWithWebIdentity";
    journey(stage, "--logging-format=json", Some(sts_gives(action))).await
}

pub(crate) async fn no_role_is_shown(stage: &mut ClusterFixture<'_>) -> anyhow::Result<()> {
    let sts = sts(stage);
    stage.environment.push(sts);
    stage.config = format!("RoleARN = {ROLE}\n");
    journey(stage, "--logging-format=text", Some(sts_gives("AssumeRole"))).await
}

pub(crate) async fn no_token_of_a_pod_identity_is_shown(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let file = stage.file("pod-identity", POD_IDENTITY)?;
    stage.environment = vec![
        format!("AWS_CONTAINER_CREDENTIALS_FULL_URI={}/v1/credentials", stage.overlay().url()),
        format!("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE={file}"),
    ];
    let agent = CredentialSource {
        gives: always("", give_pod),
        refuses: Some((always("", refuse_pod), "StatusCode(401)")),
    };
    journey(stage, "--logging-format=json", Some(agent)).await
}

/// The environment of a process on an instance, which has no credentials but those of the
/// instance's role.
fn on_an_instance(stage: &ClusterFixture<'_>) -> anyhow::Result<Vec<String>> {
    let none = stage.file("none", "")?;
    Ok(vec![
        format!("AWS_SHARED_CREDENTIALS_FILE={none}"),
        format!("AWS_CONFIG_FILE={none}"),
        format!("AWS_EC2_METADATA_SERVICE_ENDPOINT={}", stage.overlay().url()),
    ])
}

/// While the service refuses, what it gave before goes on being used: its refusals are the next
/// test's.
pub(crate) async fn no_token_of_an_instance_and_nothing_it_gives_is_shown(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.environment = on_an_instance(stage)?;
    journey(
        stage,
        "--logging-format=text",
        Some(CredentialSource { gives: always("", give_instance), refuses: None }),
    )
    .await
}

pub(crate) async fn no_token_that_a_metadata_service_repeats_is_shown(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.environment = on_an_instance(stage)?;
    stage.overlay().fail(always("", refuse_instance));
    not_synced(stage, "the instance metadata service answered with HTTP status 401").await
}

/// A line without `=`, which the parser would have to name.
pub(crate) async fn a_file_with_keys_that_cannot_be_read_is_not_shown(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let text =
        format!("[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key {FILE_KEY}\n");
    let file = stage.file("credentials", &text)?;
    let none = stage.file("none", "")?;
    stage.environment = vec![
        format!("AWS_SHARED_CREDENTIALS_FILE={file}"),
        format!("AWS_CONFIG_FILE={none}"),
        "AWS_EC2_METADATA_DISABLED=true".into(),
    ];
    not_synced(stage, "credentials").await
}

/// Asks for a Service that nobody can make without credentials, and waits until it is told why not.
async fn not_synced(stage: &mut ClusterFixture<'_>, why: &'static str) -> anyhow::Result<()> {
    add(stage);
    stage.config = "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\n".into();
    stage.nodes(1).await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    let told = async || {
        let log = stage.log();
        let is_told = log
            .lines()
            .any(|line| line.contains("service not synced") && line.contains(why));
        Ok(if is_told {
            Ok(())
        } else {
            Err("it is not told".to_owned())
        })
    };
    stage.until("what is wrong is told", told).await?;
    stage.event("web", "SyncLoadBalancerFailed", &[]).await?;
    stage
        .secrets
        .check("an event", &format!("{:?}", stage.events("web").await?))?;
    stage.kill().await
}
