//! Connections to the cloud's own port.

use std::{io, time::Duration};

use axum::{Router, body::Body};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Delay after an accept failed for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until cancelled, and then until the last connection has ended: requests have `grace` to
/// be answered, and connections that are open after that are cut. HTTP/1 only, which is what
/// clients use without TLS.
///
/// # Errors
/// The socket does not listen.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    grace: Duration,
    cancel: &CancellationToken,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let accepting = accept(&listener, &router, cancel, &mut connections);
    let result = cancel
        .run_until_cancelled(accepting)
        .await
        .unwrap_or(Ok(()));
    drop(listener);
    let ending = async {
        while let Some(ended) = connections.join_next().await {
            complain(ended);
        }
    };
    if timeout(grace, ending).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "connections are cut that did not end in time"
        );
        connections.shutdown().await;
    }
    result
}

async fn accept(
    listener: &TcpListener,
    router: &Router,
    cancel: &CancellationToken,
    connections: &mut JoinSet<()>,
) -> io::Result<()> {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = connections.join_next() => {
                complain(ended);
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                drop(connections.spawn(connection(stream, router.clone(), cancel.clone())));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Logs a panic: the client only sees that its connection is closed.
fn complain(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a request has panicked");
    }
}

async fn connection(stream: TcpStream, router: Router, cancel: CancellationToken) {
    // If this fails, the socket is closed already.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(
        router.map_request(|request: http::Request<Incoming>| request.map(Body::new)),
    );
    let mut serving =
        std::pin::pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = cancel.cancelled() => {
            // The current request is answered, a further one is not read.
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection has failed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::Notify,
        task::JoinHandle,
    };

    use super::*;

    /// Longer than anything here takes on a busy machine.
    const SOON: Duration = Duration::from_secs(20);

    struct Served {
        serving: JoinHandle<io::Result<()>>,
        client: TcpStream,
        cancel: CancellationToken,
        /// Rings when the request has arrived.
        arrived: Arc<Notify>,
        /// Lets it be answered. As long as anything of the router lives there is another owner.
        answer: Arc<Notify>,
    }

    /// A server that has got a request.
    async fn served(grace: Duration) -> Served {
        let (arrived, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let notes = (arrived.clone(), answer.clone());
        let slow = async move || {
            notes.0.notify_one();
            notes.1.notified().await;
            "answer"
        };
        let router = Router::new()
            .route("/", get(slow))
            .route("/panic", get(async || -> &'static str { panic!("broken") }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let serving = tokio::spawn(async move { serve(listener, router, grace, &stop).await });
        timeout(SOON, arrived.notified()).await.unwrap();
        Served { serving, client, cancel, arrived, answer }
    }

    #[tokio::test]
    async fn the_end_waits_for_the_answer_of_a_request_under_way() {
        let mut served = served(SOON).await;
        served.cancel.cancel();
        let early = timeout(Duration::from_millis(50), &mut served.serving).await;
        assert!(early.is_err(), "a request is still to be answered");
        served.answer.notify_one();
        timeout(SOON, served.serving)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(Arc::strong_count(&served.answer), 1, "nothing is left that serves");
        let mut answer = String::new();
        timeout(SOON, served.client.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nanswer"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn what_does_not_end_in_time_is_cut_before_the_server_is_gone() {
        let mut served = served(Duration::from_millis(50)).await;
        served.cancel.cancel();
        timeout(SOON, served.serving)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(Arc::strong_count(&served.answer), 1, "nothing is left that serves");
        // Closed or reset.
        assert_eq!(
            timeout(SOON, served.client.read(&mut [0]))
                .await
                .unwrap()
                .unwrap_or(0),
            0
        );
    }

    #[tokio::test]
    async fn a_request_that_panics_ends_its_own_connection_only() {
        let mut served = served(SOON).await;
        let address = served.client.peer_addr().unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        other
            .write_all(b"GET /panic HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(
            timeout(SOON, other.read(&mut [0]))
                .await
                .unwrap()
                .unwrap_or(0),
            0
        );
        let mut other = TcpStream::connect(address).await.unwrap();
        other
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        timeout(SOON, served.arrived.notified()).await.unwrap();
        served.cancel.cancel();
        served.answer.notify_waiters();
        timeout(SOON, served.serving)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let mut answer = String::new();
        timeout(SOON, served.client.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(answer.ends_with("answer"), "{answer}");
    }
}
