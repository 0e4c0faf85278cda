//! A server of its own for each test, and kubectl runs against it with a private home.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use ccm_testkit::apiserver::{ApiServer, Options, Serving};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

/// No kubectl run takes longer on the slowest machine that is still of use.
const DEADLINE: Duration = Duration::from_secs(90);

/// The server, where kubectl finds it, and what kubectl may write.
pub(crate) struct Cluster {
    serving: Serving,
    home: TempDir,
    program: PathBuf,
}

/// What a run printed.
pub(crate) struct Ran {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let program = find().expect("a case without kubectl is ignored");
        let server = ApiServer::new(Options::default());
        let serving = server
            .serve((Ipv4Addr::LOCALHOST, 0).into())
            .await
            .expect("a loopback port can be had");
        let home = TempDir::new().unwrap();
        serving
            .write_kubeconfig(home.path().join("kubeconfig"))
            .unwrap();
        Self { serving, home, program }
    }

    /// Stops serving and waits for it.
    pub(crate) async fn stop(self) {
        self.serving.stop().await;
    }

    fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(&self.program);
        let home = self.home.path();
        command
            .args(args)
            .env_remove("KUBECTL_EXTERNAL_DIFF")
            .env("HOME", home)
            .env("KUBECACHEDIR", home.join("cache"))
            .env("KUBECONFIG", home.join("kubeconfig"))
            .env("NO_PROXY", "127.0.0.1,localhost")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl to its end.
    pub(crate) async fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        self.finish(self.command(args), args, input).await
    }

    /// Runs a kubectl that calls this command with a file to edit.
    pub(crate) async fn ok_with_editor(&self, args: &[&str], editor: &str) -> String {
        let mut command = self.command(args);
        command.env("KUBE_EDITOR", editor);
        let ran = self.finish(command, args, "").await;
        assert!(ran.success, "kubectl {args:?} failed\n{}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    async fn finish(&self, mut command: Command, args: &[&str], input: &str) -> Ran {
        let mut child = command.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output: Output = tokio::time::timeout(DEADLINE, child.wait_with_output())
            .await
            .unwrap_or_else(|_| panic!("kubectl {args:?} hangs"))
            .unwrap();
        Ran {
            success: output.status.success(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs kubectl, which must succeed, and returns what it printed.
    pub(crate) async fn ok(&self, args: &[&str]) -> String {
        self.ok_with_input(args, "").await
    }

    pub(crate) async fn ok_with_input(&self, args: &[&str], input: &str) -> String {
        let ran = self.run_with_input(args, input).await;
        assert!(ran.success, "kubectl {args:?} failed\n{}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Runs kubectl, which must fail, and returns what it complained about.
    pub(crate) async fn fails(&self, args: &[&str], input: &str) -> String {
        let ran = self.run_with_input(args, input).await;
        assert!(!ran.success, "kubectl {args:?} succeeded\n{}", ran.stdout);
        ran.stderr
    }

    /// The object that kubectl prints as JSON.
    pub(crate) async fn json(&self, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.extend(["-o", "json"]);
        serde_json::from_str(&self.ok(&args).await).unwrap()
    }

    /// Starts a kubectl that goes on until it is killed.
    pub(crate) fn start_running(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("kubectl starts")
    }

    /// Registers a ready node the way a kubelet would.
    pub(crate) async fn add_node(&self, name: &str, address: &str) {
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"node-role.kubernetes.io/worker": "", "zone": "a"}},
            "spec": {"taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]},
        });
        self.ok_with_input(&["create", "-f", "-"], &node.to_string())
            .await;
        let status = json!({"status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}],
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "nodeInfo": {
                "kubeletVersion": "v1.36.3", "osImage": "Test Linux", "kernelVersion": "6.1.0", "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.0.0", "operatingSystem": "linux",
            },
        }});
        self.ok(&[
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status.to_string(),
        ])
        .await;
    }
}

/// Finds kubectl.
///
/// # Errors
/// There is none: a reason to ignore what needs it.
pub(crate) fn find() -> Result<PathBuf, &'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path).map(|dir| dir.join("kubectl"));
    programs
        .find(|file| is_executable(file))
        .ok_or("no kubectl on PATH")
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Splits a printed table into rows of cells; columns are at least three spaces apart.
pub(crate) fn rows(table: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.split("   ")
            .map(str::trim)
            .filter(|c| !c.is_empty())
            .map(str::to_owned)
            .collect()
    };
    table
        .lines()
        .filter(|l| !l.trim().is_empty())
        .map(cells)
        .collect()
}
