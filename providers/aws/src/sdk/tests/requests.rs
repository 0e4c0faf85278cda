//! Where requests go, what they carry, and what their answers become.

use std::time::Duration;

use tokio::{net::TcpListener, time::Instant};

use super::{REGION, ask, connection, nothing, section, send, server::Server, settings};
use crate::{
    api::{
        AwsErrorCause,
        ec2::{DescribeInstances, DescribeSubnets, DescribeVpcs, InstanceState},
        elb::{
            CreateLoadBalancer, DescribeCapacityReservation, DescribeListeners,
            DescribeLoadBalancers, DescribeTargetGroups, IpAddressType, ModifyCapacityReservation,
            Scheme, SetSubnets, SourceNatPrefix, SubnetMapping,
        },
    },
    config::{OverriddenService, ServiceOverride},
};

const SERVICES: [(OverriddenService, &str); 3] = [
    (OverriddenService::Ec2, "ec2"),
    (OverriddenService::Elb, "elasticloadbalancing"),
    (OverriddenService::Classic, "elasticloadbalancing"),
];

// CF20
#[tokio::test]
async fn a_section_decides_where_requests_go_and_what_they_are_signed_for() {
    let server = Server::start(|_| nothing()).await;
    for (service, own_name) in SERVICES {
        for (region, name, expected) in [
            ("signing-region", Some("signing-name"), ("signing-region", "signing-name")),
            ("signing-region", None, ("signing-region", own_name)),
            ("", Some("signing-name"), (REGION, "signing-name")),
            ("", None, (REGION, own_name)),
        ] {
            let section = ServiceOverride {
                signing_region: region.into(),
                signing_name: name.map(Into::into),
                ..section(service.clone(), &server.url())
            };
            let connection = connection(&settings(vec![section])).await;
            ask(&connection.transport, &service).await.unwrap();
            let [seen] = &server.take()[..] else {
                panic!("{service:?}: not one request")
            };
            let (key, region, name) = seen.scope();
            assert_eq!(
                (&*key, &*region, &*name),
                ("AKIDGIVEN", expected.0, expected.1),
                "{service:?}"
            );
            assert_eq!(seen.line, "POST /");
            assert_eq!(seen.headers["host"], format!("127.0.0.1:{}", server.port));
        }
    }
}

// CF20
#[tokio::test]
async fn the_section_of_the_metadata_service_counts_in_every_region() {
    let server = Server::start(|seen| match &*seen.line {
        "PUT /latest/api/token" => (200, "token".to_owned()),
        "GET /latest/meta-data/instance-id" => (200, "i-1".to_owned()),
        "GET /latest/meta-data/placement/region" => (200, "ap-south-1".to_owned()),
        _ => (404, String::new()),
    })
    .await;
    let section = ServiceOverride {
        region: "elsewhere".into(),
        ..section(OverriddenService::Imds, &server.url())
    };
    let known = settings(vec![section]);
    let metadata = connection(&known).await.metadata;
    assert!(server.take().is_empty(), "nobody is asked for what is known");
    assert_eq!(metadata.get("instance-id").await.unwrap().as_deref(), Some("i-1"));
    assert_eq!(metadata.get("network/interfaces/macs/").await.unwrap(), None);
    let seen = server.take();
    assert!(
        seen[1..]
            .iter()
            .all(|seen| seen.headers["x-aws-ec2-metadata-token"] == "token"),
        "{seen:?}"
    );

    // CF15
    let unknown = crate::config::Settings { region: None, ..known };
    assert_eq!(&*connection(&unknown).await.region, "ap-south-1");
}

#[tokio::test]
async fn the_user_agent_names_kubernetes() {
    let server = Server::start(|_| nothing()).await;
    for (service, _) in SERVICES {
        let connection = connection(&settings(vec![section(service.clone(), &server.url())])).await;
        ask(&connection.transport, &service).await.unwrap();
        let agent = server
            .take()
            .remove(0)
            .headers
            .remove("user-agent")
            .unwrap();
        assert!(agent.starts_with("aws-sdk-rust/"), "{agent}");
        assert!(agent.ends_with(concat!(" kubernetes/v", env!("CARGO_PKG_VERSION"))), "{agent}");
    }
}

