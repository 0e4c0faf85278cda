//! A cluster that runs, and what one does with it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use crate::Programs;
use crate::programs::root;

/// Address of the control plane's machine, in a network of its own.
pub const ADDRESS: &str = "10.250.0.1";
/// How long the cluster may take to start, beside other work.
const STARTED: Duration = Duration::from_secs(300);
/// How long a command may take.
const COMMAND: Duration = Duration::from_secs(150);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// A cluster that runs until it is dropped.
#[derive(Debug)]
pub struct Cluster {
    programs: Programs,
    folder: tempfile::TempDir,
    /// Below which all pods are.
    cgroup: String,
    /// What `cluster/up` takes.
    environment: Vec<(&'static str, String)>,
    process: Child,
    /// The first process of the cluster's pid namespace.
    init: u32,
}

impl Cluster {
    /// Starts a cluster of so many nodes with these images, beside `localhost/pause:1` and
    /// `localhost/web:1`. Nodes are `node-1` and so on, and not initialised.
    ///
    /// It ends at the latest with the thread that starts it.
    ///
    /// # Errors
    /// It did not start; the ends of its logs say why.
    pub fn start(
        programs: Programs,
        nodes: usize,
        images: &[(String, PathBuf)],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("ccm-realcluster-")
            .tempdir()?;
        let mut all = programs.small_images(folder.path())?;
        all.extend_from_slice(images);
        let images = all
            .iter()
            .map(|(name, file)| format!("{name}={}", file.display()));
        let cgroup = format!("ccm-realcluster-{}", std::process::id());
        let environment = vec![
            ("CLUSTER_STATE", folder.path().display().to_string()),
            ("CLUSTER_CGROUP", cgroup.clone()),
            ("CLUSTER_NODES", nodes.to_string()),
            ("CLUSTER_PATH", programs.path()),
            ("CLUSTER_CNI", programs.cni().display().to_string()),
            ("CLUSTER_IMAGES", images.collect::<Vec<_>>().join(" ")),
        ];
        let log = std::fs::File::create(folder.path().join("up.log"))?;
        // Whoever kills us kills the cluster.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc"])
            .arg(root().join("tests/realcluster/cluster/up"))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("run setpriv and unshare, of the package util-linux")?;
        let mut cluster = Self { programs, folder, cgroup, environment, process, init: 0 };
        cluster.wait_until_ready().with_context(|| cluster.logs())?;
        Ok(cluster)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let ready = self.folder.path().join("ready");
        let is_up = wait_for(STARTED, "cluster", || {
            let ended = self.process.try_wait()?.is_some();
            Ok((ended || ready.exists()).then_some(!ended))
        })?;
        anyhow::ensure!(is_up, "what starts the cluster has ended");
        let process = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
        self.init = children
            .split_whitespace()
            .next()
            .context("no child")?
            .parse()?;
        Ok(())
    }

    /// Folder for files of the cluster; it is there for all its processes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A program beside the control plane: in its network, and among its processes.
    pub fn hub(&self, program: impl AsRef<OsStr>) -> Command {
        self.hub_within(COMMAND, program)
    }

    /// The same for a program that may take longer than others.
    pub fn hub_within(&self, limit: Duration, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(["--target", &self.init.to_string(), "--net", "--mount", "--pid", "--"])
            .args(["timeout", "--kill-after", "5", &limit.as_secs().to_string()])
            .arg(program)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.programs.path()))
            .env("KUBECONFIG", self.folder.path().join("pki/admin.conf"))
            .env("HOME", self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// A program on a node.
    ///
    /// # Errors
    /// The node's process is not known.
    pub fn on(&self, node: usize, program: impl AsRef<OsStr>) -> anyhow::Result<Command> {
        let process = self.pid(&format!("node-{node}"))?;
        let mut command = self.hub("nsenter");
        command
            .args(["--target", &process, "--net", "--mount", "--uts", "--"])
            .arg(program);
        Ok(command)
    }

    /// Number of a process of the cluster, in its pid namespace.
    fn pid(&self, name: &str) -> anyhow::Result<String> {
        let file = self.folder.path().join("pid").join(name);
        let pid = std::fs::read_to_string(&file).with_context(|| format!("no {name}"))?;
        Ok(pid.trim().to_owned())
    }

    /// Starts a program beside the control plane, which goes on until the cluster ends. Its output
    /// is in `log/NAME.log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, name: &str, program: &Path, arguments: &[&str]) -> anyhow::Result<()> {
        let script = r#"name=$1; shift; setsid "$@" > "$CLUSTER_STATE/log/$name.log" 2>&1 < /dev/null & echo $! > "$CLUSTER_STATE/pid/$name""#;
        let mut command = self.hub("bash");
        command
            .args(["-c", script, "bash", name])
            .arg(program)
            .args(arguments);
        output(&mut command).map(drop)
    }

    /// Runs a script beside the control plane, which must succeed.
    ///
    /// # Errors
    /// It failed.
    pub fn bash(&self, script: &str) -> anyhow::Result<()> {
        output(self.hub("bash").args(["-euc", script])).map(drop)
    }

