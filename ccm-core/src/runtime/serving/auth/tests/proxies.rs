//! Front proxies that name the user in headers.

use proptest::prelude::*;

use super::{
    super::UserInfo,
    api_server::{Ca, Call, Checked, FakeApiServer, get},
};

/// A cluster with a CA of clients and one of proxies, of which only `front` is allowed.
fn cluster() -> (FakeApiServer, Ca, Ca) {
    let (world, clients, proxies) = (FakeApiServer::new(), Ca::new("clients"), Ca::new("proxies"));
    world.config_map(&[
        ("client-ca-file", &clients.pem),
        ("requestheader-client-ca-file", &proxies.pem),
        ("requestheader-allowed-names", r#"["front", ""]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ]);
    (world, clients, proxies)
}

fn as_root(call: Call) -> Call {
    call.header("x-remote-user", "root")
        .header("x-remote-group", "system:masters")
}

#[tokio::test(start_paused = true)]
async fn an_allowed_proxy_tells_the_user() {
    let (world, _, proxies) = cluster();
    let checked = Checked::new(&world).await;
    let front = proxies.client("front", &["system:masters"]);
    let call = get("/healthz")
        .peer(&front)
        .header("X-Remote-User", "jane")
        .header("X-Remote-Group", "devs");
    let call = call
        .header("X-Remote-Uid", "u7")
        .header("X-Remote-Extra-Scope", "s");
    let want = UserInfo {
        name: "jane".into(),
        uid: "u7".into(),
        groups: vec!["devs".into(), "system:authenticated".into()],
        extra: [("scope".to_owned(), vec!["s".to_owned()])].into(),
    };
    assert_eq!(checked.call(&call).await, Ok(want));
    assert_eq!(checked.status(&as_root(get("/configz")).peer(&front)).await, 200);
    assert_eq!(
        checked.status(&get("/configz").peer(&front)).await,
        401,
        "the proxy itself is nobody"
    );
    assert_eq!(
        checked
            .status(&as_root(as_root(get("/healthz"))).peer(&front))
            .await,
        401,
        "named twice"
    );
    let nobody = get("/metrics")
        .peer(&front)
        .header("x-remote-user", "system:anonymous");
    assert_eq!(checked.call(&nobody).await.unwrap_err().status, 403);
}

#[tokio::test(start_paused = true)]
async fn nobody_else_tells_the_user() {
    let (world, clients, proxies) = cluster();
    world.token("t1", "jane", &[]);
    let checked = Checked::new(&world).await;
    for (case, call, want) in [
        ("no certificate", get("/configz"), 403),
        ("another name", get("/configz").peer(&proxies.client("back", &["system:masters"])), 401),
        ("no name", get("/configz").peer(&proxies.client("", &["system:masters"])), 401),
        (
            "a CA of the same name",
            get("/configz").peer(&Ca::new("proxies").client("front", &[])),
            401,
        ),
        ("a client of the cluster", get("/configz").peer(&clients.client("front", &[])), 403),
        ("a token", get("/configz").token("t1"), 403),
    ] {
        assert_eq!(checked.status(&as_root(call)).await, want, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_ca_is_none_for_clients_and_the_other_way_round() {
    let (world, clients, proxies) = cluster();
    let checked = Checked::new(&world).await;
    let root = proxies.client("root", &["system:masters"]);
    assert_eq!(checked.status(&get("/configz").peer(&root)).await, 401);
    let front = clients.client("front", &[]);
    let caller = checked
        .call(&as_root(get("/healthz")).peer(&front))
        .await
        .unwrap();
    assert_eq!(
        (caller.name.as_str(), &caller.groups[..]),
        ("front", &["system:authenticated".to_owned()][..])
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_and_flags_stand_in_for_the_cluster() {
    let (world, _, cluster) = cluster();
    let (directory, ca) = (tempfile::tempdir().unwrap(), Ca::new("file"));
    let path = directory.path().join("ca.crt");
    std::fs::write(&path, &ca.pem).unwrap();
    let checked = Checked::with(&world, |who, _| {
        who.requestheader_client_ca_file = Some(path);
        who.requestheader_username_headers = vec!["x-user".into()];
    });
    let checked = checked.await.unwrap();
    let any = get("/healthz").peer(&ca.client("any", &[]));
    assert_eq!(
        checked
            .call(&any.clone().header("x-user", "jane"))
            .await
            .unwrap()
            .name,
        "jane",
        "any name is allowed"
    );
    assert_eq!(checked.status(&as_root(any)).await, 401, "not by the cluster's headers");
    assert_eq!(
        checked
            .status(&as_root(get("/healthz")).peer(&cluster.client("front", &[])))
            .await,
        401
    );
}

fn header() -> impl Strategy<Value = (String, String)> {
    let name = prop_oneof![
        Just("x-remote-user".to_owned()),
        Just("X-REMOTE-GROUP".to_owned()),
        Just("x-remote-uid".to_owned()),
        Just("x-remote-extra-scopes".to_owned()),
        Just("impersonate-user".to_owned()),
        Just("x-forwarded-user".to_owned()),
        Just("x-forwarded-client-cert".to_owned()),
        Just("sec-websocket-protocol".to_owned()),
        Just("host".to_owned()),
        "[a-z][a-z-]{0,20}",
    ]
    .prop_filter("its own header is the credential", |name| {
        !name.eq_ignore_ascii_case("authorization")
    });
    let value =
        prop_oneof![Just("root".to_owned()), Just("system:masters".to_owned()), "[ -~]{0,20}"];
    (name, value)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever headers somebody sends who is no proxy: they are who they are without them.
    #[test]
    fn headers_change_nobody(headers in prop::collection::vec(header(), 0..6), who in 0..5_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (world, clients, proxies) = cluster();
            world.token("t1", "jane", &["devs"]);
            let checked = Checked::new(&world).await;
            let plain = match who {
                0 => get("/healthz"),
                1 => get("/healthz").token("t1"),
                2 => get("/healthz").peer(&clients.client("joe", &["ops"])),
                3 => get("/healthz").peer(&proxies.client("back", &[])),
                _ => get("/healthz").peer(&Ca::new("proxies").client("front", &[])),
            };
            let with = headers.iter().fold(plain.clone(), |call, (name, value)| call.header(name, value));
            assert_eq!(checked.call(&with).await, checked.call(&plain).await);
        });
    }
}
