use std::{
    collections::BTreeMap,
    error::Error as _,
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use ccm_core::write_gate::WriteGate;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::{Action, Call, Page, Reply, Transport, ec2::InstanceState};

/// A metadata service that is a table of paths; silent outside EC2.
#[derive(Default)]
struct Imds {
    paths: BTreeMap<&'static str, &'static str>,
    silent: bool,
    asked: AtomicUsize,
}

impl Imds {
    fn with(paths: &[(&'static str, &'static str)]) -> Self {
        Self { paths: paths.iter().copied().collect(), ..Self::default() }
    }

    fn silent() -> Self {
        Self { silent: true, ..Self::default() }
    }
}

#[async_trait]
impl Metadata for Imds {
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.silent {
            true => Err(AwsError {
                action: None,
                cause: AwsErrorCause::NoResponse(Arc::from(Box::from("no route"))),
            }),
            false => Ok(self.paths.get(path).map(|&text| text.to_owned())),
        }
    }
}

/// An account with at most one instance.
#[derive(Default)]
struct Account {
    instance: Option<Instance>,
    refusal: Option<(u16, &'static str)>,
    asked: AtomicUsize,
}

impl Account {
    fn with(tags: &[(&str, &str)]) -> Self {
        let tags = tags
            .iter()
            .map(|&(key, value)| (key.into(), value.into()))
            .collect();
        Self { instance: Some(instance(tags)), ..Self::default() }
    }
}

#[async_trait]
impl Transport for Account {
    async fn send(&self, call: Call) -> Result<Reply, AwsError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let Call::DescribeInstances(request) = call else {
            panic!("{call:?}")
        };
        if let Some((status, code)) = self.refusal {
            return Err(AwsError::response(Action::DescribeInstances, status, code, "no"));
        }
        let found: Vec<_> = self
            .instance
            .iter()
            .filter(|there| request.ids.contains(&there.id))
            .cloned()
            .collect();
        match found.is_empty() {
            true => Err(AwsError::response(
                Action::DescribeInstances,
                400,
                "InvalidInstanceID.NotFound",
                "no",
            )),
            false => Ok(Reply::DescribeInstances(Page::only(found))),
        }
    }
}

fn instance(tags: Tags) -> Instance {
    Instance {
        id: "i-1".into(),
        state: Some(InstanceState::Running),
        instance_type: "".into(),
        zone: "us-west-2a".into(),
        vpc: Some("vpc-own".into()),
        subnet: Some("subnet-own".into()),
        private_dns_name: "".into(),
        public_dns_name: "".into(),
        private_ip: "".into(),
        public_ip: "".into(),
        interfaces: Vec::new(),
        security_groups: Vec::new(),
        source_dest_check: None,
        tags,
    }
}

const EC2: [(&str, &str); 2] = [(REGION_PATH, "us-west-2"), (INSTANCE_ID_PATH, "i-1\n")];

fn settings(lines: &str) -> Settings {
    crate::config::parse(&format!("[Global]\n{lines}")).unwrap()
}

async fn found(
    lines: &str,
    account: Account,
    imds: &Imds,
) -> Result<AwsEnvironment, EnvironmentError> {
    let op = Op::new("", CancellationToken::new(), WriteGate::always_closed());
    discover(&settings(lines), &Client::new(Arc::new(account)), imds, &op).await
}

/// The error with its cause.
async fn failed(lines: &str, account: Account, imds: &Imds) -> String {
    let error = found(lines, account, imds).await.unwrap_err();
    let source = error
        .source()
        .map(|source| format!(": {source}"))
        .unwrap_or_default();
    format!("{error}{source}")
}

