//! Whose credentials they are, until when they are valid, and which other clusters there are.

use std::time::Duration;

use ccm_core::provider::{Finding, Severity};
use jiff::Timestamp;

use super::{Fixture, OTHER_TAG, problems};
use crate::{
    api::{Action, sts::CredentialsLifetime},
    fake::{CLUSTER, REGION},
};

const WHO: &str = "account 123456789012, as arn:aws:sts::123456789012:assumed-role/ccm/i-0";

fn with_lifetime(lifetime: CredentialsLifetime) -> Fixture {
    let fixture = Fixture::new();
    fixture
        .world
        .aws
        .configure(|options| options.credentials = lifetime);
    fixture
}

fn ends_in(left: Duration) -> CredentialsLifetime {
    CredentialsLifetime::Until(Timestamp::now() + left)
}

fn messages(findings: &[Finding]) -> String {
    let messages = findings.iter().map(|finding| &*finding.message);
    messages.collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn account_and_role_are_shown() {
    let found = Fixture::new().check().await;
    assert!(problems(&found).is_empty(), "{found:#?}");
    assert!(found.iter().any(|finding| finding.message == WHO), "{}", messages(&found));

    let found = with_lifetime(ends_in(Duration::from_hours(1)))
        .check()
        .await;
    assert!(problems(&found).is_empty(), "{found:#?}");
    let until = format!("{WHO}; the credentials are valid until 20");
    assert!(messages(&found).contains(&until), "{}", messages(&found));
}

#[tokio::test(start_paused = true)]
async fn credentials_that_end_are_reported() {
    let rows = [
        (
            ends_in(Duration::from_mins(4)),
            "CredentialsEnd",
            "arn:aws:sts::123456789012:assumed-role/ccm/i-0",
            "see whether their source renews them",
        ),
        (
            CredentialsLifetime::Until(Timestamp::now() - Duration::from_mins(4)),
            "CredentialsEnd",
            "arn:aws:sts::123456789012:assumed-role/ccm/i-0",
            "the clock of the machine",
        ),
        (
            CredentialsLifetime::NotRenewed,
            "CredentialsNotRenewed",
            "AWS_SESSION_TOKEN",
            "in place of AWS_SESSION_TOKEN",
        ),
    ];
    for (lifetime, name, object, advice) in rows {
        let found = with_lifetime(lifetime).check().await;
        let [line] = problems(&found)[..] else {
            panic!("{lifetime:?}: {found:#?}")
        };
        let shown = (line.name, line.severity, &*line.object);
        assert_eq!(shown, (name, Severity::Warning, object));
        assert!(line.advice.contains(advice) && !line.consequence.is_empty(), "{line:#?}");
        assert!(messages(&found).contains(WHO), "{found:#?}");
    }
}

/// Many private networks have no way to STS, and the manager does not need it.
#[tokio::test(start_paused = true)]
async fn an_sts_that_does_not_say_it_is_no_problem() {
    for code in ["AccessDenied", "InvalidClientTokenId", "RegionDisabledException"] {
        let fixture = Fixture::new();
        fixture
            .world
            .aws
            .fail_always(Action::GetCallerIdentity, code);
        let found = fixture.check().await;
        assert!(problems(&found).is_empty(), "{code}: {found:#?}");
        let unknown = "account and role are not known: sts:GetCallerIdentity: ";
        let mut told = found.iter().map(|finding| &finding.message);
        assert!(told.any(|text| text.starts_with(unknown) && text.contains(code)), "{found:#?}");
    }
}

/// The credentials of another cloud are not sent to AWS.
#[tokio::test(start_paused = true)]
async fn sts_is_not_asked_if_ec2_is_elsewhere() {
    let section = |service: &str| {
        format!(
            "\n[ServiceOverride \"{service}\"]\nService = {service}\nRegion = {REGION}\n\
             URL = https://cloud.example.org\nSigningRegion = {REGION}\n"
        )
    };
    for (services, asked) in [(&["EC2"][..], 0), (&["EC2", "STS"][..], 1), (&["STS"][..], 1)] {
        let mut fixture = Fixture::new();
        for service in services {
            fixture.config += &section(service);
        }
        let found = fixture.check().await;
        assert!(problems(&found).is_empty(), "{services:?}: {found:#?}");
        let calls = fixture.world.aws.calls(Action::GetCallerIdentity);
        assert_eq!(calls, asked, "{services:?}");
        assert_eq!(messages(&found).contains(WHO), asked == 1, "{services:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_clusters_of_the_vpc_are_listed() {
    let fixture = Fixture::new();
    let found = fixture.check().await;
    assert!(!messages(&found).contains("other clusters"), "{found:#?}");

    let (aws, vpc) = (&fixture.world.aws, &fixture.world.vpc);
    aws.tag(&fixture.world.public[0], OTHER_TAG, "shared");
    let third = "kubernetes.io/cluster/third";
    aws.security_group(vpc, "of-third", &[(third, "owned")]);
    let found = fixture.check().await;
    assert!(problems(&found).is_empty(), "{found:#?}");
    let line = "other clusters in this VPC: other, third";
    assert!(found.iter().any(|finding| finding.message == line), "{}", messages(&found));
    assert!(!line.contains(CLUSTER));
}
