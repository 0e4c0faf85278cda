//! What goes wrong, and what is made of it.

use super::*;
use crate::config::Rate;

fn get<'a>(path: &'a [&'a str]) -> Request<'a> {
    Request::new(Call::NetworkGet, path)
}

type Make = fn() -> Response<Bytes>;

async fn failure(response: Make) -> OpenStackError {
    let cloud = Tiny::new(move |_: &http::Request<Bytes>, _| Ok(response()));
    tiny(&cloud)
        .await
        .get::<Value>(&op(), &get(&["networks", "x"]))
        .await
        .unwrap_err()
}

/// Nodes and balancers are deleted on the word of these alone.
#[tokio::test(start_paused = true)]
async fn only_the_services_own_words_say_that_something_is_not_there() {
    let cloud = cloud();
    let client = client(&cloud).await;
    let error = client
        .get::<Value>(&op(), &get(&["networks", "x"]))
        .await
        .unwrap_err();
    assert!(error.is_not_found(), "{error}");
    assert_eq!(error.kind(), "NetworkNotFound");
    assert_eq!(CloudError::from(error).kind(), ErrorKind::NotFound);
    let doubts: [(&str, Make); 8] = [
        ("a proxy's page", || answer(404, "<html>Not Found</html>")),
        ("nothing", || answer(404, "")),
        ("other JSON", || answer(404, r#"{"detail":"no Route matched"}"#)),
        ("another envelope", || answer(404, r#"{"error":"x"}"#)),
        ("a path", || {
            answer(404, r#"{"NeutronError":{"type":"HTTPNotFound","message":"x","detail":""}}"#)
        }),
        ("a path of Nova's", || {
            answer(
                404,
                r#"{"itemNotFound":{"code":404,"message":"The resource could not be found."}}"#,
            )
        }),
        ("cut", || answer(404, r#"{"NeutronError":{"type":"NetworkNot"#)),
        ("not JSON", || answer(200, "<html>Welcome</html>")),
    ];
    for (what, response) in doubts {
        let error = failure(response).await;
        assert!(!error.is_not_found(), "{what}: {error:?}");
        assert_ne!(CloudError::from(error).kind(), ErrorKind::NotFound, "{what}");
    }
    let empty = failure(|| answer(200, "{}")).await;
    assert!(empty.to_string().contains("missing field `network`"), "{empty}");
    assert_eq!(empty.class(), ErrorClass::Transient);
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_no_json_are_told_with_service_and_address() {
    let cloud = cloud();
    let client = client(&cloud).await;
    let page = FaultKind::Body { code: 200, text: "<html>sign in</html>".to_owned() };
    cloud
        .cloud()
        .faults
        .add(Trouble { count: Some(9), ..Trouble::new("/network", page) });
    let error = networks(&client).await.unwrap_err();
    let expected =
        "network GET http://cloud.test/network/v2.0/networks: the answer cannot be read: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    cloud.cloud().faults.clear();
    cloud
        .cloud()
        .faults
        .add(Trouble::new("/network", FaultKind::Cut { after: 10 }));
    let error = networks(&client).await.unwrap_err();
    assert!(chain(&error).contains("was cut short"), "{}", chain(&error));
    assert_eq!(CloudError::from(error).kind(), ErrorKind::Transient);
}

#[tokio::test(start_paused = true)]
async fn a_redirection_is_not_followed() {
    let error = failure(|| {
        Response::builder()
            .status(302)
            .header("location", "http://evil.test/")
            .body(Bytes::new())
            .unwrap()
    })
    .await;
    assert!(
        error
            .to_string()
            .contains("redirection, which is not followed"),
        "{error}"
    );
    assert_eq!(error.class(), ErrorClass::Transient);
}

// length: one table
#[test]
fn each_services_refusals_have_their_meaning() {
    let cases: [(Call, u16, &str, ErrorClass, &str); 19] = [
        (
            Call::ServerGet,
            404,
            r#"{"itemNotFound":{"code":404,"message":"Instance x could not be found."}}"#,
            ErrorClass::NotFound,
            "itemNotFound",
        ),
        (
            Call::ServerGet,
            403,
            r#"{"forbidden":{"code":403,"message":"Policy"}}"#,
            ErrorClass::Denied,
            "forbidden",
        ),
        (
            Call::ServerList,
            400,
            r#"{"badRequest":{"code":400,"message":"marker"}}"#,
            ErrorClass::Invalid,
            "badRequest",
        ),
        (
            Call::ServerList,
            413,
            r#"{"overLimit":{"code":413,"message":"m","retryAfter":"2"}}"#,
            ErrorClass::Throttled,
            "overLimit",
        ),
        (
            Call::ServerList,
            500,
            r#"{"computeFault":{"code":500,"message":"m"}}"#,
            ErrorClass::Transient,
            "computeFault",
        ),
        (
            Call::PortUpdate,
            404,
            r#"{"NeutronError":{"type":"PortNotFound","message":"m","detail":""}}"#,
            ErrorClass::NotFound,
            "PortNotFound",
        ),
        (
            Call::PortUpdate,
            412,
            r#"{"NeutronError":{"type":"RevisionNumberConstraintFailed","message":"m","detail":""}}"#,
            ErrorClass::Changed,
            "RevisionNumberConstraintFailed",
        ),
        (
            Call::FloatingIpCreate,
            409,
            r#"{"NeutronError":{"type":"OverQuota","message":"m","detail":""}}"#,
            ErrorClass::Quota,
            "OverQuota",
        ),
        (
            Call::RouterAddRoutes,
            400,
            r#"{"NeutronError":{"type":"RoutesExhausted","message":"m","detail":""}}"#,
            ErrorClass::Quota,
            "RoutesExhausted",
        ),
        (
            Call::PortUpdate,
            400,
            r#"{"NeutronError":{"type":"AllowedAddressPairExhausted","message":"m","detail":""}}"#,
            ErrorClass::Quota,
            "AllowedAddressPairExhausted",
        ),
        (
            Call::SecurityGroupDelete,
            409,
            r#"{"NeutronError":{"type":"SecurityGroupInUse","message":"m","detail":""}}"#,
            ErrorClass::Conflict,
            "SecurityGroupInUse",
        ),
        (
            Call::LoadBalancerGet,
            404,
            r#"{"faultcode":"Client","faultstring":"Load Balancer x not found.","debuginfo":null}"#,
            ErrorClass::NotFound,
            "Client",
        ),
        (
            Call::ListenerCreate,
            409,
            r#"{"faultcode":"Client","faultstring":"Load Balancer x is immutable and cannot be updated.","debuginfo":null}"#,
            ErrorClass::Immutable,
            "Client",
        ),
        (
            Call::LoadBalancerDelete,
            409,
            r#"{"faultcode":"Client","faultstring":"Invalid state PENDING_UPDATE of loadbalancer resource x","debuginfo":null}"#,
            ErrorClass::Immutable,
            "Client",
        ),
        (
            Call::ListenerCreate,
            409,
            r#"{"faultcode":"Client","faultstring":"Another Listener on this Load Balancer is already using protocol_port 80","debuginfo":null}"#,
            ErrorClass::Conflict,
            "Client",
        ),
        (
            Call::LoadBalancerCreate,
            403,
            r#"{"faultcode":"Client","faultstring":"Quota has been met for resources: Load Balancer","debuginfo":null}"#,
            ErrorClass::Quota,
            "Client",
        ),
        (
            Call::LoadBalancerCreate,
            403,
            r#"{"faultcode":"Client","faultstring":"Policy does not allow this request to be performed.","debuginfo":null}"#,
            ErrorClass::Denied,
            "Client",
        ),
        (
            Call::PoolCreate,
            501,
            r#"{"faultcode":"Client","faultstring":"Provider 'ovn' does not support a requested option: x","debuginfo":null}"#,
            ErrorClass::Unsupported,
            "Client",
        ),
        (
            Call::TokenCreate,
            401,
            r#"{"error":{"code":401,"message":"m","title":"Unauthorized"}}"#,
            ErrorClass::Denied,
            "Unauthorized",
        ),
    ];
    for (call, code, body, meaning, kind) in cases {
        let status = StatusCode::from_u16(code).unwrap();
        let error = OpenStackError::from_response(
            call,
            &"GET /x".into(),
            status,
            &http::HeaderMap::new(),
            body.as_bytes(),
            &[],
        );
        assert_eq!((error.class(), error.kind()), (meaning, kind), "{body}");
    }
}

#[test]
fn each_meaning_has_its_kind_its_reason_and_its_wait() {
    let cloud = |call, code, body: &str| {
        let status = StatusCode::from_u16(code).unwrap();
        let headers = [("retry-after", "7"), ("x-openstack-request-id", "req-1")];
        let headers = headers
            .map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()))
            .into_iter()
            .collect();
        CloudError::from(OpenStackError::from_response(
            call,
            &"GET /x".into(),
            status,
            &headers,
            body.as_bytes(),
            &[],
        ))
    };
    let neutron =
        |kind: &str| format!(r#"{{"NeutronError":{{"type":"{kind}","message":"m","detail":""}}}}"#);
    let error = cloud(Call::PortCreate, 409, &neutron("OverQuota"));
    assert_eq!(
        (error.kind(), error.reason(), error.request_id()),
        (ErrorKind::QuotaExceeded, Some(reason::QUOTA), Some("req-1"))
    );
    let error = cloud(Call::PortCreate, 429, &neutron("x"));
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::Throttled, Some(Duration::from_secs(7)))
    );
    let error = cloud(Call::PortCreate, 429, "<html>slow down</html>");
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::Throttled, Some(Duration::from_secs(7)))
    );
    let error = cloud(Call::PortCreate, 400, &neutron("BadRequest"));
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidInput, Some(reason::REFUSED)));
    assert_eq!(cloud(Call::PortCreate, 412, &neutron("x")).kind(), ErrorKind::Conflict);
    assert_eq!(cloud(Call::PortCreate, 503, "").kind(), ErrorKind::Transient);
}

#[tokio::test(start_paused = true)]
async fn reads_are_sent_again_and_changes_only_when_they_were_surely_not_made() {
    let cloud = cloud();
    let client = client(&cloud).await;
    let few = |kind| Trouble { count: Some(2), ..Trouble::new("/network", kind) };
    cloud.cloud().faults.add(few(status(500, None)));
    networks(&client).await.unwrap();
    assert_eq!(client.count(Call::NetworkList), 3);
    cloud.cloud().faults.add(few(status(429, None)));
    create(&client, &op()).await.unwrap();
    assert_eq!(client.count(Call::SecurityGroupCreate), 3);
    cloud.cloud().faults.add(few(status(500, None)));
    let error = create(&client, &op()).await.unwrap_err();
    assert_eq!(
        (error.class(), client.count(Call::SecurityGroupCreate)),
        (ErrorClass::Transient, 4)
    );
}

#[tokio::test(start_paused = true)]
async fn no_call_sleeps_longer_than_two_seconds_whatever_it_meets() {
    let cloud = cloud();
    let client = client(&cloud).await.with_limits(Some(&Limits {
        read: Rate { per_second: 1.0, burst: 1 },
        ..Limits::default()
    }));
    cloud
        .cloud()
        .faults
        .add(Trouble::new("/network", status(429, Some(1))));
    let (op, began) = (op(), Instant::now());
    for _ in 0..20 {
        let error = CloudError::from(client.get_all::<Network>(&op, &NETWORKS).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Throttled);
        assert!(error.retry_after().is_some(), "{error:?}");
    }
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    cloud.cloud().faults.clear();
    cloud
        .cloud()
        .faults
        .add(Trouble::new("/network", status(429, Some(60))));
    tokio::time::advance(Duration::from_secs(60)).await;
    let (began, sent) = (Instant::now(), client.count(Call::NetworkList));
    let error = CloudError::from(networks(&client).await.unwrap_err());
    assert_eq!(
        (error.retry_after(), began.elapsed()),
        (Some(Duration::from_secs(60)), Duration::ZERO)
    );
    assert_eq!(client.count(Call::NetworkList), sent + 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_budget_keeps_back_is_not_sent() {
    let cloud = cloud();
    let limits = Limits {
        write: Rate { per_second: 0.1, burst: 2 },
        ..Limits::default()
    };
    let client = client(&cloud).await.with_limits(Some(&limits));
    for _ in 0..2 {
        create(&client, &op()).await.unwrap();
    }
    let error = create(&client, &op()).await.unwrap_err();
    assert_eq!(error.rate_limit_delay(), Some(Duration::from_secs(10)));
    let error = CloudError::from(error);
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Throttled, Some(reason::BUDGET)));
    assert_eq!(
        (error.retry_after(), client.count(Call::SecurityGroupCreate)),
        (Some(Duration::from_secs(10)), 2)
    );
    networks(&client).await.expect("reads have their own");
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_than_allowed_are_on_their_way() {
    let cloud = cloud();
    let client = client(&cloud)
        .await
        .with_limits(Some(&Limits { in_flight: 2, ..Limits::default() }));
    cloud
        .cloud()
        .faults
        .add(Trouble::new("/network", FaultKind::Latency { ms: 1500 }));
    let began = Instant::now();
    let asked = futures::future::join_all((0..6).map(|_| networks(&client))).await;
    let good = asked.iter().filter(|result| result.is_ok()).count();
    assert_eq!(
        (good, client.count(Call::NetworkList)),
        (4, 4),
        "two at once, two after them, and two that waited too long"
    );
    assert!(began.elapsed() <= Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(
        asked
            .iter()
            .filter_map(|result| result.as_ref().err())
            .all(|error| error.rate_limit_delay().is_some())
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_write_nothing_is_sent() {
    let cloud = cloud();
    let client = client(&cloud).await;
    let (gate, _keeper) = WriteGate::closed();
    let closed = Op::new("kubernetes", CancellationToken::new(), gate);
    let error = create(&client, &closed).await.unwrap_err();
    assert_eq!(CloudError::from(error).kind(), ErrorKind::NotLeader);
    let cancel = CancellationToken::new();
    let cancelled = Op::new("kubernetes", cancel.clone(), WriteGate::always_open());
    cancel.cancel();
    for error in [
        create(&client, &cancelled).await.unwrap_err(),
        client
            .get_all::<Network>(&cancelled, &NETWORKS)
            .await
            .unwrap_err(),
    ] {
        assert_eq!(CloudError::from(error).kind(), ErrorKind::Canceled);
    }
    assert_eq!((client.count(Call::SecurityGroupCreate), client.count(Call::NetworkList)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn several_objects_are_made_in_one_request() {
    let cloud = cloud();
    let client = client(&cloud).await;
    let group = create(&client, &op()).await.unwrap();
    let rule = |port: u16| {
        json!({"security_group_id": group["id"], "direction": "ingress", "protocol": "tcp",
        "ethertype": "IPv4", "port_range_min": port, "port_range_max": port})
    };
    let request = Request::new(Call::SecurityGroupRulesCreate, &["security-group-rules"])
        .with_detail("ports");
    let names: [Box<str>; 2] = ["a".into(), "b".into()];
    let made: Vec<Value> = client
        .post_batch(&op(), &request, &names, &[rule(1), rule(2)])
        .await
        .unwrap();
    assert_eq!((made.len(), client.count(Call::SecurityGroupRulesCreate)), (2, 1));
    let error = client
        .post_batch::<Value>(&op(), &request, &names, &[rule(3), rule(1)])
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
}

#[tokio::test(start_paused = true)]
async fn metrics_have_upstream_names_and_count_every_attempt() {
    let cloud = cloud();
    let client = client(&cloud).await;
    let registry = Registry::new();
    client.register(&registry).unwrap();
    cloud.cloud().faults.add(Trouble {
        count: Some(1),
        ..Trouble::new("/network", status(503, None))
    });
    networks(&client).await.unwrap();
    let text = prometheus::TextEncoder::new()
        .encode_to_string(&registry.gather())
        .unwrap();
    for line in [
        r#"openstack_api_request_duration_seconds_count{request="network_list"} 2"#,
        r#"openstack_api_requests_total{request="network_list"} 2"#,
        r#"openstack_api_request_errors_total{request="network_list"} 1"#,
        r#"openstack_api_requests_total{request="token_create"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
