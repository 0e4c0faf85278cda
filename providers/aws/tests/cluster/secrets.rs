//! Credentials of every kind, while AWS takes them and while it refuses them in words that repeat the request. Everything is
//! logged; what was logged is looked through after each test.

use ccm_testkit::moto::overlay::{Fault, Trouble};
use http::request::Parts;

use crate::stage::{Stage, service};

const FLAGS: [&str; 2] = ["--controllers=service", "--v=10"];
const ROLE: &str = "arn:aws:iam::123456789876:role/test";
/// A web identity, and what says who a pod is: both are JSON Web Tokens.
const WEB_IDENTITY: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ3ZWItaWRlbnRpdHkifQ.c2lnbmF0dXJlLW9mLXdlYi1pZGVudGl0eQ";
const POD_IDENTITY: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwb2QtaWRlbnRpdHkifQ.c2lnbmF0dXJlLW9mLXBvZC1pZGVudGl0eQ";
/// What is given for them.
const GIVEN_KEY: &str = "given.Kv4/Tr9+Bm2=";
const GIVEN_SESSION: &str = "given.Session/Xp3+Uw8=";
/// In a file.
const FILE_KEY: &str = "file.Lz5/Nq7+Dh3=";

fn add(stage: &mut Stage<'_>) {
    for (name, secret) in [
        ("the web identity", WEB_IDENTITY),
        ("the pod's identity", POD_IDENTITY),
        ("the given secret key", GIVEN_KEY),
        ("the given session token", GIVEN_SESSION),
        ("the secret key of the file", FILE_KEY),
    ] {
        stage.secrets.add(name, secret);
    }
}

fn always(action: &str, make: fn(&Parts, &[u8]) -> (u16, String)) -> Fault {
    Fault { action: action.into(), after: 0, times: usize::MAX, trouble: Trouble::Answered(make) }
}

