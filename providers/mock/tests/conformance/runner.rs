//! The kit's runner says by its exit code and its report what became of a run, also when a provider
//! cannot be stopped. One test in a process of its own, because it hears every panic of its
//! process.

use std::{fs, io, process::ExitCode, sync::Arc, time::Duration};

use ccm_core::provider::CloudProvider;
use ccm_mock::{CloudConfig, MockCloud, MockProvider};
use ccm_testkit::conformance::{
    Limits,
    runner::{Suite, run_with},
};
use libtest_mimic::Arguments;
use tokio::runtime::{Builder, Runtime};

use crate::{
    adapter::MockAdapter,
    misbehaving::{MisbehavingMethod, MisbehavingProvider, Misbehaviour},
    scripted::Scripted,
    separate_process::{self, SeparateProcess},
    time_limits::Adapter,
};

fn paused() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
}

/// A suite on a provider that is wicked somewhere, or nowhere.
fn suite(bad: Option<(MisbehavingMethod, Misbehaviour)>, limits: Limits) -> Suite {
    Suite::new("instances", paused, async move |watch| {
        let cloud = MockCloud::new(&CloudConfig::default())?;
        let made = cloud.clone();
        let make = move || {
            let inner = MockProvider::new_in_process(made.clone());
            async move {
                Ok(match bad {
                    Some((place, manner)) => {
                        Arc::new(MisbehavingProvider::new(inner, place, manner).await)
                            as Arc<dyn CloudProvider>
                    }
                    None => Arc::new(inner),
                })
            }
        };
        Ok(watch
            .instances(make, &Adapter::sound(Scripted(cloud), limits))
            .await)
    })
}

/// A suite of what happens in a cloud, on the mock as it is.
fn scripted(name: &'static str) -> Suite {
    Suite::new(name, paused, async move |watch| {
        let stage = MockAdapter::new(CloudConfig::default());
        let made = stage.clone();
        let make = move || {
            let provider = made.provider();
            async move { Ok(Arc::new(provider) as Arc<dyn CloudProvider>) }
        };
        Ok(match name {
            "routes" => watch.routes(make, &stage).await,
            _ => watch.load_balancers(make, &stage).await,
        })
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

#[tokio::test]
async fn a_run_ends_and_its_exit_code_says_how() {
    let output = match separate_process::run("runner::a_run_ends_and_its_exit_code_says_how").await
    {
        // It makes runtimes of its own.
        SeparateProcess::Here => return tokio::task::spawn_blocking(runs_end).await.unwrap(),
        SeparateProcess::Ended(output) => output,
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The mock's changes have taken effect when they are answered.
const NEVER_PENDING: &[(&str, &str)] =
    &[("slow-change", "never pending"), ("late-failure", "never pending")];

// length: a table of runs
fn runs_end() {
    let long = Limits::default();
    let short = Limits {
        rule: Duration::from_millis(300),
        suite: Duration::from_secs(2),
    };
    let everything = [suite(None, long), scripted("load balancers"), scripted("routes")];
    let cases: [(&str, Vec<Suite>, bool, &str); 12] = [
        ("kept", vec![suite(None, long)], true, "failures=\"0\""),
        (
            "kept but for what the mock never does",
            everything
                .into_iter()
                .zip([&[][..], NEVER_PENDING, NEVER_PENDING])
                .map(|(suite, excuses)| suite.excused(excuses))
                .collect(),
            true,
            "failures=\"0\"",
        ),
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
        (
            "broken",
            vec![suite(Some((MisbehavingMethod::Describe, Misbehaviour::Lies)), long)],
            false,
            "<failure",
        ),
        (
            "excused and kept",
            vec![suite(None, long).excused(&[("read-only", "it writes")])],
            false,
            "it is kept, although",
        ),
        (
            "hangs",
            vec![suite(Some((MisbehavingMethod::Describe, Misbehaviour::Hangs)), long)],
            false,
            "no answer within 60s",
        ),
        (
            "panics",
            vec![suite(Some((MisbehavingMethod::Describe, Misbehaviour::Panics)), long)],
            false,
            "panicked: planted",
        ),
        (
            "panics in a task",
            vec![suite(Some((MisbehavingMethod::Describe, Misbehaviour::SpawnsPanic)), long)],
            false,
            "something panicked meanwhile: planted in a task",
        ),
        (
            "blocks its thread",
            vec![
                suite(Some((MisbehavingMethod::Describe, Misbehaviour::Blocks)), short),
                suite(None, long),
            ],
            false,
            "blocks its thread",
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
        assert_eq!(
            xml.matches("<testsuite ").count(),
            count,
            "{what}: every suite is in the report: {xml}"
        );
    }
}

/// A provider without anything.
struct Nothing;

impl CloudProvider for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }
}
