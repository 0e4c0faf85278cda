//! Chart and images on a real cluster, whose kubelets run real pods.
//!
//! Each case has a cluster of its own, and they run one after the other.

mod aws_migration;
#[path = "../../../e2e/tests/support/commands.rs"]
mod guides;
mod kubelet_commands;
mod kubernetes;
mod life;
mod migration;
mod openstack;
mod release;
mod smoke;

use std::process::ExitCode;

use ccm_realcluster::{Cluster, Programs};
use ccm_testkit::suite::{Tier, failed};
use libtest_mimic::Arguments;

/// What a case does.
type Body = fn(Programs) -> anyhow::Result<()>;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // A cluster ends with the thread that started it, and two at once are too much for a small
    // machine.
    arguments.test_threads = Some(1);
    let tier = Tier::chosen()?;
    let cases: [(Tier, &str, Body); 6] = [
        (
            Tier::Full,
            "smoke::an_installed_chart_serves_a_cluster",
            smoke::an_installed_chart_serves_a_cluster,
        ),
        (
            Tier::Nightly,
            "life::a_release_lives_through_updates_crashes_and_restarts",
            life::a_release_lives_through_updates_crashes_and_restarts,
        ),
        (
            Tier::Nightly,
            "openstack::load_balancers_reach_pods",
            openstack::load_balancers_reach_pods,
        ),
        (
            Tier::Nightly,
            "migration::from_upstreams_manifests_and_chart_and_back",
            migration::from_upstreams_manifests_and_chart_and_back,
        ),
        (
            Tier::Nightly,
            "aws_migration::from_upstreams_aws_manifests_and_chart_and_back",
            aws_migration::from_upstreams_aws_manifests_and_chart_and_back,
        ),
        (
            Tier::Nightly,
            "kubernetes::own_tests_pass_or_fail_as_listed",
            kubernetes::own_tests_pass_or_fail_as_listed,
        ),
    ];
    let programs = Programs::find();
    let trials = cases.into_iter().filter_map(|(of, name, body)| {
        let found = programs.clone();
        let missing = programs.as_ref().err().cloned();
        of.case(tier, name, missing, move || {
            found
                .map_err(anyhow::Error::msg)
                .and_then(body)
                .map_err(failed)
        })
    });
    Ok(libtest_mimic::run(&arguments, trials.collect()).exit_code())
}

/// Runs a case on a cluster; the ends of all logs are told with a failure.
fn on(cluster: &Cluster, case: impl FnOnce(&Cluster) -> anyhow::Result<()>) -> anyhow::Result<()> {
    case(cluster).map_err(|error| {
        let events = cluster
            .kubectl(&["get", "events", "--all-namespaces", "--sort-by", "lastTimestamp"])
            .unwrap_or_default();
        let pods =
            cluster.kubectl(&["get", "pods", "--namespace", "kube-system", "--output", "name"]);
        let pods = pods.unwrap_or_default();
        let logs = pods.lines().flat_map(|pod| {
            ["--previous=true", "--previous=false"].map(|which| {
                cluster.kubectl(&["logs", pod, "--namespace", "kube-system", "--tail", "20", which])
            })
        });
        let logs: Vec<_> = logs.flatten().collect();
        error.context(format!("{}\n{events}\n{}", cluster.logs(), logs.join("\n---\n")))
    })
}
