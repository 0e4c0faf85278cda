//! Mistakes in the data plane itself: they are told, and end nothing but what they hit.

use std::{
    io,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing_subscriber::fmt::MakeWriter;

use super::fixture::{Client, VIP, listener, pool, soon};
use crate::dataplane::{
    frontend::{Endpoints, Frontend, Settings},
    tcp,
    workers::Workers,
};

pub(super) fn front(connection_limit: Option<u32>) -> Frontend {
    let stop = CancellationToken::new();
    let front = Frontend::new(
        "listener-7".into(),
        settings(connection_limit),
        stop.clone(),
        stop,
        TaskTracker::new(),
    );
    front.tasks.close();
    front
}

fn settings(connection_limit: Option<u32>) -> Settings {
    let mut config = listener("listener-7", pool([]));
    config.connection_limit = connection_limit;
    Settings { config, pool: None, tls: None }
}

/// The connection limit at which [`serve`] panics while a connection is accepted.
const BROKEN: Option<u32> = Some(100);

/// Answers `ok` to whoever says `x`; panics over anything else.
fn serve(
    mut client: TcpStream,
    _ends: Endpoints,
    _front: Arc<Frontend>,
    settings: Arc<Settings>,
) -> impl Future<Output = ()> + Send + 'static {
    assert!(settings.config.connection_limit != BROKEN, "broken before the connection");
    async move {
        drop(settings);
        let said = client.read_u8().await.unwrap();
        assert_eq!(said, b'x', "broken within the connection");
        client.write_all(b"ok\n").await.unwrap();
        // Until the client goes.
        let _ = client.read_u8().await;
    }
}

#[tokio::test]
async fn a_panic_is_counted_and_ends_one_connection_and_the_listener_is_set_up_again() {
    let stop = CancellationToken::new();
    let workers = Workers::new(NonZeroUsize::MIN.saturating_add(1), stop.clone());
    let front = Arc::new(front(None));
    let socket = tcp::bind(SocketAddr::new(VIP, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    tcp::listen(&socket, &front, &workers.all().unwrap(), &TaskTracker::new(), serve).unwrap();
    let say = async |word: &[u8]| {
        let mut client = Client::connect(address).await.unwrap();
        client.0.write_all(word).await.unwrap();
        client
    };
    let mut bystander = say(b"x").await;
    assert_eq!(bystander.line().await, "ok");

    // A socket closes before the panic is counted.
    let panics = async |count: u64| {
        soon(async {
            while front.counters().panics < count {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(front.counters().panics, count);
    };
    say(b"y").await.closed().await;
    panics(1).await;
    assert_eq!(front.counters().request_errors, 1);
    assert_eq!(say(b"x").await.line().await, "ok");

    // Each thread that accepts, more than once.
    front.set(settings(BROKEN));
    for _ in 0..6 {
        say(b"x").await.closed().await;
    }
    panics(7).await;
    front.set(settings(None));
    for _ in 0..6 {
        assert_eq!(say(b"x").await.line().await, "ok");
    }
    soon(async {
        while front.counters().active_connections > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    bystander.0.write_all(b"x").await.unwrap();
    bystander.closed().await;
    stop.cancel();
    soon(workers.ended()).await;
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn the_log_names_the_listener_of_a_panic_as_an_error() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_ansi(false)
        .finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let front = front(None);
    assert_eq!(
        front
            .guard("serve", async { panic!("broken {}", "pipe") })
            .await,
        None::<()>
    );
    assert_eq!(front.guard("serve", async { 1 }).await, Some(1));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in ["ERROR", "listener-7", "serve", "broken pipe"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