/// So soon that they are renewed for each request.
fn end() -> String {
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(20);
    end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The answer of STS to both of its actions.
fn give(_: &Parts, body: &[u8]) -> (u16, String) {
    let body = String::from_utf8_lossy(body);
    let action = if body.contains("WebIdentity") { "AssumeRoleWithWebIdentity" } else { "AssumeRole" };
    let credentials = format!(
        "<AccessKeyId>ASIAGIVEN</AccessKeyId><SecretAccessKey>{GIVEN_KEY}</SecretAccessKey>\
         <SessionToken>{GIVEN_SESSION}</SessionToken><Expiration>{}</Expiration>",
        end()
    );
    let result = format!("<{action}Result><Credentials>{credentials}</Credentials></{action}Result>");
    let xmlns = "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"";
    (200, format!("<{action}Response {xmlns}>{result}</{action}Response>"))
}

/// The answer of the agent that serves credentials to pods.
fn give_pod(head: &Parts, _: &[u8]) -> (u16, String) {
    if head.headers.get("authorization").is_none_or(|token| token != POD_IDENTITY) {
        return (401, "{}".to_owned());
    }
    let end = end();
    let given = format!(
        r#"{{"AccessKeyId":"ASIAGIVEN","SecretAccessKey":"{GIVEN_KEY}","Token":"{GIVEN_SESSION}","Expiration":"{end}"}}"#
    );
    (200, given)
}

/// All of a request, as AWS repeats it when the signature does not match.
fn repeated(head: &Parts, body: &[u8]) -> String {
    let headers =
        head.headers.iter().map(|(name, value)| format!("{name}:{}\n", String::from_utf8_lossy(value.as_bytes())));
    let canonical =
        format!("{}\n{}\n{}\n{}", head.method, head.uri, headers.collect::<String>(), String::from_utf8_lossy(body));
    let words = format!("The Canonical String for this request should have been '{canonical}'");
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn refuse(head: &Parts, body: &[u8]) -> (u16, String) {
    let message = repeated(head, body);
    let error =
        format!("<Error><Type>Sender</Type><Code>SignatureDoesNotMatch</Code><Message>{message}</Message></Error>");
    (403, format!("<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>"))
}

fn refuse_pod(head: &Parts, body: &[u8]) -> (u16, String) {
    let said = repeated(head, body).replace('\n', " ").replace('"', "'");
    (401, format!(r#"{{"Code":"SignatureDoesNotMatch","Message":"{said}"}}"#))
}

/// Who gives credentials: how it does, how it refuses, and what is then logged.
struct Giver {
    gives: Fault,
    refuses: Fault,
    told: &'static str,
}

/// Serves a Service with what AWS gives, then is refused: by who gives credentials, and by who is asked with them.
async fn journey(stage: &mut Stage<'_>, format: &str, gives: Option<Giver>) -> anyhow::Result<()> {
    add(stage);
    stage.config += "DefaultLoadBalancerType = nlb\n";
    stage.nodes(1).await?;
    let refuses = gives.map(|giver| {
        stage.overlay().fail(giver.gives);
        (giver.refuses, giver.told)
    });
    stage.start(&[FLAGS[0], FLAGS[1], format]).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    let said = |words: &'static str, count: usize| {
        let stage = &*stage;
        async move || {
            let seen = stage.log().matches(words).count();
            anyhow::Ok(if seen >= count { Ok(()) } else { Err(format!("{seen} of {count} refusals")) })
        }
    };
    // Whoever is asked with them.
    stage.overlay().fail(always("CreateLoadBalancer", refuse));
    stage.create(&service("more", &[("TCP", 81)], &[])).await?;
    stage.until("refusals are told", said("SignatureDoesNotMatch", 1)).await?;
    let mut events = stage.events("more").await?;
    if let Some((refuse, told)) = refuses {
        let action = refuse.action.clone();
        stage.overlay().heal();
        let before = stage.log().matches(told).count();
        stage.overlay().fail(refuse);
        stage.annotate("web", &[("healthcheck-interval", "20".into())]).await?;
        stage.until("refused credentials are told", said(told, before + 1)).await?;
        events.extend(stage.events("web").await?);
        let asked = stage.take_requests();
        anyhow::ensure!(asked.iter().any(|one| one.action == action), "nobody was asked for credentials");
    }
    stage.overlay().heal();
    let log = stage.log();
    stage.stop().await?;
    stage.secrets.check("an event", &format!("{events:?}"))?;
    anyhow::ensure!(events.iter().any(|(_, text)| text.contains("SignatureDoesNotMatch")), "{events:#?}");
    anyhow::ensure!(log.contains("Canonical String"), "nothing of what AWS repeats is logged");
    // The clients' own words, which come with the verbosity alone.
    anyhow::ensure!(log.contains("idle connection for"), "nothing of what the clients do is logged");
    Ok(())
}

fn sts(stage: &Stage<'_>) -> String {
    format!("AWS_ENDPOINT_URL_STS={}", stage.overlay().url())
}

fn sts_gives(action: &str) -> Giver {
    Giver { gives: always(action, give), refuses: always(action, refuse), told: "SignatureDoesNotMatch" }
}

pub(crate) async fn keys_that_aws_repeats_are_not_shown(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    journey(stage, "--logging-format=text", None).await
}

pub(crate) async fn no_web_identity_and_nothing_it_gives_is_shown(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let file = stage.file("web-identity", WEB_IDENTITY)?;
    stage.environment = vec![format!("AWS_WEB_IDENTITY_TOKEN_FILE={file}"), format!("AWS_ROLE_ARN={ROLE}"), sts(stage)];
    let action = "AssumeRoleWithWebIdentity";
    journey(stage, "--logging-format=json", Some(sts_gives(action))).await
}

pub(crate) async fn no_role_is_shown(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let sts = sts(stage);
    stage.environment.push(sts);
    stage.config = format!("RoleARN = {ROLE}\n");
    journey(stage, "--logging-format=text", Some(sts_gives("AssumeRole"))).await
}

pub(crate) async fn no_token_of_a_pod_identity_is_shown(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let file = stage.file("pod-identity", POD_IDENTITY)?;
    stage.environment = vec![
        format!("AWS_CONTAINER_CREDENTIALS_FULL_URI={}/v1/credentials", stage.overlay().url()),
        format!("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE={file}"),
    ];
    let agent = Giver { gives: always("", give_pod), refuses: always("", refuse_pod), told: "StatusCode(401)" };
    journey(stage, "--logging-format=json", Some(agent)).await
}

/// A line without `=`, which the parser would have to name.
pub(crate) async fn a_file_with_keys_that_cannot_be_read_is_not_shown(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    add(stage);
    let text = format!("[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key {FILE_KEY}\n");
    let file = stage.file("credentials", &text)?;
    let none = stage.file("none", "")?;
    stage.environment = vec![
        format!("AWS_SHARED_CREDENTIALS_FILE={file}"),
        format!("AWS_CONFIG_FILE={none}"),
        "AWS_EC2_METADATA_DISABLED=true".into(),
    ];
    stage.config = "DefaultLoadBalancerType = nlb\n".into();
    stage.nodes(1).await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    let told = async || {
        let log = stage.log();
        let is_told = log.contains("service not synced") && log.contains("credentials");
        Ok(if is_told { Ok(()) } else { Err("it is not told".to_owned()) })
    };
    stage.until("the file is told", told).await?;
    stage.secrets.check("an event", &format!("{:?}", stage.events("web").await?))?;
    stage.kill().await
}
