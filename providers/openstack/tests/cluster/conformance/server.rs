//! The local cloud as a server.
//!
//! The kit and the provider run under paused time: waits cost nothing, and how long a call of the
//! provider sleeps is seen to the millisecond. The server and the requests to it are in another
//! runtime, whose time is real; while a request is under way, the paused clock stands still, as it
//! does for every blocking task. There is one thread for such tasks, so that a request whose caller
//! has gone is carried out before the next one. The cloud's clock follows the paused one.

use std::{future::Future, io, sync::Arc};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use ccm_openstack::client::{Https, Transport, TransportError};
use http::{Request, Response};
use openstack_local::server::{LocalCloud, Settings, TimeSource};
use parking_lot::Mutex;
use tokio::{net::TcpListener, runtime::Handle, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::adapter::cloud::{CloudBackend, Site};

/// Servers, of which one runs at a time.
pub(crate) struct Remote {
    real: Handle,
    running: Mutex<Option<Running>>,
}

struct Running {
    cancel: CancellationToken,
    served: JoinHandle<io::Result<()>>,
}

impl Remote {
    /// Makes servers in the runtime whose time is real.
    pub(crate) fn new(real: Handle) -> Self {
        Self { real, running: Mutex::default() }
    }

    /// Stops the server that runs.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let Some(running) = self.running.lock().take() else {
            return Ok(());
        };
        running.cancel.cancel();
        let served = really(&self.real, running.served).await;
        served
            .context("the server panicked")?
            .context("the server failed")
    }
}

/// Does something in real time.
async fn really<T: Send + 'static>(
    real: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let real = real.clone();
    tokio::task::spawn_blocking(move || real.block_on(work))
        .await
        .expect("work in real time does not panic")
}

#[async_trait]
impl CloudBackend for Remote {
    async fn start(&self) -> anyhow::Result<Site> {
        self.stop().await?;
        let local =
            LocalCloud::in_memory(Settings { time: TimeSource::System, ..Settings::default() });
        let listener = really(&self.real, TcpListener::bind("127.0.0.1:0")).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let cancel = CancellationToken::new();
        let (serving, stop) = (local.clone(), cancel.clone());
        let served = self
            .real
            .spawn(async move { serving.serve(listener, stop).await });
        *self.running.lock() = Some(Running { cancel, served });
        let mut site = Site { transport: Arc::new(NoWay), local, url };
        let https = Https::new(&site.settings()?.cloud, &[])?;
        let (real, local, last) =
            (self.real.clone(), site.local.clone(), Mutex::new(Instant::now()));
        site.transport = Arc::new(Wire { https: Arc::new(https), real, local, last });
        Ok(site)
    }

    /// A request takes a millisecond or two, and there are some ten thousand at every call.
    fn stride(&self) -> usize {
        7
    }
}

/// Before there is one.
struct NoWay;

#[async_trait]
impl Transport for NoWay {
    async fn send(&self, _: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        Err(TransportError {
            message: "there is no way yet".to_owned(),
            maybe_sent: false,
            source: None,
        })
    }
}

/// The provider's client, reached from paused time.
struct Wire {
    https: Arc<Https>,
    real: Handle,
    local: LocalCloud,
    /// Up to when the cloud's clock has followed.
    last: Mutex<Instant>,
}

#[async_trait]
impl Transport for Wire {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let passed = {
            let mut last = self.last.lock();
            let now = Instant::now();
            now.saturating_duration_since(std::mem::replace(&mut *last, now))
        };
        self.local.cloud().clock.advance(passed);
        let https = self.https.clone();
        really(&self.real, async move { https.send(request).await }).await
    }
}
