//! Whose requests they are. What the environment decides is tried in a child process with an
//! environment of its own.

use std::{fs, path::Path, process::Output};

use jiff::SignedDuration;

use super::{
    super::connect, REGION, ask, connection, nothing, section, send, server::Server, session,
    settings,
};
use crate::{
    api::sts::{CredentialsLifetime, GetCallerIdentity},
    config::{OverriddenService, Role, Settings},
};

pub(super) const ROLE: &str = "arn:aws:iam::123456789876:role/test-cluster";

fn with_role(sts: &str, ec2: &str, source: Option<&str>) -> Settings {
    let role = Role {
        arn: ROLE.into(),
        account: "123456789876".into(),
        source: source.map(Into::into),
    };
    let overrides =
        vec![section(OverriddenService::Sts, sts), section(OverriddenService::Ec2, ec2)];
    Settings { role: Some(role), ..settings(overrides) }
}

#[tokio::test]
async fn a_role_is_assumed_with_its_source_and_renewed_before_it_ends() {
    let soon = SignedDuration::from_secs(20);
    let sts = Server::start(move |_| session("AssumeRole", "ASIAROLE", soon)).await;
    let ec2 = Server::start(|_| nothing()).await;
    let source = "arn:aws:eks:eu-central-1:123456789876:cluster/c";
    let connection = connection(&with_role(&sts.url(), &ec2.url(), Some(source))).await;
    for _ in 0..2 {
        ask(&connection.transport, &OverriddenService::Ec2)
            .await
            .unwrap();
        let asked = sts.take();
        let [asked] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert_eq!(asked.scope().0, "AKIDGIVEN");
        assert_eq!(asked.headers["x-amz-source-arn"], source);
        assert_eq!(asked.headers["x-amz-source-account"], "123456789876");
        let signed = &asked.headers["authorization"];
        assert!(signed.contains("x-amz-source-account;x-amz-source-arn"), "{signed}");
        assert!(
            asked.body.contains("Action=AssumeRole&") && asked.body.contains("test-cluster"),
            "{}",
            asked.body
        );
        let seen = ec2.take().remove(0);
        assert_eq!((&*seen.scope().0, &*seen.headers["x-amz-security-token"]), ("ASIAROLE", "t"));
    }
}

#[tokio::test]
async fn a_role_is_kept_while_it_lasts_and_has_no_source_unless_given() {
    let hour = SignedDuration::from_hours(1);
    let sts = Server::start(move |_| session("AssumeRole", "ASIAROLE", hour)).await;
    let ec2 = Server::start(|_| nothing()).await;
    let connection = connection(&with_role(&sts.url(), &ec2.url(), None)).await;
    for _ in 0..3 {
        ask(&connection.transport, &OverriddenService::Ec2)
            .await
            .unwrap();
    }
    let asked = sts.take();
    assert_eq!((asked.len(), ec2.take().len()), (1, 3));
    assert!(!asked[0].headers.contains_key("x-amz-source-arn"), "{asked:?}");
}

/// The answer to GetCallerIdentity.
fn caller() -> (u16, String) {
    let xmlns = "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"";
    let result = "<GetCallerIdentityResult><Arn>arn:aws:sts::123456789876:assumed-role/test/s</Arn>\
                  <UserId>AROA:s</UserId><Account>123456789876</Account></GetCallerIdentityResult>";
    (200, format!("<GetCallerIdentityResponse {xmlns}>{result}</GetCallerIdentityResponse>"))
}

#[tokio::test]
async fn whose_credentials_they_are_is_asked_with_those_of_the_role() {
    let hour = SignedDuration::from_hours(1);
    let sts = Server::start(move |seen| {
        if seen.body.contains("Action=AssumeRole&") {
            session("AssumeRole", "ASIAROLE", hour)
        } else {
            caller()
        }
    })
    .await;
    let ec2 = Server::start(|_| nothing()).await;
    let connection = connection(&with_role(&sts.url(), &ec2.url(), None)).await;
    let found = send(&connection.transport, GetCallerIdentity)
        .await
        .unwrap();
    assert_eq!(
        (&*found.account, &*found.arn),
        ("123456789876", "arn:aws:sts::123456789876:assumed-role/test/s")
    );
    let CredentialsLifetime::Until(end) = found.lifetime else {
        panic!("{found:?}")
    };
    let left = end.duration_since(jiff::Timestamp::now());
    assert!(left > SignedDuration::from_mins(59) && left <= hour, "{left:?}");
    let asked = sts.take();
    assert_eq!(asked.last().unwrap().scope().0, "ASIAROLE");
}

