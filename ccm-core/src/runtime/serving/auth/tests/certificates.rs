//! Client certificates.

use std::time::Duration;

use rcgen::{CustomExtension, ExtendedKeyUsagePurpose};
use rustls::pki_types::UnixTime;

use super::{
    super::x509::CaBundle,
    api_server::{Ca, Checked, FakeApiServer, Odd, START, get},
};

#[tokio::test(start_paused = true)]
async fn a_client_certificate_names_its_user() {
    let (world, ca) = (FakeApiServer::new(), Ca::new("cluster"));
    world.config_map(&[("client-ca-file", &ca.pem)]);
    world.allow("jane", "/metrics");
    let checked = Checked::new(&world).await;
    let caller = checked
        .call(&get("/metrics").peer(&ca.client("jane", &["devs", "ops"])))
        .await
        .unwrap();
    assert_eq!(caller.name, "jane");
    assert_eq!(caller.groups, ["devs", "ops", "system:authenticated"]);
    let fingerprint = &caller.extra["authentication.kubernetes.io/credential-id"][0];
    assert!(
        fingerprint.starts_with("X509SHA256=") && fingerprint.len() == 11 + 64,
        "{fingerprint}"
    );
    assert_eq!(
        checked
            .status(&get("/configz").peer(&ca.client("jane", &[])))
            .await,
        403
    );
    assert_eq!(
        checked
            .status(&get("/configz").peer(&ca.client("root", &["system:masters"])))
            .await,
        200
    );
    assert_eq!(
        checked
            .status(&get("/metrics").peer(&ca.client("", &["system:masters"])))
            .await,
        403,
        "no name"
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_that_are_not_quite_right_are_refused() {
    let (world, ca, old) = (FakeApiServer::new(), Ca::new("cluster"), Ca::valid("old", (-300, -1)));
    world.config_map(&[("client-ca-file", &format!("{}{}", ca.pem, old.pem))]);
    let checked = Checked::new(&world).await;
    let intermediate = Odd { ca: true, ..Odd::default() };
    let odd = |change: fn(&mut Odd)| {
        let mut odd = Odd::default();
        change(&mut odd);
        ca.odd(&["jane"], &["system:masters"], &odd)
    };
    for (case, peer) in [
        ("another CA of the same name", Ca::new("cluster").client("jane", &["system:masters"])),
        ("its CA has expired", old.client("jane", &["system:masters"])),
        ("expired", odd(|odd| odd.days = (-30, -1))),
        ("not valid yet", odd(|odd| odd.days = (1, 30))),
        ("for servers", odd(|odd| odd.usages = vec![ExtendedKeyUsagePurpose::ServerAuth])),
        ("for nothing said", odd(|odd| odd.usages = Vec::new())),
        ("for anything", odd(|odd| odd.usages = vec![ExtendedKeyUsagePurpose::Any])),
        ("a CA itself", ca.odd(&["jane"], &["system:masters"], &intermediate)),
        ("unknown critical extension", {
            let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
            extension.set_criticality(true);
            ca.odd(
                &["jane"],
                &["system:masters"],
                &Odd { extensions: vec![extension], ..Odd::default() },
            )
        }),
        ("two names", ca.odd(&["jane", "root"], &["system:masters"], &Odd::default())),
        ("its bytes were changed", {
            let mut der = ca.client("jane", &["system:masters"])[0].to_vec();
            let at = der.windows(4).position(|w| w == b"jane").unwrap();
            der[at] = b'k';
            vec![der.into()]
        }),
        ("no certificate at all", vec![vec![1, 2, 3].into()]),
        (
            "the other order",
            [Ca::new("x").client("jane", &[]), ca.client("jane", &["system:masters"])].concat(),
        ),
    ] {
        assert_eq!(checked.status(&get("/healthz").peer(&peer)).await, 401, "{case}");
    }
    assert_eq!(checked.status(&get("/configz").peer(&odd(|_| ()))).await, 200, "the right one");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_refused_leaves_the_token_its_say() {
    let (world, ca) = (FakeApiServer::new(), Ca::new("cluster"));
    world.config_map(&[("client-ca-file", &ca.pem)]);
    world.token("t1", "joe", &[]);
    let checked = Checked::new(&world).await;
    let stranger = Ca::new("x").client("root", &["system:masters"]);
    assert_eq!(
        checked
            .call(&get("/healthz").peer(&stranger).token("t1"))
            .await
            .unwrap()
            .name,
        "joe"
    );
    assert_eq!(
        checked
            .status(&get("/healthz").peer(&stranger).token("t2"))
            .await,
        401
    );
    let jane = ca.client("jane", &[]);
    assert_eq!(
        checked
            .call(&get("/healthz").peer(&jane).token("t1"))
            .await
            .unwrap()
            .name,
        "jane"
    );
    assert_eq!(
        checked
            .call(&get("/healthz").peer(&jane).token("t2"))
            .await
            .unwrap()
            .name,
        "jane"
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_say_nothing_without_a_ca() {
    let (world, ca) = (FakeApiServer::new(), Ca::new("cluster"));
    world.config_map(&[("client-ca-file", &ca.pem)]);
    let checked = Checked::with(&world, |who, _| who.skip_lookup = true)
        .await
        .unwrap();
    let root = get("/metrics").peer(&ca.client("root", &["system:masters"]));
    assert_eq!(checked.status(&root).await, 403, "anonymous");
    assert_eq!(world.count("configmaps"), 0);
}

#[test]
fn no_byte_of_a_certificate_can_be_changed() {
    let ca = Ca::new("cluster");
    let anchors = CaBundle::parse(ca.pem.as_bytes()).unwrap();
    let leaf = ca.client("jane", &["devs"]).remove(0);
    let start: jiff::Timestamp = START.parse().unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(start.as_second().unsigned_abs()));
    assert!(anchors.verify(&[leaf.clone()], now).is_ok());
    for at in 0..leaf.len() {
        let mut changed = leaf.to_vec();
        changed[at] ^= 1;
        assert!(anchors.verify(&[changed.into()], now).is_err(), "byte {at} of {}", leaf.len());
    }
    for length in 0..leaf.len() {
        assert!(
            anchors
                .verify(&[leaf[..length].to_vec().into()], now)
                .is_err(),
            "{length} bytes"
        );
    }
}
