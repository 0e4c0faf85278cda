//! Which endpoint web identity asks for credentials. Endpoints of AWS are seen by a proxy, which
//! connects to nothing. Each case runs in a child process with an environment of its own.

use std::fs;

use futures::future::join_all;
use jiff::SignedDuration;

use super::{
    super::connect,
    ask,
    credentials::{ROLE, child, environment},
    nothing, section,
    server::Server,
    session, settings,
};
use crate::config::OverriddenService;

const FIPS: (&str, &str) = ("AWS_USE_FIPS_ENDPOINT", "true");
const DUAL_STACK: (&str, &str) = ("AWS_USE_DUALSTACK_ENDPOINT", "true");

/// Sends a request to EC2 with credentials of web identity, and with these variables. The profile
/// of the configuration file has these lines.
async fn ask_ec2(variables: &[(&str, &str)], profile: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("token"), "token-one").unwrap();
    fs::write(path("config"), format!("[default]\n{profile}\n")).unwrap();
    let (token, config, none) = (path("token"), path("config"), path("none"));
    let common = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", &*token),
        ("AWS_ROLE_ARN", ROLE),
        ("AWS_SHARED_CREDENTIALS_FILE", &*none),
        ("AWS_CONFIG_FILE", &*config),
    ];
    child("web_identity::child_asks_ec2", &[&common[..], variables].concat()).await;
}

#[tokio::test]
#[ignore = "runs in a child process"]
async fn child_asks_ec2() {
    let mut sections = vec![section(OverriddenService::Ec2, &environment("TEST_EC2"))];
    if let Ok(sts) = std::env::var("TEST_STS") {
        sections.push(section(OverriddenService::Sts, &sts));
    }
    let connection = connect(&settings(sections)).await.unwrap();
    let answer = ask(&connection.transport, &OverriddenService::Ec2).await;
    let expect_answer = std::env::var("HTTPS_PROXY").is_err();
    assert_eq!(answer.is_ok(), expect_answer, "{answer:?}");
}

#[tokio::test]
async fn web_identity_asks_the_endpoint_of_aws_that_fits_fips_and_dual_stack() {
    let of_profile = "use_fips_endpoint = true\nuse_dualstack_endpoint = true";
    let cases = [
        (&[][..], "", "sts.eu-central-1.amazonaws.com"),
        (&[FIPS][..], "", "sts-fips.eu-central-1.amazonaws.com"),
        (&[DUAL_STACK][..], "", "sts.eu-central-1.api.aws"),
        (&[FIPS, DUAL_STACK][..], "", "sts-fips.eu-central-1.api.aws"),
        (&[][..], of_profile, "sts-fips.eu-central-1.api.aws"),
    ];
    let runs = cases.map(|(variables, profile, host)| async move {
        let proxy = Server::start(|_| (403, String::new())).await;
        let ec2 = Server::start(|_| nothing()).await;
        let (proxy_url, ec2_url) = (proxy.url(), ec2.url());
        let servers = [("HTTPS_PROXY", &*proxy_url), ("TEST_EC2", &*ec2_url)];
        ask_ec2(&[variables, &servers].concat(), profile).await;
        let seen = proxy.take();
        let expected = format!("CONNECT {host}:443");
        assert!(
            !seen.is_empty() && seen.iter().all(|one| one.line == expected),
            "{host}: {seen:?}"
        );
        assert!(ec2.take().is_empty(), "{host}");
    });
    join_all(runs).await;
}

#[tokio::test]
async fn an_endpoint_of_the_environment_does_not_go_with_fips() {
    let proxy = Server::start(|_| (403, String::new())).await;
    let sts = Server::start(|_| nothing()).await;
    let ec2 = Server::start(|_| nothing()).await;
    let (proxy_url, sts_url, ec2_url) = (proxy.url(), sts.url(), ec2.url());
    let servers = [
        ("HTTPS_PROXY", &*proxy_url),
        ("AWS_ENDPOINT_URL_STS", &*sts_url),
        ("TEST_EC2", &*ec2_url),
    ];
    ask_ec2(&[&[FIPS][..], &servers].concat(), "").await;
    for server in [proxy, sts, ec2] {
        assert_eq!(server.take().len(), 0);
    }
}

/// Who is asked for credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Section,
    Variable,
    Nobody,
}

#[tokio::test]
async fn web_identity_asks_the_endpoint_of_a_section_before_that_of_the_environment() {
    let keys = [("AWS_ACCESS_KEY_ID", "AKIDENV"), ("AWS_SECRET_ACCESS_KEY", "s")];
    let profile = "aws_access_key_id = AKIDPROFILE\naws_secret_access_key = s";
    let cases = [
        (true, false, &[][..], "", Asked::Section, "ASIAWEB"),
        (true, true, &[][..], "", Asked::Section, "ASIAWEB"),
        (false, true, &[][..], "", Asked::Variable, "ASIAWEB"),
        // AWS has no FIPS endpoint there; the section counts.
        (true, false, &[FIPS, DUAL_STACK][..], "", Asked::Section, "ASIAWEB"),
        // A section leaves the order of the SDK's chain as it is.
        (true, false, &keys[..], "", Asked::Nobody, "AKIDENV"),
        (true, false, &[][..], profile, Asked::Nobody, "AKIDPROFILE"),
    ];
    let runs =
        cases.map(|(of_file, of_environment, variables, profile, expected, key)| async move {
            let hour = SignedDuration::from_hours(1);
            let answer = move |_: &_| session("AssumeRoleWithWebIdentity", "ASIAWEB", hour);
            let (section, variable) = (Server::start(answer).await, Server::start(answer).await);
            let ec2 = Server::start(|_| nothing()).await;
            let urls = [ec2.url(), section.url(), variable.url()];
            let mut servers = vec![("TEST_EC2", &*urls[0])];
            if of_file {
                servers.push(("TEST_STS", &*urls[1]));
            }
            if of_environment {
                servers.push(("AWS_ENDPOINT_URL_STS", &*urls[2]));
            }
            ask_ec2(&[variables, &servers].concat(), profile).await;
            let case = format!("{of_file} {of_environment} {variables:?} {profile:?}");
            let (by_section, by_variable) = (section.take(), variable.take());
            let count = |who| usize::from(who == expected);
            let counts = (by_section.len(), by_variable.len());
            assert_eq!(counts, (count(Asked::Section), count(Asked::Variable)), "{case}");
            for request in by_section.iter().chain(&by_variable) {
                let body = &request.body;
                assert!(body.contains("Action=AssumeRoleWithWebIdentity&"), "{case}: {body}");
                assert!(body.contains("WebIdentityToken=token-one"), "{case}: {body}");
                assert!(!request.headers.contains_key("authorization"), "{case}");
            }
            let seen = ec2.take();
            assert_eq!(seen.len(), 1, "{case}");
            assert_eq!(seen[0].scope().0, key, "{case}");
        });
    join_all(runs).await;
}