#[tokio::test]
async fn a_session_token_of_the_environment_is_not_renewed() {
    let sts = Server::start(|_| caller()).await;
    let none = tempfile::tempdir().unwrap();
    let none = none.path().join("none");
    let keys = [
        ("AWS_ACCESS_KEY_ID", "ASIAENV"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_SHARED_CREDENTIALS_FILE", none.to_str().unwrap()),
        ("AWS_CONFIG_FILE", none.to_str().unwrap()),
        ("AWS_ENDPOINT_URL_STS", &sts.url()),
    ];
    child("credentials::child_has_no_end", &keys).await;
    let token = [("AWS_SESSION_TOKEN", "t"), ("TEST_NOT_RENEWED", "true")];
    child("credentials::child_has_no_end", &[&keys[..], &token].concat()).await;
}

#[tokio::test]
#[ignore = "runs in a child process"]
async fn child_has_no_end() {
    let connection = connect(&settings(Vec::new())).await.unwrap();
    let found = send(&connection.transport, GetCallerIdentity)
        .await
        .unwrap();
    let expected = match std::env::var("TEST_NOT_RENEWED") {
        Ok(_) => CredentialsLifetime::NotRenewed,
        Err(_) => CredentialsLifetime::Unknown,
    };
    assert_eq!(found.lifetime, expected);
}

/// Runs an ignored test, `module::name`, in a process with only this environment.
pub(super) async fn child(test: &str, environment: &[(&str, &str)]) {
    let program = std::env::current_exe().unwrap();
    let name = format!("sdk::tests::{test}");
    let mut command = tokio::process::Command::new(program);
    command
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env_clear()
        .envs(environment.iter().copied());
    let Output { status, stdout, stderr } = command.kill_on_drop(true).output().await.unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
}

pub(super) fn environment(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn write_profile(path: &Path, key: &str) {
    fs::write(path, format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n"))
        .unwrap();
}

#[tokio::test]
async fn a_rotated_credentials_file_takes_effect() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials");
    write_profile(&file, "AKIDONE");
    let none = directory.path().join("config");
    let paths = [("AWS_SHARED_CREDENTIALS_FILE", &file), ("AWS_CONFIG_FILE", &none)];
    child(
        "credentials::child_rotates_a_file",
        &paths.map(|(name, path)| (name, path.to_str().unwrap())),
    )
    .await;
}

#[tokio::test]
#[ignore = "runs in a child process"]
async fn child_rotates_a_file() {
    use aws_credential_types::provider::ProvideCredentials as _;

    let imds =
        super::super::metadata::SdkMetadata::new(super::super::ca_bundle::plain(), None).unwrap();
    let base = aws_config::SdkConfig::builder()
        .http_client(super::super::ca_bundle::plain())
        .region(aws_types::region::Region::from_static(REGION))
        .build();
    let lifetime = super::super::credentials::LoadedLifetime::default();
    let chain = super::super::credentials::ReloadingCredentialsChain::new(
        base,
        imds.client(),
        None,
        lifetime.clone(),
    );
    let first = chain.provide_credentials().await.unwrap();
    assert_eq!(first.access_key_id(), "AKIDONE");
    let lasts = first
        .expiry()
        .unwrap()
        .duration_since(std::time::SystemTime::now())
        .unwrap();
    assert!(lasts.as_secs() < 120, "they are asked for again soon");
    assert_eq!(lifetime.get(), CredentialsLifetime::Unknown, "that is our end, not theirs");
    write_profile(Path::new(&environment("AWS_SHARED_CREDENTIALS_FILE")), "AKIDTWO");
    assert_eq!(chain.provide_credentials().await.unwrap().access_key_id(), "AKIDTWO");
}

#[tokio::test]
async fn a_rotated_web_identity_token_takes_effect() {
    // Credentials that end soon are renewed for each request.
    let soon = SignedDuration::from_secs(20);
    let sts = Server::start(move |_| session("AssumeRoleWithWebIdentity", "ASIAWEB", soon)).await;
    let ec2 = Server::start(|_| nothing()).await;
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "token-one").unwrap();
    let none = directory.path().join("none");
    child(
        "credentials::child_rotates_a_token",
        &[
            ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
            ("AWS_ROLE_ARN", ROLE),
            ("AWS_ENDPOINT_URL_STS", &sts.url()),
            ("AWS_SHARED_CREDENTIALS_FILE", none.to_str().unwrap()),
            ("AWS_CONFIG_FILE", none.to_str().unwrap()),
            ("TEST_EC2", &ec2.url()),
        ],
    )
    .await;
    let asked = sts.take();
    let has = |at: usize, token: &str| {
        asked[at]
            .body
            .contains(&format!("WebIdentityToken={token}"))
    };
    assert!(asked.len() == 2 && has(0, "token-one") && has(1, "token-two"), "{asked:?}");
    assert_eq!(ec2.take()[1].scope().0, "ASIAWEB");
}

#[tokio::test]
#[ignore = "runs in a child process"]
async fn child_rotates_a_token() {
    let section = section(OverriddenService::Ec2, &environment("TEST_EC2"));
    let connection = connect(&settings(vec![section])).await.unwrap();
    ask(&connection.transport, &OverriddenService::Ec2)
        .await
        .unwrap();
    fs::write(environment("AWS_WEB_IDENTITY_TOKEN_FILE"), "token-two").unwrap();
    ask(&connection.transport, &OverriddenService::Ec2)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_configuration_wins_over_the_environment_and_a_service_over_all() {
    let servers = [
        Server::start(|_| nothing()).await,
        Server::start(|_| nothing()).await,
        Server::start(|_| nothing()).await,
    ];
    let [of_service, of_all, of_file] = &servers;
    child(
        "credentials::child_asks_everybody",
        &[
            ("AWS_ACCESS_KEY_ID", "AKIDENV"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_ENDPOINT_URL_EC2", &of_service.url()),
            ("AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2", &of_service.url()),
            ("AWS_ENDPOINT_URL", &of_all.url()),
            ("TEST_ELB", &of_file.url()),
        ],
    )
    .await;
    for (server, action) in [
        (of_service, "Action=DescribeVpcs&"),
        (of_all, "Version=2012-06-01"),
        (of_file, "Version=2015-12-01"),
    ] {
        let seen = server.take();
        assert!(seen.len() == 1 && seen[0].body.contains(action), "{action}: {seen:?}");
        assert_eq!(seen[0].scope().0, "AKIDENV");
        assert_eq!(seen[0].scope().1, REGION);
    }
}

#[tokio::test]
#[ignore = "runs in a child process"]
async fn child_asks_everybody() {
    let section = section(OverriddenService::Elb, &environment("TEST_ELB"));
    let connection = connect(&settings(vec![section])).await.unwrap();
    for service in [OverriddenService::Ec2, OverriddenService::Elb, OverriddenService::Classic] {
        ask(&connection.transport, &service).await.unwrap();
    }
}

#[tokio::test]
async fn nobody_asks_a_metadata_service_that_is_switched_off() {
    child("credentials::child_has_no_metadata", &[("AWS_EC2_METADATA_DISABLED", "true")]).await;
}

#[tokio::test]
#[ignore = "runs in a child process"]
async fn child_has_no_metadata() {
    let server = Server::start(|_| (200, "eu-central-1".to_owned())).await;
    let overrides = vec![section(OverriddenService::Imds, &server.url())];
    let error = connect(&Settings { region: None, overrides, ..Settings::default() })
        .await
        .err()
        .unwrap();
    assert!(matches!(error, super::super::ConnectError::Region(_)), "{error}");
    assert!(server.take().is_empty());
}
