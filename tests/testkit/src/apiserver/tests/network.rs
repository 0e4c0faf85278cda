//! Over the socket: real time, real TLS.

use kube::config::{KubeConfigOptions, Kubeconfig};

use super::*;

async fn client_of(serving: &Serving, token: &str) -> kube::Client {
    let kubeconfig = Kubeconfig::from_yaml(&serving.kubeconfig(token)).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    kube::Client::try_from(config).unwrap()
}

#[tokio::test]
async fn the_socket_serves_known_tokens_and_stops() {
    let server = server();
    let serving = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let nodes: Api<Node> = Api::all(client_of(&serving, server.admin_token()).await);
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    let mut stream = nodes
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    assert_eq!(next_event(&mut stream).await, "added a");
    let mut cut = nodes
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    assert_eq!(next_event(&mut cut).await, "added a");
    server.faults().cut_watches(&Match::any());
    let after: Result<Option<_>, _> = cut.try_next().await;
    assert!(!matches!(after, Ok(Some(_))), "cut: {after:?}");

    let stranger: Api<Node> = Api::all(client_of(&serving, "nobody").await);
    assert_eq!(refused(stranger.list(&ListParams::default()).await).code, 401);

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    serving.write_kubeconfig(&path).unwrap();
    #[cfg(unix)]
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions())
            & 0o777,
        0o600
    );

    let address = serving.address();
    tokio::time::timeout(Duration::from_secs(20), serving.stop())
        .await
        .expect("stops");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}