// CF16
#[test]
fn region_of_a_zone() {
    let cases = [
        ("us-west-2a", "us-west-2"),
        ("us-west-2-lax-1a", "us-west-2"),
        ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
        ("ap-northeast-2a", "ap-northeast-2"),
        ("us-gov-east-1a", "us-gov-east-1"),
        ("us-iso-east-1a", "us-iso-east-1"),
        ("us-isob-east-1a", "us-isob-east-1"),
    ];
    for (zone, region) in cases {
        assert_eq!(region_of_zone(zone).as_deref(), Ok(region));
    }
    assert_eq!(region_of_zone("some-fake-zone"), Err("invalid AZ: some-fake-zone".to_owned()));
}

// CF15
#[tokio::test]
async fn region_is_asked_for_when_nothing_says_it() {
    let cases = [
        ("", vec![(REGION_PATH, "us-west-2")], "us-west-2"),
        ("", vec![(ZONE_PATH, "eu-west-1b")], "eu-west-1"),
        ("", vec![(REGION_PATH, ""), (ZONE_PATH, "eu-west-1b\n")], "eu-west-1"),
        ("Region = a-1", vec![(REGION_PATH, "us-west-2")], "a-1"),
        ("Zone = b-1a\nRegion = a-1", vec![(REGION_PATH, "us-west-2")], "b-1"),
    ];
    for (lines, paths, expected) in cases {
        assert_eq!(
            &*discover_region(&settings(lines), &Imds::with(&paths))
                .await
                .unwrap(),
            expected,
            "{lines} {paths:?}"
        );
    }
    let none = discover_region(&Settings::default(), &Imds::default())
        .await
        .unwrap_err();
    assert_eq!(
        none.to_string(),
        "the instance metadata service returned no region; set Region in the cloud config"
    );
    let odd = discover_region(&Settings::default(), &Imds::with(&[(ZONE_PATH, "x")]))
        .await
        .unwrap_err();
    assert_eq!(odd.to_string(), "invalid AZ: x");
}

#[tokio::test]
async fn nothing_is_asked_when_all_is_configured() {
    let imds = Imds::silent();
    let account = Arc::new(Account::default());
    let lines = "Region = us-west-2\nVPC = vpc-1\nKubernetesClusterID = c";
    let op = Op::new("", CancellationToken::new(), WriteGate::always_closed());
    let client = Client::new(account.clone());
    let found = discover(&settings(lines), &client, &imds, &op)
        .await
        .unwrap();
    let expected = AwsEnvironment {
        region: "us-west-2".into(),
        vpc: "vpc-1".into(),
        subnet: None,
        cluster: Cluster::new("c", false),
    };
    assert_eq!(found, expected);
    assert_eq!((imds.asked.load(Ordering::Relaxed), account.asked.load(Ordering::Relaxed)), (0, 0));
}

#[tokio::test]
async fn outside_ec2_the_error_says_what_to_configure() {
    let all = ["Region = us-west-2", "VPC = vpc-1", "KubernetesClusterID = c"];
    let cases = [("region", "Region"), ("VPC", "VPC"), ("instance ID", "KubernetesClusterID")];
    for (what, key) in cases {
        let lines: Vec<_> = all
            .into_iter()
            .filter(|line| !line.starts_with(key))
            .collect();
        let expected = format!(
            "cannot read the {what} from the instance metadata service; outside EC2, set {key} in the cloud config: \
             instance metadata: no answer"
        );
        assert_eq!(failed(&lines.join("\n"), Account::default(), &Imds::silent()).await, expected);
    }
}

// CF18
#[tokio::test]
async fn vpc_is_that_of_the_first_interface_that_has_one() {
    let lines = "Region = r-1\nKubernetesClusterID = c";
    let (first, second) =
        ("network/interfaces/macs/0a:1/vpc-id", "network/interfaces/macs/0b:2/vpc-id");
    let macs = (MACS_PATH, "0a:1/\n0b:2/\n");
    let cases = [vec![macs, (first, "vpc-1"), (second, "vpc-2")], vec![macs, (second, "vpc-1")]];
    for paths in cases {
        let found = found(lines, Account::default(), &Imds::with(&paths))
            .await
            .unwrap();
        assert_eq!(&*found.vpc, "vpc-1", "{paths:?}");
    }
    for paths in [vec![macs], vec![]] {
        let expected = "the instance metadata service returned no VPC; set VPC in the cloud config";
        assert_eq!(failed(lines, Account::default(), &Imds::with(&paths)).await, expected);
    }
}

