//! The page of explanations of the demo, as a browser shows it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ccm_e2e::https_endpoints::get;
use ccm_testkit::suite::Tier;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use crate::async_cases;
use crate::demo::{LIMIT, STAYS, demo, said};
use crate::plain::{Case, needing};

pub(crate) fn cases() -> Vec<Case> {
    let cases = needing(missing(), async_cases![a_browser_shows_the_page_and_loads_nothing_else]);
    cases
        .into_iter()
        .map(|case| Case { tier: Tier::Full, ..case })
        .collect()
}

const BROWSER: &str = "chromium";
/// What somebody wrote into a Node.
const HOSTILE: &str = "other://<script>document.title='changed'</script>";
/// Names the folder that gets the screenshots.
const SCREENSHOTS: &str = "CCM_SCREENSHOTS";
/// How long the page may take to show a change.
const SOON: Duration = Duration::from_secs(30);

/// Why no browser can be started.
fn missing() -> Option<String> {
    let version = std::process::Command::new(BROWSER)
        .arg("--version")
        .stderr(Stdio::null())
        .output();
    let runs = version.is_ok_and(|output| output.status.success());
    (!runs).then(|| format!("no {BROWSER} on PATH (Debian's package {BROWSER})"))
}

async fn a_browser_shows_the_page_and_loads_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--nodes", "3"]).await;
    demo.logged(STAYS, LIMIT).await.unwrap();
    let line = said(&demo, "explanations").display().to_string();
    let address = line.split_whitespace().next().unwrap().to_owned();
    let port = address
        .strip_prefix("https://127.0.0.1:")
        .and_then(|rest| rest.strip_suffix("/explain/"))
        .unwrap_or_else(|| panic!("{address}"))
        .parse()
        .unwrap();
    create_hostile_node(&said(&demo, "kubeconfig")).await;
    until_shown(port).await;

    let browser = Browser { folder: folder.path().to_owned() };
    let shown = browser.open(&address, 1100).await;
    let document = &shown.document;
    assert!(document.contains("<title>Explanations: mock</title>"), "{document}");
    for heading in
        ["What waits, and why", "Nodes", "Services", "Routes", "Queues", "Cloud calls", "Checks"]
    {
        assert!(document.contains(&format!(">{heading}</h2>")), "{heading}: {document}");
    }
    for row in ["nodes/node-0?format=text", "services/default/web?format=text"] {
        assert!(document.contains(&format!("<th scope=\"row\"><a href=\"{row}\">")), "{row}");
    }
    // What others wrote is text, and no script ran.
    assert!(document.contains("&lt;script&gt;document.title='changed'"), "{document}");
    assert!(!document.contains("<script"), "{document}");
    let root = address.strip_suffix("explain/").unwrap();
    let expected: BTreeSet<String> = ["explain/", "explain/style.css"]
        .map(|path| format!("{root}{path}"))
        .into();
    assert_eq!(shown.requests, expected, "a page loads itself and its style sheet");
    assert!(!shown.log.contains("Content Security Policy"), "{}", shown.log);

    // A filter, in a narrow window.
    let narrow = browser
        .open(&format!("{address}?filter=hostile&refresh=off"), 500)
        .await;
    assert!(narrow.document.contains("nodes/hostile?format=text"), "{}", narrow.document);
    assert!(!narrow.document.contains("nodes/node-0"), "{}", narrow.document);
    // The links lead somewhere.
    let (status, text) = get(port, "/explain/nodes/hostile?format=text", None)
        .await
        .unwrap();
    assert!(status == 200 && text.contains("NodeOfAnotherProvider"), "{status}: {text}");
    // Only the explanations are open to everybody.
    let (status, _) = get(port, "/configz", None).await.unwrap();
    assert_eq!(status, 503);
    demo.terminate().await.unwrap();
}

/// Creates a Node of another provider with markup in its provider ID.
async fn create_hostile_node(kubeconfig: &Path) {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options)
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(kube::Client::try_from(config).unwrap());
    let node = json!({"metadata": {"name": "hostile"}, "spec": {"providerID": HOSTILE}});
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node).unwrap())
        .await
        .unwrap();
}

async fn until_shown(port: u16) {
    let deadline = Instant::now() + SOON;
    loop {
        let (status, page) = get(port, "/explain/", None).await.unwrap();
        if status == 200 && page.contains("NodeOfAnotherProvider") {
            return;
        }
        assert!(Instant::now() < deadline, "{status}: {page}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Starts headless browsers, each with a profile of its own.
struct Browser {
    folder: PathBuf,
}

/// What a browser made of a page.
struct ShownPage {
    /// The document after everything was loaded.
    document: String,
    /// The addresses that pages requested, without queries.
    requests: BTreeSet<String>,
    /// What the browser logged, with the messages of its console.
    log: String,
}

impl Browser {
    /// Opens a page in a window of this width.
    async fn open(&self, address: &str, width: u32) -> ShownPage {
        let place = self.folder.join(format!("browser-{width}"));
        std::fs::create_dir(&place).unwrap();
        let net_log = place.join("net.json");
        let image = match std::env::var_os(SCREENSHOTS) {
            Some(folder) => PathBuf::from(folder).join(format!("explain-page-{width}.png")),
            None => place.join("page.png"),
        };
        let mut command = Command::new(BROWSER);
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .args(["--no-first-run", "--disable-sync", "--disable-extensions"])
            // The demo's certificate is its own.
            .args(["--ignore-certificate-errors", "--enable-logging=stderr", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", place.join("profile").display()))
            .arg(format!("--log-net-log={}", net_log.display()))
            .arg(format!("--window-size={width},1500"))
            .arg(format!("--screenshot={}", image.display()))
            .args(["--dump-dom", address])
            .env("HOME", &place)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output()).await;
        let output = output.expect("the browser ends").unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{log}");
        let size = std::fs::metadata(&image).map_or(0, |image| image.len());
        assert!((5_000..200_000).contains(&size), "the screenshot has {size} bytes: {log}");
        ShownPage {
            document: String::from_utf8_lossy(&output.stdout).into_owned(),
            requests: requested(&std::fs::read_to_string(&net_log).unwrap()),
            log,
        }
    }
}

/// Reads from a browser's network log what was opened and what pages requested, without queries.
/// What the browser requests for itself has no origin.
fn requested(log: &str) -> BTreeSet<String> {
    let log: Value = serde_json::from_str(log).unwrap();
    let started = &log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"];
    assert!(started.is_number(), "the log has no such event");
    let events = log["events"].as_array().unwrap();
    events
        .iter()
        .filter(|event| event["type"] == *started)
        .map(|event| &event["params"])
        .filter(|params| {
            params["initiator"] != "not an origin" || params["request_type"] == "main frame"
        })
        .filter_map(|params| params["url"].as_str())
        .map(|address| address.split('?').next().unwrap_or_default().to_owned())
        .collect()
}
