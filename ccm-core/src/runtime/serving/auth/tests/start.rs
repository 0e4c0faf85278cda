//! What is read at the start and again later: files and the cluster's ConfigMap.

use std::{path::PathBuf, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::api_server::{Ca, Checked, FakeApiServer, get};
use crate::error::chain;

/// Long enough for the CAs to be read again.
const A_WHILE: Duration = Duration::from_secs(61);

#[tokio::test(start_paused = true)]
async fn a_config_map_that_cannot_be_read_is_an_error_that_says_what_to_do() {
    let world = FakeApiServer::new();
    world.fail(&[403]);
    let error = Checked::with(&world, |_, _| ())
        .await
        .map(|_| ())
        .unwrap_err();
    let text = chain(&error);
    for part in [
        "kube-system/extension-apiserver-authentication",
        "extension-apiserver-authentication-reader",
        "--authentication-tolerate-lookup-failure",
        "--authentication-skip-lookup",
        "configmaps",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    world.fail(&[500; 5]);
    assert!(Checked::with(&world, |_, _| ()).await.is_err());
    world.fail(&[500; 4]);
    assert!(Checked::with(&world, |_, _| ()).await.is_ok(), "the fifth attempt");
    world.no_config_map();
    assert!(Checked::with(&world, |_, _| ()).await.is_ok(), "none there, as upstream");
}

#[tokio::test(start_paused = true)]
async fn a_failed_look_up_can_be_tolerated_and_is_made_up_for() {
    let (world, ca) = (FakeApiServer::new(), Ca::new("cluster"));
    world.config_map(&[("client-ca-file", &ca.pem)]);
    world.fail(&[403]);
    let checked = Checked::with(&world, |who, _| who.tolerate_lookup_failure = true)
        .await
        .unwrap();
    let root = get("/configz").peer(&ca.client("root", &["system:masters"]));
    assert_eq!(checked.status(&root).await, 403, "nobody yet");
    let stop = CancellationToken::new();
    let run = tokio::spawn({
        let (auth, stop) = (checked.auth.clone(), stop.clone());
        async move { auth.run(stop).await }
    });
    sleep(A_WHILE).await;
    assert_eq!(checked.status(&root).await, 200);
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_looked_up_when_files_say_it_all() {
    let (world, directory) = (FakeApiServer::new(), tempfile::tempdir().unwrap());
    let path = directory.path().join("ca.crt");
    std::fs::write(&path, Ca::new("file").pem).unwrap();
    world.fail(&[403]);
    Checked::with(&world, |who, _| {
        who.client_ca_file = Some(path.clone());
        who.requestheader_client_ca_file = Some(path);
    })
    .await
    .unwrap();
    assert_eq!(world.count(""), 0);
}

#[tokio::test(start_paused = true)]
async fn all_mistakes_are_told_together() {
    let (world, directory) = (FakeApiServer::new(), tempfile::tempdir().unwrap());
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let leaf = Ca::new("x").client("leaf", &[]);
    let leaf = format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        crate_base64(&leaf[0])
    );
    for (pem, why) in [
        (file("empty", ""), "it holds no certificate"),
        (file("text", "hello"), "it holds no certificate"),
        (
            file("broken", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"),
            "is no PEM",
        ),
        (
            file("short", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "cannot be read",
        ),
        (file("leaf", &leaf), "it is no CA"),
        (PathBuf::from("/nowhere/ca.crt"), "No such file"),
    ] {
        let error = Checked::with(&world, |who, what| {
            who.client_ca_file = Some(pem.clone());
            who.tolerate_lookup_failure = true;
            what.always_allow_paths.push("/a*b".into());
        });
        let text = chain(&error.await.map(|_| ()).unwrap_err());
        assert!(
            text.contains(&format!("--client-ca-file={}: ", pem.display())) && text.contains(why),
            "{text}"
        );
        assert!(
            text.contains("--authorization-always-allow-paths=/a*b: may have a * at its end only"),
            "{text}"
        );
    }
    world.config_map(&[
        ("requestheader-client-ca-file", &Ca::new("x").pem),
        ("requestheader-allowed-names", "front"),
    ]);
    let text = chain(
        &Checked::with(&world, |_, _| ())
            .await
            .map(|_| ())
            .unwrap_err(),
    );
    assert!(text.starts_with("requestheader-allowed-names of ConfigMap kube-system/ext"), "{text}");
    assert!(
        Checked::with(&world, |who, _| who.tolerate_lookup_failure = true)
            .await
            .is_ok()
    );
}

/// Base64 without a crate for it.
fn crate_base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let triple = |chunk: &[u8]| {
        let bits = chunk
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        let letter = |at: usize| char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]);
        (0..4)
            .map(|at| if at <= chunk.len() { letter(at) } else { '=' })
            .collect::<String>()
    };
    bytes.chunks(3).map(triple).collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_ca_is_believed_and_an_old_one_no_more() {
    let (world, old, new) = (FakeApiServer::new(), Ca::new("ca"), Ca::new("ca"));
    world.config_map(&[("client-ca-file", &old.pem)]);
    let checked = Checked::new(&world).await;
    let stop = CancellationToken::new();
    let run = tokio::spawn({
        let (auth, stop) = (checked.auth.clone(), stop.clone());
        async move { auth.run(stop).await }
    });
    let (by_old, by_new) =
        (get("/healthz").peer(&old.client("a", &[])), get("/healthz").peer(&new.client("b", &[])));
    assert_eq!((checked.status(&by_old).await, checked.status(&by_new).await), (200, 401));
    world.config_map(&[("client-ca-file", &format!("{}{}", old.pem, new.pem))]);
    assert_eq!(checked.status(&by_new).await, 401);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(
        (checked.status(&by_old).await, checked.status(&by_new).await),
        (200, 200),
        "read again after a refusal"
    );

    world.config_map(&[("client-ca-file", &new.pem)]);
    sleep(A_WHILE).await;
    assert_eq!((checked.status(&by_old).await, checked.status(&by_new).await), (401, 200));

    world.config_map(&[("client-ca-file", "broken")]);
    sleep(A_WHILE).await;
    assert_eq!(checked.status(&by_new).await, 200, "what cannot be understood changes nothing");
    world.fail(&[403; 2]);
    sleep(A_WHILE).await;
    assert_eq!(checked.status(&by_new).await, 200, "what cannot be read changes nothing");
    world.fail(&[]);
    world.config_map(&[]);
    sleep(A_WHILE).await;
    let caller = checked.call(&by_new).await.unwrap();
    assert!(caller.is_anonymous(), "no CA: certificates say nothing");
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn strangers_cannot_have_the_cas_read_all_the_time() {
    let (world, ca) = (FakeApiServer::new(), Ca::new("ca"));
    world.config_map(&[("client-ca-file", &ca.pem)]);
    let checked = Checked::new(&world).await;
    let stop = CancellationToken::new();
    let run = tokio::spawn({
        let (auth, stop) = (checked.auth.clone(), stop.clone());
        async move { auth.run(stop).await }
    });
    let stranger = get("/healthz").peer(&Ca::new("ca").client("x", &[]));
    for _ in 0..600 {
        assert_eq!(checked.status(&stranger).await, 401);
        sleep(Duration::from_millis(100)).await;
    }
    assert!(world.count("configmaps") <= 7, "{}", world.count("configmaps"));
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_file_is_read_again() {
    let (world, directory, old, new) =
        (FakeApiServer::new(), tempfile::tempdir().unwrap(), Ca::new("a"), Ca::new("b"));
    let path = directory.path().join("ca.crt");
    std::fs::write(&path, &old.pem).unwrap();
    let checked = Checked::with(&world, |who, _| who.client_ca_file = Some(path.clone()))
        .await
        .unwrap();
    let stop = CancellationToken::new();
    let run = tokio::spawn({
        let (auth, stop) = (checked.auth.clone(), stop.clone());
        async move { auth.run(stop).await }
    });
    let (by_old, by_new) =
        (get("/healthz").peer(&old.client("a", &[])), get("/healthz").peer(&new.client("b", &[])));
    for (content, want) in
        [(&new.pem[..], (401, 200)), ("half a fi", (401, 200)), (&old.pem, (200, 401))]
    {
        std::fs::write(&path, content).unwrap();
        sleep(2 * A_WHILE).await;
        assert_eq!((checked.status(&by_old).await, checked.status(&by_new).await), want);
    }
    stop.cancel();
    run.await.unwrap();
}
