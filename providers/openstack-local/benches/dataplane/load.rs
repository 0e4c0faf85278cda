//! The clients.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::server::{ECHO, SOURCE};

/// Connections that download.
const DOWNLOADS: usize = 8;
/// Clients that connect, ask once and go.
const VISITORS: usize = 16;
/// Clients that stay and ask every [`PACE`]: with 100 of them 2,000 messages a second, far from
/// what any balancer can do.
const PACED: usize = 100;
const PACE: Duration = Duration::from_millis(50);
/// Clients that stay and ask as fast as they are answered.
const BUSY: usize = 32;
/// Bytes of a message.
const MESSAGE: usize = 256;
/// Idle connections that are opened at a time.
const OPENING: usize = 64;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadGenerator {
    pub(crate) time: Duration,
    pub(crate) idle: usize,
}

/// What was downloaded, in MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Downloaded {
    /// Per second.
    pub(crate) rate: f64,
    /// In all.
    pub(crate) all: f64,
}

/// What was seen of many askings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latencies {
    /// How many.
    pub(crate) count: f64,
    /// Per second.
    pub(crate) rate: f64,
    /// Microseconds.
    pub(crate) p50: f64,
    /// Microseconds.
    pub(crate) p99: f64,
}

impl Latencies {
    fn new(mut latencies: Vec<Duration>, time: Duration) -> anyhow::Result<Self> {
        latencies.sort_unstable();
        let at = |part: usize| {
            let index = (latencies.len() * part / 100).min(latencies.len().checked_sub(1)?);
            Some(latencies[index].as_secs_f64() * 1e6)
        };
        let count = latencies.len() as f64;
        let (p50, p99) = at(50).zip(at(99)).context("nothing was answered")?;
        Ok(Self { count, rate: count / time.as_secs_f64(), p50, p99 })
    }
}

impl LoadGenerator {
    /// As much as goes over a few connections.
    pub(crate) async fn download(&self, address: SocketAddr) -> anyhow::Result<Downloaded> {
        let received = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..DOWNLOADS {
            let received = received.clone();
            tasks.spawn(async move {
                let mut stream = connect(address, SOURCE).await?;
                let mut buffer = vec![0; 256 * 1024];
                loop {
                    let length = stream.read(&mut buffer).await?;
                    anyhow::ensure!(length > 0, "the stream has ended");
                    received.fetch_add(length as u64, Relaxed);
                }
            });
        }
        // The beginning is slow for everybody.
        sleep(Duration::from_millis(200)).await;
        let (begin, before) = (Instant::now(), received.load(Relaxed));
        tokio::select! {
            () = sleep(self.time) => {}
            Some(ended) = tasks.join_next() => { let () = ended??; }
        }
        let all = received.load(Relaxed);
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Ok(Downloaded {
            rate: mebibytes(all - before) / begin.elapsed().as_secs_f64(),
            all: mebibytes(all),
        })
    }

    /// Clients that connect, ask once and go.
    pub(crate) async fn connections(&self, address: SocketAddr) -> anyhow::Result<Latencies> {
        self.clients(VISITORS, move |end| async move {
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let begin = Instant::now();
                let mut stream = connect(address, ECHO).await?;
                ask(&mut stream).await?;
                latencies.push(begin.elapsed());
            }
            Ok(latencies)
        })
        .await
    }

    /// Clients that stay and ask now and then.
    pub(crate) async fn paced(&self, address: SocketAddr) -> anyhow::Result<Latencies> {
        self.clients(PACED, move |end| async move {
            let mut stream = connect(address, ECHO).await?;
            ask(&mut stream).await?;
            let mut latencies = Vec::new();
            sleep(PACE.mul_f64(rand::random())).await;
            let mut turn = interval(PACE);
            turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while Instant::now() < end {
                turn.tick().await;
                let begin = Instant::now();
                ask(&mut stream).await?;
                latencies.push(begin.elapsed());
            }
            Ok(latencies)
        })
        .await
    }

    /// Clients that stay and ask as fast as they are answered.
    pub(crate) async fn busy(&self, address: SocketAddr) -> anyhow::Result<Latencies> {
        self.clients(BUSY, move |end| async move {
            let mut stream = connect(address, ECHO).await?;
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let begin = Instant::now();
                ask(&mut stream).await?;
                latencies.push(begin.elapsed());
            }
            Ok(latencies)
        })
        .await
    }

    async fn clients<F>(
        &self,
        count: usize,
        client: impl Fn(Instant) -> F,
    ) -> anyhow::Result<Latencies>
    where
        F: Future<Output = anyhow::Result<Vec<Duration>>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        let end = Instant::now() + self.time;
        for _ in 0..count {
            tasks.spawn(client(end));
        }
        let mut latencies = Vec::new();
        for client in tasks.join_all().await {
            latencies.extend(client?);
        }
        Latencies::new(latencies, self.time)
    }

    /// Connections that have been served and are idle now.
    pub(crate) async fn hold(&self, address: SocketAddr) -> anyhow::Result<Vec<TcpStream>> {
        let mut tasks = JoinSet::new();
        let mut held = Vec::with_capacity(self.idle);
        for _ in 0..self.idle {
            if tasks.len() == OPENING
                && let Some(opened) = tasks.join_next().await
            {
                held.push(opened??);
            }
            tasks.spawn(async move {
                let mut stream = connect(address, ECHO).await?;
                ask(&mut stream).await?;
                anyhow::Ok(stream)
            });
        }
        for opened in tasks.join_all().await {
            held.push(opened?);
        }
        Ok(held)
    }
}

async fn connect(address: SocketAddr, mode: u8) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_u8(mode).await?;
    Ok(stream)
}

async fn ask(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut message = [1; MESSAGE];
    stream.write_all(&message).await?;
    stream
        .read_exact(&mut message)
        .await
        .context("the stream has ended")?;
    Ok(())
}