// CF21
#[tokio::test(start_paused = true)]
async fn every_client_gives_up_after_half_a_minute() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for (service, _) in SERVICES {
        let connection = connection(&settings(vec![section(service.clone(), &url)])).await;
        let started = Instant::now();
        let error = ask(&connection.transport, &service).await.unwrap_err();
        assert!(matches!(error.cause, AwsErrorCause::NoResponse(_)), "{error:?}");
        let took = started.elapsed();
        assert!(took <= Duration::from_millis(30_100), "{service:?} took {took:?}");
    }
}

#[tokio::test]
async fn errors_keep_what_aws_says() {
    let ec2 = "<Response><Errors><Error><Code>InvalidVpcID.NotFound</Code><Message>m</Message></Error></Errors>\
               <RequestID>r</RequestID></Response>";
    let elb = "<ErrorResponse><Error><Type>Sender</Type><Code>LoadBalancerNotFound</Code><Message>m</Message></Error>\
               <RequestId>r</RequestId></ErrorResponse>";
    let other = elb.replace("LoadBalancerNotFound", "Throttling");
    for (service, status, body, code, message) in [
        (OverriddenService::Ec2, 400, ec2, "InvalidVpcID.NotFound", "m"),
        (OverriddenService::Elb, 400, elb, "LoadBalancerNotFound", "m"),
        (OverriddenService::Elb, 400, &*other, "Throttling", "m"),
        (OverriddenService::Classic, 400, elb, "LoadBalancerNotFound", "m"),
        (
            OverriddenService::Ec2,
            500,
            "<!doctype html><title>500</title>",
            "",
            "HTTP status 500 without an error code",
        ),
        (OverriddenService::Elb, 502, "", "", "HTTP status 502 without an error code"),
        (
            OverriddenService::Classic,
            503,
            "Service Unavailable",
            "",
            "HTTP status 503 without an error code",
        ),
    ] {
        let answer = body.to_owned();
        let server = Server::start(move |_| (status, answer.clone())).await;
        let connection = connection(&settings(vec![section(service.clone(), &server.url())])).await;
        let error = ask(&connection.transport, &service).await.unwrap_err();
        let AwsErrorCause::Response { code: seen, message: said, status: with, request_id } =
            error.cause
        else {
            panic!("{service:?} {body}: {error:?}")
        };
        assert_eq!((&*seen, &*said, with), (code, message, status), "{service:?}");
        assert_eq!(request_id.as_deref(), Some("id-1"));
        assert_eq!(server.take().len(), 1, "it is not tried again");
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_none() {
    let server = Server::start(|seen| {
        let body = match seen.body.split(['=', '&']).nth(1) {
            Some("DescribeVpcs") => "<R><vpcSet><item><cidrBlock>10.0.0.0/16</cidrBlock></item></vpcSet></R>",
            Some("DescribeSubnets") => {
                "<R><subnetSet><item><subnetId>s</subnetId><vpcId>v</vpcId><cidrBlock>?</cidrBlock></item></subnetSet></R>"
            }
            _ => "<not-xml",
        };
        (200, body.to_owned())
    })
    .await;
    let section = section(OverriddenService::Ec2, &server.url());
    let transport = connection(&settings(vec![section])).await.transport;
    let vpcs = send(&transport, DescribeVpcs::default()).await.unwrap_err();
    let subnets = send(&transport, DescribeSubnets::default())
        .await
        .unwrap_err();
    let instances = send(&transport, DescribeInstances::default())
        .await
        .unwrap_err();
    for error in [&vpcs, &subnets, &instances] {
        assert!(matches!(error.cause, AwsErrorCause::NoResponse(_)), "{error:?}");
    }
    let cause =
        |error: &crate::api::AwsError| std::error::Error::source(error).unwrap().to_string();
    assert_eq!(cause(&vpcs), "the answer cannot be read: a VPC's ID is missing");
    assert!(
        cause(&subnets).starts_with("the answer cannot be read: \"?\": "),
        "{}",
        cause(&subnets)
    );
}

#[tokio::test]
async fn values_that_are_not_known_are_no_errors() {
    let server = Server::start(|seen| {
        let body = match seen.body.split(['=', '&']).nth(1) {
            Some("DescribeInstances") => {
                "<R><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId>\
                 <instanceType>x99.huge</instanceType><instanceState><name>hibernated</name></instanceState>\
                 </item></instancesSet></item></reservationSet></R>"
            }
            Some("DescribeLoadBalancers") => {
                "<R><DescribeLoadBalancersResult><LoadBalancers><member><LoadBalancerArn>a</LoadBalancerArn>\
                 <Type>quantum</Type><Scheme>s</Scheme><IpAddressType>ipv8</IpAddressType><State><Code>c</Code></State>\
                 </member></LoadBalancers></DescribeLoadBalancersResult></R>"
            }
            Some("DescribeTargetGroups") => {
                "<R><DescribeTargetGroupsResult><TargetGroups><member><TargetGroupArn>a</TargetGroupArn>\
                 <Protocol>QUIC</Protocol><TargetType>t</TargetType><HealthCheckProtocol>h</HealthCheckProtocol>\
                 </member></TargetGroups></DescribeTargetGroupsResult></R>"
            }
            _ => {
                "<R><DescribeListenersResult><Listeners><member><ListenerArn>a</ListenerArn><Protocol>QUIC</Protocol>\
                 <DefaultActions><member><Type>forward</Type><ForwardConfig><TargetGroups>\
                 <member><TargetGroupArn>x</TargetGroupArn></member><member><TargetGroupArn>y</TargetGroupArn></member>\
                 </TargetGroups></ForwardConfig></member></DefaultActions></member></Listeners>\
                 </DescribeListenersResult></R>"
            }
        };
        (200, body.to_owned())
    })
    .await;
    let sections = [OverriddenService::Ec2, OverriddenService::Elb]
        .map(|service| section(service, &server.url()));
    let transport = connection(&settings(sections.into())).await.transport;
    let instance = send(&transport, DescribeInstances::default())
        .await
        .unwrap()
        .items
        .remove(0);
    assert_eq!(
        (instance.state, &*instance.instance_type),
        (Some(InstanceState::Unknown), "x99.huge")
    );
    let balancer = send(&transport, DescribeLoadBalancers::default())
        .await
        .unwrap()
        .items
        .remove(0);
    assert_eq!((balancer.scheme, balancer.state, balancer.ip_address_type), (None, None, None));
    assert_eq!(&*balancer.kind, "quantum");
    let group = send(&transport, DescribeTargetGroups::default())
        .await
        .unwrap()
        .items
        .remove(0);
    assert_eq!((group.protocol, group.target_type, group.health_check), (None, None, None));
    let listeners = DescribeListeners { load_balancer: "a".into(), token: None };
    let listener = send(&transport, listeners).await.unwrap().items.remove(0);
    assert_eq!(
        (listener.protocol, listener.target_group),
        (None, None),
        "several groups are not one"
    );
}

/// Returns the parameters of a request for load balancers, without its action and version.
fn parameters(body: &str) -> Vec<&str> {
    let mut found: Vec<_> = body
        .split('&')
        .filter(|pair| !pair.starts_with("Action=") && !pair.starts_with("Version="))
        .collect();
    found.sort_unstable();
    found
}

// LB5
#[tokio::test]
async fn source_nat_and_its_prefixes_are_sent() {
    let server = Server::start(|seen| {
        let body = if seen.body.contains("Action=CreateLoadBalancer&") {
            "<R><CreateLoadBalancerResult><LoadBalancers><member><LoadBalancerArn>a</LoadBalancerArn>\
             </member></LoadBalancers></CreateLoadBalancerResult></R>"
        } else {
            "<R><SetSubnetsResult></SetSubnetsResult></R>"
        };
        (200, body.to_owned())
    })
    .await;
    let section = section(OverriddenService::Elb, &server.url());
    let transport = connection(&settings(vec![section])).await.transport;
    let mapping = |subnet: &str, prefix| SubnetMapping {
        subnet: subnet.into(),
        allocation: None,
        private_ipv4: None,
        ipv6: None,
        source_nat_prefix: prefix,
    };
    let network = SourceNatPrefix::Network("2001:db8::/80".parse().unwrap());
    let subnets = vec![
        mapping("s1", Some(network)),
        mapping("s2", Some(SourceNatPrefix::AutoAssigned)),
        mapping("s3", None),
    ];
    let expected = [
        "EnablePrefixForIpv6SourceNat=on",
        "SubnetMappings.member.1.SourceNatIpv6Prefix=2001%3Adb8%3A%3A%2F80",
        "SubnetMappings.member.1.SubnetId=s1",
        "SubnetMappings.member.2.SourceNatIpv6Prefix=auto_assigned",
        "SubnetMappings.member.2.SubnetId=s2",
        "SubnetMappings.member.3.SubnetId=s3",
    ];
    let create = CreateLoadBalancer {
        name: "web".into(),
        scheme: Scheme::Internal,
        ip_address_type: IpAddressType::Dualstack,
        subnets: subnets.clone(),
        security_groups: vec![],
        ipv6_source_nat: Some(true),
        tags: crate::api::Tags::new(),
    };
    send(&transport, create).await.unwrap();
    let seen = server.take().remove(0);
    for pair in expected {
        assert!(parameters(&seen.body).contains(&pair), "{pair}: {}", seen.body);
    }

    let set = |subnets, source_nat, families| SetSubnets {
        arn: "a".into(),
        subnets,
        ipv6_source_nat: source_nat,
        ip_address_type: families,
    };
    send(&transport, set(subnets, Some(true), None))
        .await
        .unwrap();
    let seen = server.take().remove(0);
    let (on, mappings) = expected.split_first().unwrap();
    let all = [&[*on, "LoadBalancerArn=a"], mappings].concat();
    assert_eq!(parameters(&seen.body), all);
    // It is turned off together with a family, and not named where the Service has none.
    for (source_nat, families, rest) in [
        (
            Some(false),
            Some(IpAddressType::Ipv4),
            &["EnablePrefixForIpv6SourceNat=off", "IpAddressType=ipv4"][..],
        ),
        (None, None, &[]),
    ] {
        let request = set(vec![mapping("s1", None)], source_nat, families);
        send(&transport, request).await.unwrap();
        let seen = server.take().remove(0);
        let always = ["LoadBalancerArn=a", "SubnetMappings.member.1.SubnetId=s1"];
        assert_eq!(parameters(&seen.body), [rest, &always].concat());
    }
}

// LB7
#[tokio::test]
async fn capacity_is_reserved_read_and_given_back() {
    let server = Server::start(|seen| {
        let body = if seen.body.contains("DescribeCapacityReservation") {
            "<R><DescribeCapacityReservationResult><MinimumLoadBalancerCapacity><CapacityUnits>3000</CapacityUnits>\
             </MinimumLoadBalancerCapacity></DescribeCapacityReservationResult></R>"
        } else {
            "<R><ModifyCapacityReservationResult></ModifyCapacityReservationResult></R>"
        };
        (200, body.to_owned())
    })
    .await;
    let section = section(OverriddenService::Elb, &server.url());
    let transport = connection(&settings(vec![section])).await.transport;
    for (capacity_units, expected) in [
        (3000, ["LoadBalancerArn=a", "MinimumLoadBalancerCapacity.CapacityUnits=3000"]),
        (0, ["LoadBalancerArn=a", "ResetCapacityReservation=true"]),
    ] {
        let request = ModifyCapacityReservation { arn: "a".into(), capacity_units };
        send(&transport, request).await.unwrap();
        let seen = server.take().remove(0);
        assert!(seen.body.contains("Action=ModifyCapacityReservation&"), "{}", seen.body);
        assert_eq!(parameters(&seen.body), expected);
    }
    let too_many = ModifyCapacityReservation { arn: "a".into(), capacity_units: u32::MAX };
    send(&transport, too_many).await.unwrap_err();
    assert!(server.take().is_empty(), "it is not sent");

    let read = DescribeCapacityReservation { arn: "a".into() };
    assert_eq!(send(&transport, read).await.unwrap(), 3000);
    assert_eq!(parameters(&server.take().remove(0).body), ["LoadBalancerArn=a"]);
    // Nothing is reserved.
    let server = Server::start(|_| {
        let nothing =
            "<R><DescribeCapacityReservationResult></DescribeCapacityReservationResult></R>";
        (200, nothing.to_owned())
    })
    .await;
    let section = self::section(OverriddenService::Elb, &server.url());
    let transport = connection(&settings(vec![section])).await.transport;
    let read = DescribeCapacityReservation { arn: "a".into() };
    assert_eq!(send(&transport, read).await.unwrap(), 0);
}
