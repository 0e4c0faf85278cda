//! The kit's runner says by its exit code and its report what became of a run, also when a provider cannot be stopped.
//! One test, because it hears every panic of its process.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test, and what is planted panics")]

#[path = "conformance/scripted.rs"]
mod scripted;
#[path = "conformance/wicked.rs"]
#[expect(dead_code, reason = "not every manner is shown here")]
mod wicked;

use std::{fs, io, process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::provider::CloudProvider;
use ccm_mock::{CloudConfig, MockCloud, MockProvider};
use ccm_testkit::conformance::{
    InjectedFault, InstanceCloud, Limits,
    runner::{Suite, run_with},
};
use libtest_mimic::Arguments;
use tokio::runtime::{Builder, Runtime};

use scripted::Scripted;
use wicked::{Manner, Place, Wicked};

/// The mock, within the limits of a test.
struct Quick(Scripted, Limits);

#[async_trait]
impl InstanceCloud for Quick {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        self.0.create(node).await
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        self.0.stop(node).await
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.0.start(node).await
    }

    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        self.0.terminate(node).await
    }

    async fn delete(&self, node: &str) -> anyhow::Result<()> {
        self.0.delete(node).await
    }

    async fn inject(&self, fault: InjectedFault) -> anyhow::Result<bool> {
        self.0.inject(fault).await
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.0.slow_down(latency).await
    }

    async fn restore(&self) -> anyhow::Result<()> {
        self.0.restore().await
    }

    async fn calls(&self) -> anyhow::Result<u64> {
        self.0.calls().await
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        self.0.fingerprint().await
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        self.0.malformed_provider_ids()
    }

    fn limits(&self) -> Limits {
        self.1
    }
}

fn paused() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().start_paused(true).build()
}

/// A suite on a provider that is wicked somewhere, or nowhere.
fn suite(bad: Option<(Place, Manner)>, limits: Limits) -> Suite {
    Suite::new("instances", paused, async move |watch| {
        let cloud = MockCloud::new(&CloudConfig::default())?;
        let made = cloud.clone();
        let make = move || {
            let inner = MockProvider::over(made.clone());
            async move {
                Ok(match bad {
                    Some((place, manner)) => {
                        Arc::new(Wicked::new(inner, place, manner).await) as Arc<dyn CloudProvider>
                    }
                    None => Arc::new(inner),
                })
            }
        };
        Ok(watch.instances(make, &Quick(Scripted(cloud), limits)).await)
    })
}

/// Runs suites; returns whether the exit code is 0, and the report.
fn outcome(suites: Vec<Suite>) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("below").join("report.xml");
    let arguments = Arguments { quiet: true, ..Arguments::default() };
    let code = run_with(arguments, suites, std::slice::from_ref(&file));
    let success = format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS);
    (success, fs::read_to_string(file).unwrap_or_default())
}

#[test]
fn a_run_ends_and_its_exit_code_says_how() {
    let long = Limits::default();
    let short = Limits { rule: Duration::from_millis(300), suite: Duration::from_secs(2) };
    let cases: [(&str, Vec<Suite>, bool, &str); 11] = [
        ("kept", vec![suite(None, long)], true, "failures=\"0\""),
        ("nothing to run", Vec::new(), false, ""),
        (
            "nothing was checked",
            vec![Suite::new("instances", paused, async |watch| {
                let make = || async { Ok(Arc::new(Nothing) as Arc<dyn CloudProvider>) };
                let cloud = Scripted(MockCloud::new(&CloudConfig::default())?);
                Ok(watch.instances(make, &cloud).await)
            })],
            false,
            "the provider has no instances",
        ),
        ("broken", vec![suite(Some((Place::Describe, Manner::Lies)), long)], false, "<failure"),
        (
            "excused and kept",
            vec![suite(None, long).excused(&[("read-only", "it writes")])],
            false,
            "it is kept, although",
        ),
        ("hangs", vec![suite(Some((Place::Describe, Manner::Hangs)), long)], false, "no answer within 60s"),
        ("panics", vec![suite(Some((Place::Describe, Manner::Panics)), long)], false, "panicked: planted"),
        (
            "panics in a task",
            vec![suite(Some((Place::Describe, Manner::SpawnsPanic)), long)],
            false,
            "something panicked meanwhile: planted in a task",
        ),
        (
            "keeps its thread",
            vec![suite(Some((Place::Describe, Manner::Blocks)), short), suite(None, long)],
            false,
            "keeps its thread",
        ),
        (
            "the author's part panics",
            vec![Suite::new("instances", paused, async |_| panic!("no account"))],
            false,
            "the suite panicked: no account",
        ),
        (
            "the author's part fails",
            vec![Suite::new("instances", paused, async |_| anyhow::bail!("no account"))],
            false,
            "the suite failed: no account",
        ),
    ];
    for (what, suites, kept, said) in cases {
        let (count, (success, xml)) = (suites.len(), outcome(suites));
        assert_eq!(success, kept, "{what}: {xml}");
        assert!(xml.contains(said), "{what}: {xml}");
        assert_eq!(xml.matches("<testsuite ").count(), count, "{what}: every suite is in the report: {xml}");
    }
}

/// A provider without anything.
struct Nothing;

impl CloudProvider for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }
}
