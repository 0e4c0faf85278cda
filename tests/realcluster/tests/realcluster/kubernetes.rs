//! Kubernetes' own end-to-end tests, as they are, judge the manager, its chart and the OpenStack
//! provider: those of load balancers and of a cloud's nodes.
//!
//! What becomes of each is listed in `kubernetes-tests.yaml`. It is an error if a test that should
//! pass fails, if one that should fail passes, and if one does not run.

use std::collections::{BTreeSet, VecDeque};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ccm_realcluster::archive::{self, Image};
use ccm_realcluster::{ADDRESS, Cluster, Programs, wait_for};
use ccm_testkit::control_plane::GoProgram;
use serde::Deserialize;

use crate::openstack::{self, VALUES};
use crate::release::{SOON, helm, leader, wait_for_nodes};

/// Tests that have to be listed.
const ALL_OF: [&str; 2] = ["[Feature:LoadBalancer]", "[sig-cloud-provider]"];
/// Those of a cloud's nodes, which delete one.
const OF_NODES: &str = "[sig-cloud-provider]";
/// How many tests run side by side: they wait most of the time.
const AT_ONCE: usize = 4;
/// A test that takes longer hangs. A Service that gets no load balancer is waited for fifteen
/// minutes.
const LIMIT: Duration = Duration::from_mins(25);

/// The name service of pods: the Service that kubelets tell them of, and CoreDNS behind it.
const DNS: &str = r"
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [10.250.0.1]}]
ports: [{name: dns, port: 53, protocol: UDP}]
";