#[tokio::test]
async fn cluster_comes_from_the_tags_of_the_own_instance() {
    let id = "kubernetes.io/cluster/c";
    let cases = [
        (vec![(id, "owned")], Cluster::new("c", false)),
        (vec![(id, "shared"), ("Name", "x")], Cluster::new("c", false)),
        (vec![(id, "")], Cluster::new("c", false)),
        (vec![("KubernetesCluster", "c")], Cluster::new("c", true)),
        (vec![("KubernetesCluster", "c"), (id, "owned")], Cluster::new("c", true)),
        (vec![("kubernetes.io/cluster/", ""), (id, "owned")], Cluster::new("c", false)),
        (
            vec![("Name", "x"), ("KubernetesCluster", ""), ("kubernetes.io/cluster/", "owned")],
            Cluster::new("", false),
        ),
    ];
    for (tags, cluster) in cases {
        let found = found("", Account::with(&tags), &Imds::with(&EC2))
            .await
            .unwrap();
        let expected = AwsEnvironment {
            region: "us-west-2".into(),
            vpc: "vpc-own".into(),
            subnet: Some("subnet-own".into()),
            cluster,
        };
        assert_eq!(found, expected, "{tags:?}");
    }
    let configured = "VPC = vpc-1\nSubnetID = subnet-1";
    let found = found(configured, Account::with(&[(id, "")]), &Imds::with(&EC2))
        .await
        .unwrap();
    assert_eq!(
        (&*found.vpc, found.subnet.as_deref()),
        ("vpc-1", Some("subnet-1")),
        "what is configured wins"
    );
}

#[tokio::test]
async fn configured_cluster_wins_over_tags() {
    for (lines, legacy) in [("KubernetesClusterID = x", false), ("KubernetesClusterTag = x", true)]
    {
        let lines = format!("{lines}\nVPC = vpc-1");
        let account = Account::with(&[("kubernetes.io/cluster/c", "")]);
        let found = found(&lines, account, &Imds::with(&EC2)).await.unwrap();
        assert_eq!(found.cluster, Cluster::new("x", legacy));
    }
}

#[tokio::test]
async fn contradicting_tags_are_refused_in_upstreams_words() {
    let (a, b) = ("kubernetes.io/cluster/a", "kubernetes.io/cluster/b");
    let cases = [
        (
            vec![(a, "x"), (b, "y")],
            r#"Found multiple cluster tags with prefix kubernetes.io/cluster/ ("a" and "b")"#,
        ),
        (
            vec![(a, "x"), ("KubernetesCluster", "b")],
            r#"clusterID tags did not match: "a" vs "b""#,
        ),
    ];
    for (tags, words) in cases {
        let expected = format!("tags of instance i-1: {words}");
        assert_eq!(failed("", Account::with(&tags), &Imds::with(&EC2)).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_may_pass_is_worth_waiting_for() {
    let cases = [
        ((503, "RequestLimitExceeded"), true),
        ((500, "InternalError"), true),
        ((403, "UnauthorizedOperation"), false),
        ((400, "InvalidInstanceID.NotFound"), false),
        ((401, "AuthFailure"), false),
    ];
    for (refusal, may_pass) in cases {
        let account = Account { refusal: Some(refusal), ..Account::default() };
        let error = found("", account, &Imds::with(&EC2)).await.unwrap_err();
        assert_eq!(error.is_transient(), may_pass, "{refusal:?}");
        let expected = "error finding instance i-1, whose tags name the cluster; with KubernetesClusterID in the cloud \
                        config they are not needed";
        assert_eq!(error.to_string(), expected);
    }
    assert!(
        !found("", Account::default(), &Imds::silent())
            .await
            .unwrap_err()
            .is_transient()
    );
}
