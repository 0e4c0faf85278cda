//! Starting the other processes, and what they take of memory.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::server::READY;

const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// How long a process may take to be ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// Of the kernel's clock for what processes take, per second; the same on every Linux.
const TICKS: f64 = 100.0;

/// A process that serves; it ends with this value.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _child: Child,
}

/// A balancer's process or processes; they end with this value.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    child: Child,
    /// nginx's.
    files: Option<TempDir>,
}

/// Starts the server behind the balancers.
pub(crate) async fn server() -> anyhow::Result<Server> {
    let address = free(Ipv4Addr::new(127, 8, 0, 1))?;
    Ok(Server {
        address,
        _child: own(&["server", &address.to_string()]).await?,
    })
}

/// Whether there is an nginx with its stream module.
pub(crate) fn has_nginx() -> bool {
    nginx().is_some() && Path::new(STREAM_MODULE).exists()
}

fn nginx() -> Option<PathBuf> {
    ["/usr/sbin/nginx", "/usr/local/sbin/nginx"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
}

fn free(ip: Ipv4Addr) -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((IpAddr::V4(ip), 0))?.local_addr()?)
}

/// Starts this program in a role and waits until it is ready.
async fn own(args: &[&str]) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command
        .arg("--bench")
        .args(args)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = child
        .stdout
        .take()
        .context("the standard output is piped")?;
    let line = timeout(PATIENCE, BufReader::new(output).lines().next_line()).await??;
    ensure!(line.as_deref() == Some(READY), "{args:?} said {line:?}");
    Ok(child)
}

impl Balancer {
    /// `workers`: threads of ours, processes of nginx's.
    pub(crate) async fn start(
        name: &str,
        member: SocketAddr,
        workers: NonZeroUsize,
    ) -> anyhow::Result<Self> {
        let address = free(Ipv4Addr::new(127, 7, 0, 1))?;
        if name == "ours" {
            let listen = address.to_string();
            let child =
                own(&["balancer", &listen, &member.to_string(), &workers.to_string()]).await?;
            return Ok(Self { address, child, files: None });
        }
        let files = tempfile::tempdir()?;
        let config = files.path().join("nginx.conf");
        fs::write(&config, configuration(files.path(), address, member, workers))?;
        let mut command = Command::new(nginx().context("nginx is there")?);
        command
            .arg("-p")
            .arg(files.path())
            .arg("-e")
            .arg(files.path().join("error.log"))
            .arg("-c")
            .arg(&config);
        let child = command.kill_on_drop(true).spawn()?;
        let answers = async {
            while TcpStream::connect(address).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, answers)
            .await
            .context("nginx does not answer")?;
        Ok(Self { address, child, files: Some(files) })
    }

    /// The balancer's process and its children.
    fn processes(&self) -> anyhow::Result<Vec<String>> {
        let first = self.child.id().context("it runs")?;
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children"))?;
        Ok(children
            .split_whitespace()
            .map(ToOwned::to_owned)
            .chain([first.to_string()])
            .collect())
    }

    /// Microseconds that it has computed so far, to a hundredth of a second.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        let mut ticks = 0.0;
        for id in self.processes()? {
            let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
            // After the name, which may hold anything, time as user and as system are the 12th and
            // the 13th field.
            let (_, fields) = stat.rsplit_once(')').context("there is a name")?;
            for field in fields.split_whitespace().skip(11).take(2) {
                ticks += field.parse::<f64>()?;
            }
        }
        Ok(ticks * 1e6 / TICKS)
    }

    /// Memory in MiB, what processes share counted once.
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for id in self.processes()? {
            let map = fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
            let line = map
                .lines()
                .find_map(|line| line.strip_prefix("Pss:"))
                .context("there is a Pss line")?;
            let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
            sum += kib / 1024.0;
        }
        Ok(sum)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // nginx ends its workers itself when it is asked to, and would leave them when killed.
        if let (Some(_), Some(id)) = (&self.files, self.child.id()) {
            let _ = std::process::Command::new("kill")
                .arg(id.to_string())
                .status();
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// As Debian has it where nothing is said, but for the number of workers: `reuseport` off,
/// `multi_accept` off, no log of connections.
fn configuration(
    files: &Path,
    listen: SocketAddr,
    member: SocketAddr,
    workers: NonZeroUsize,
) -> String {
    let files = files.display();
    format!(
        "load_module {STREAM_MODULE};
daemon off;
worker_processes {workers};
worker_rlimit_nofile 20000;
pid {files}/nginx.pid;
events {{ worker_connections 19000; }}
stream {{
    access_log off;
    upstream members {{ server {member}; }}
    server {{
        listen {listen} backlog=4096;
        proxy_pass members;
        proxy_connect_timeout 5s;
        proxy_timeout 50s;
    }}
}}
"
    )
}
