//! Which threads carry connections.

use std::{collections::BTreeMap, net::SocketAddr, num::NonZeroUsize, sync::Arc, thread};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    fixture::{Client, VIP, soon},
    panics::front,
};
use crate::dataplane::{
    frontend::{Endpoints, Frontend, Settings},
    tcp,
    workers::Workers,
};

/// Tells the client the thread, and stays until the client goes.
async fn serve(
    mut client: TcpStream,
    _ends: Endpoints,
    _front: Arc<Frontend>,
    _settings: Arc<Settings>,
) {
    let name = thread::current().name().unwrap().to_owned();
    client
        .write_all(format!("{name}\n").as_bytes())
        .await
        .unwrap();
    let _ = client.read_u8().await;
}

#[tokio::test]
async fn connections_that_stay_are_spread_over_the_threads() {
    let stop = CancellationToken::new();
    let workers = Workers::new(NonZeroUsize::new(3).unwrap(), stop.clone());
    let socket = tcp::bind(SocketAddr::new(VIP, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let all = workers.all().unwrap();
    tcp::listen(&socket, &Arc::new(front(None)), &all, &TaskTracker::new(), serve).unwrap();
    let mut clients = Vec::new();
    for _ in 0..60 {
        clients.push(Client::connect(address).await.unwrap());
    }
    let mut by_thread = BTreeMap::new();
    for client in &mut clients {
        *by_thread.entry(client.name().await).or_insert(0) += 1;
    }
    assert_eq!(by_thread.len(), 3, "{by_thread:?}");
    assert!(by_thread.values().all(|count| (15..=25).contains(count)), "{by_thread:?}");
    stop.cancel();
    soon(workers.ended()).await;
}