    /// Runs kubectl, which must succeed, and returns what it printed.
    ///
    /// # Errors
    /// It failed.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.hub("kubectl").args(arguments))
    }

    /// Runs `kubectl get … --output json`.
    ///
    /// # Errors
    /// It failed.
    pub fn get(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let text = output(
            self.hub("kubectl")
                .arg("get")
                .args(arguments)
                .args(["--output", "json"]),
        )?;
        serde_json::from_str(&text).context("read what kubectl printed")
    }

    /// Runs `kubectl apply` on manifests.
    ///
    /// # Errors
    /// It failed.
    pub fn apply(&self, manifests: &str) -> anyhow::Result<()> {
        let mut command = self.hub("kubectl");
        command.args(["apply", "--filename", "-"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("run kubectl")?;
        let mut input = child.stdin.take().context("no input")?;
        input.write_all(manifests.as_bytes())?;
        drop(input);
        judge(&command, child.wait_with_output()?).map(drop)
    }

    /// Runs helm, which must succeed, and returns what it printed.
    ///
    /// # Errors
    /// It failed.
    pub fn helm(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.hub(&self.programs.helm).args(arguments))
    }

    /// Kills a program of a node, such as `kubelet`, with all that its children still do.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&self, program: &str, node: usize) -> anyhow::Result<()> {
        let process = self.pid(&format!("{program}-{node}"))?;
        output(self.hub("kill").args(["-KILL", &process])).map(drop)
    }

    /// Switches a node off: everything that runs on it ends at once.
    ///
    /// # Errors
    /// Some process stays.
    pub fn switch_off(&self, node: usize) -> anyhow::Result<()> {
        for program in ["kubelet", "containerd", "kube-proxy"] {
            self.kill(program, node)?;
        }
        // Shims share the node's mounts; what they started is in its cgroup.
        let holder = self.pid(&format!("node-{node}"))?;
        let script = format!(
            "mounts=$(readlink /proc/{holder}/ns/mnt)\n\
             for process in /proc/[0-9]*; do\n\
               pid=${{process#/proc/}}\n\
               [ \"$pid\" != {holder} ] || continue\n\
               if [ \"$(readlink $process/ns/mnt)\" = \"$mounts\" ] || grep -q '{}/node-{node}/' $process/cgroup; then kill -KILL $pid; fi\n\
             done 2>/dev/null; true",
            self.cgroup
        );
        output(self.hub("bash").args(["-c", &script]))?;
        // What a machine loses with its memory.
        let script = "cut -d' ' -f2 /proc/mounts | grep -E '^/run/(containerd|netns)/' | sort -r | while read -r m; do umount -l \"$m\"; done; \
             rm -rf /run/containerd /run/netns; ip link show type veth | sed -n 's/^[0-9]*: \\(veth[^@:]*\\).*/\\1/p' | while read -r l; do ip link del \"$l\"; done";
        output(self.on(node, "bash")?.args(["-c", script])).map(drop)
    }

    /// Starts a node's programs again.
    ///
    /// # Errors
    /// They do not start.
    pub fn switch_on(&self, node: usize) -> anyhow::Result<()> {
        let up = root().join("tests/realcluster/cluster/up");
        output(self.hub(up).args(["node", &node.to_string()])).map(drop)
    }

    /// The ends of all logs, for whoever looks for the reason of a failure.
    pub fn logs(&self) -> String {
        let folder = self.folder.path();
        let mut files: Vec<_> = std::fs::read_dir(folder.join("log"))
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.push(folder.join("up.log"));
        files.sort();
        let mut text = String::new();
        for file in files {
            let log = std::fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(12)..];
            // Writing to a string cannot fail.
            let _ = writeln!(text, "--- {}\n{}", file.display(), tail.join("\n"));
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // With the first process go all others, with them mounts and networks.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !remove_cgroups(&self.cgroup) && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
    }
}

/// Removes the cgroups of a cluster; whether none is left.
fn remove_cgroups(name: &str) -> bool {
    let controllers = std::fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten();
    let roots: BTreeSet<PathBuf> = controllers
        .filter_map(|entry| entry.path().join(name).canonicalize().ok())
        .collect();
    for root in &roots {
        remove_folders(root);
    }
    roots.iter().all(|root| !root.exists())
}

/// Removes folders from below; those whose processes have not ended stay.
fn remove_folders(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_folders(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(folder);
}

/// Runs a command, which must succeed, and returns its standard output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().context("run nsenter")?;
    judge(command, output)
}

fn judge(command: &Command, output: Output) -> anyhow::Result<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    // Behind what enters the namespaces.
    let told = arguments.get(10..).unwrap_or_default().join(" ");
    anyhow::ensure!(
        output.status.success(),
        "{told}: {}: {}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    String::from_utf8(output.stdout).with_context(|| format!("read what {told} printed"))
}

/// Looks until there is what is waited for.
///
/// # Errors
/// It is not there in time, with the last reason, or looking fails for good: failures are taken for
/// "not yet" until the end.
pub fn wait_for<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let seen = look();
        if let Ok(Some(found)) = seen {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return match seen {
                Err(error) => Err(error.context(format!("no {what} within {limit:?}"))),
                _ => anyhow::bail!("no {what} within {limit:?}"),
            };
        }
        thread::sleep(LOOK);
    }
}