/// Deletes the machine of the node that it is given.
const DELETE_NODE: &str = r#"#!/bin/sh
echo "$1" > "$CLUSTER_STATE/deleted-servers"
kill "$(cat "$CLUSTER_STATE/pid/kubelet-${1#node-}")"
"#;

/// What becomes of the tests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    passes: Vec<String>,
    fails: Vec<ExpectedFailure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedFailure {
    test: String,
    /// For people.
    #[serde(rename = "reason")]
    _reason: String,
    /// A text in the failure's message.
    failure: String,
}

/// What became of a test.
enum Outcome {
    Passed,
    /// With its message.
    Failed(String),
    /// With the reason, if it gives one.
    NotRun(String),
}

pub(crate) fn own_tests_pass_or_fail_as_listed(programs: Programs) -> anyhow::Result<()> {
    let suite = Suite::find()?;
    let list = suite.list()?;
    let folder = tempfile::tempdir()?;
    let images = [openstack::image(&programs, folder.path())?, suite.image(folder.path())?];
    let cluster = Cluster::start(programs, 2, &images)?;
    crate::on(&cluster, |cluster| {
        // First, what tests need beside the manager: names, and ways to load balancers.
        let routes = format!(
            "sysctl -qw net.ipv4.conf.all.route_localnet=1; ip route add 10.251.0.0/24 dev lan src {ADDRESS}"
        );
        cluster.bash(&routes)?;
        suite.start_name_service(cluster)?;
        openstack::start_cloud_with(cluster, &["--floating-ips"])?;

        // Next, the manager.
        helm(cluster, "install", &["--set", VALUES])?;
        wait_for(SOON, "leader", || leader(cluster))?;
        wait_for_nodes(cluster)?;
        // Tests look for a node that is none of the control plane.
        cluster.kubectl(&["label", "node", "node-2", "node-role.kubernetes.io/control-plane-"])?;

        // Last, the tests: those that delete a node when no other runs.
        let outcomes = suite.run(cluster, &list)?;
        let differences: Vec<_> = outcomes
            .iter()
            .filter_map(|(test, outcome)| list.difference(test, outcome))
            .collect();
        anyhow::ensure!(
            differences.is_empty(),
            "not as in kubernetes-tests.yaml; logs are in {}:\n{}",
            suite.logs.display(),
            differences.join("\n")
        );
        Ok(())
    })
}

impl List {
    fn tests(&self) -> impl Iterator<Item = &str> {
        // The longest first, and those are the ones that wait in vain.
        let fails = self.fails.iter().map(|failure| &*failure.test);
        fails.chain(self.passes.iter().map(|test| &**test))
    }

    /// How an outcome differs from what is listed.
    fn difference(&self, test: &str, outcome: &Outcome) -> Option<String> {
        let expected = self.fails.iter().find(|failure| failure.test == test);
        match (outcome, expected) {
            (Outcome::Passed, None) => None,
            (Outcome::Failed(message), Some(expected)) if message.contains(&expected.failure) => {
                None
            }
            (Outcome::Passed, Some(_)) => Some(format!("{test}: passes, and is listed as failing")),
            (Outcome::Failed(message), Some(_)) => {
                Some(format!("{test}: fails for another reason than the listed one: {message}"))
            }
            (Outcome::Failed(message), None) => Some(format!("{test}: fails: {message}")),
            (Outcome::NotRun(reason), _) => Some(format!("{test}: did not run: {reason}")),
        }
    }
}

/// The programs, and where their output goes.
struct Suite {
    folder: PathBuf,
    node_tests: PathBuf,
    name_service: PathBuf,
    logs: PathBuf,
}

impl Suite {
    fn find() -> anyhow::Result<Self> {
        let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes-tests");
        std::fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        Ok(Self {
            folder: Programs::kubernetes_tests().map_err(anyhow::Error::msg)?,
            node_tests: GoProgram::NodeTests.find().map_err(anyhow::Error::msg)?,
            name_service: GoProgram::Coredns.find().map_err(anyhow::Error::msg)?,
            logs,
        })
    }

    fn program(&self) -> PathBuf {
        self.folder.join("e2e.test")
    }

    /// Asks the tests' program for a list.
    fn ask(&self, what: &str) -> anyhow::Result<String> {
        let output = Command::new(self.program()).arg(what).output();
        let output = output.context("run e2e.test")?;
        anyhow::ensure!(output.status.success(), "e2e.test {what}: {}", output.status);
        String::from_utf8(output.stdout).context("read what e2e.test printed")
    }

    /// Reads what is expected, of exactly the tests that there are.
    fn list(&self) -> anyhow::Result<List> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/kubernetes-tests.yaml");
        let text = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
        let list: List = serde_saphyr::from_str(&text).with_context(|| format!("read {file}"))?;
        let all = self.ask("--list-tests")?;
        // Lines are `FILE.go:LINE: NAME`.
        let names = all
            .lines()
            .filter_map(|line| Some(line.split_once(".go:")?.1.split_once(": ")?.1));
        let names: BTreeSet<_> = names.collect();
        let listed: BTreeSet<_> = list.tests().collect();
        let unknown: Vec<_> = listed.difference(&names).collect();
        anyhow::ensure!(unknown.is_empty(), "{file} has tests that do not exist: {unknown:#?}");
        let missing: Vec<_> = names
            .difference(&listed)
            .filter(|name| ALL_OF.iter().any(|all| name.contains(all)))
            .collect();
        anyhow::ensure!(missing.is_empty(), "{file} lacks tests: {missing:#?}");
        Ok(list)
    }

    /// Makes the image of the tests' pods.
    fn image(&self, folder: &Path) -> anyhow::Result<(String, PathBuf)> {
        let names = self.ask("--list-images")?;
        // The newest: older ones are for tests of an upgrade.
        let name = names
            .lines()
            .filter(|name| name.contains("/e2e-test-images/agnhost:"))
            .max_by_key(|name| version(name))
            .context("e2e.test needs no agnhost")?;
        let file = folder.join("agnhost.tar");
        let image = Image {
            user: "0:0",
            path: "/agnhost",
            is_entrypoint: true,
            program: &self.folder.join("agnhost"),
            files: Some(&self.folder.join("image")),
        };
        archive::write(&image, &file)?;
        Ok((name.to_owned(), file))
    }

    fn start_name_service(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let kubeconfig = cluster.folder().join("pki/admin.conf");
        let corefile = format!(
            ".:53 {{\n errors\n kubernetes cluster.local {{\n  kubeconfig {}\n }}\n}}\n",
            kubeconfig.display()
        );
        let file = cluster.folder().join("Corefile");
        std::fs::write(&file, corefile)?;
        cluster.spawn("coredns", &self.name_service, &["-conf", &file.display().to_string()])?;
        cluster.apply(DNS)
    }

    /// Runs all tests of a list.
    fn run(&self, cluster: &Cluster, list: &List) -> anyhow::Result<Vec<(String, Outcome)>> {
        let (of_nodes, others): (Vec<_>, Vec<_>) =
            list.tests().partition(|test| test.contains(OF_NODES));
        let waiting = Mutex::new(others.into_iter().enumerate().collect::<VecDeque<_>>());
        let outcomes = Mutex::new(Vec::new());
        let work = || -> anyhow::Result<()> {
            loop {
                let next = waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pop_front();
                let Some((number, test)) = next else {
                    return Ok(());
                };
                let mut command = cluster.hub_within(LIMIT, self.program());
                command.arg("--provider=skeleton");
                let outcome = self.run_one(&mut command, test, &number.to_string())?;
                let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                outcomes.push((test.to_owned(), outcome));
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker
                    .join()
                    .map_err(|_| anyhow::anyhow!("a test run panicked"))?
            })
        })?;
        let mut outcomes = outcomes
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for test in of_nodes {
            outcomes.push((test.to_owned(), self.delete_a_node(cluster, test)?));
        }
        Ok(outcomes)
    }

    /// Runs the test that deletes a node, of which there is one to choose.
    fn delete_a_node(&self, cluster: &Cluster, test: &str) -> anyhow::Result<Outcome> {
        cluster.kubectl(&["cordon", "node-1"])?;
        let script = cluster.folder().join("delete-node");
        std::fs::write(&script, DELETE_NODE)?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        let mut command = cluster.hub_within(LIMIT, &self.node_tests);
        // The tests are for this provider, which the program has made one of ours.
        command.arg("--provider=aws").env("DELETE_NODE", &script);
        self.run_one(&mut command, test, "nodes")
    }

    /// Runs one test; its output goes to a log.
    fn run_one(&self, command: &mut Command, test: &str, log: &str) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        let log = self.logs.join(format!("{log}.log"));
        let file =
            std::fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let status = command
            .args(["--ginkgo.no-color", "--ginkgo.v"])
            .arg(format!("--ginkgo.focus={}", escape(test)))
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
            .context("run nsenter")?;
        let text =
            std::fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
        let outcome = Outcome::of(&text);
        let what = match &outcome {
            Outcome::Passed => "passed",
            Outcome::Failed(_) => "failed",
            Outcome::NotRun(_) => "not run",
        };
        let line = format!("{what} after {} s ({status}): {test}\n", started.elapsed().as_secs());
        std::fs::write(log.with_extension("outcome"), line)?;
        Ok(outcome)
    }
}

impl Outcome {
    /// Reads what a run of one test printed.
    fn of(log: &str) -> Self {
        // The message is in the summary, at the end. What was expected may be told in the lines that
        // follow it.
        let message = |kind: &str| {
            let lines: Vec<_> = log.lines().map(str::trim).collect();
            let at = lines.iter().rposition(|line| line.starts_with(kind));
            let message = at.map(|at| &lines[at..]).unwrap_or_default();
            let end = message.iter().position(|line| line.starts_with("----"));
            message[..end.unwrap_or(message.len())].join(" ")
        };
        match counts(log) {
            Some((1, 0)) => Self::Passed,
            Some((0, 1)) => Self::Failed(message("[FAILED] ")),
            Some((passed, failed)) => {
                let reason = message("[SKIPPED] ");
                Self::NotRun(format!("{passed} passed and {failed} failed; {reason}"))
            }
            None => Self::NotRun("it printed no summary".to_owned()),
        }
    }
}

/// How many tests passed and failed, by `1 Passed | 0 Failed | …` in a log. Other output may stand
/// in the same line before it.
fn counts(log: &str) -> Option<(u32, u32)> {
    let (before, after) = log.rsplit_once(" Passed | ")?;
    let passed = before
        .rsplit(|letter: char| !letter.is_ascii_digit())
        .next()?;
    let failed = after.split_once(" Failed")?.0;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

/// Version of an image, as numbers.
fn version(image: &str) -> Vec<u32> {
    let version = image.rsplit(':').next().unwrap_or_default();
    version
        .split('.')
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// Makes a regular expression that matches exactly this text.
fn escape(text: &str) -> String {
    let mut expression = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            expression.push('\\');
        }
        expression.push(letter);
    }
    expression
}
