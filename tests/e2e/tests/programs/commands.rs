//! The commands of the guides, on what the demo has made.

use std::time::Duration;

use tokio::process::Command;

use crate::async_cases;
use crate::demo::{LIMIT, STAYS, demo, said};
use crate::guides::{self, Trial};
use crate::kubectl;
use crate::plain::{Case, needing};

/// What stands in the guides for the folder of the demo's kubeconfig.
const FOLDER: &str = "/tmp/ccm-mock-demo-XXXXXX/kubeconfig";

pub(crate) fn cases() -> Vec<Case> {
    needing(kubectl::find().err(), async_cases![commands_of_the_guides_work_on_the_demo])
}

async fn commands_of_the_guides_work_on_the_demo() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().unwrap();
    let commands = guides::tried(&root, Trial::Demo).unwrap();
    assert!(commands.len() >= 8, "{commands:?}");
    let folder = tempfile::tempdir().unwrap();
    guides::prepare_folder(&root, folder.path()).unwrap();
    let mut demo = demo(folder.path(), &["--nodes", "3"]).await;
    demo.logged(STAYS, LIMIT).await.unwrap();
    let kubeconfig = said(&demo, "kubeconfig");
    for command in &commands {
        let text = command.text.replace(FOLDER, kubeconfig.to_str().unwrap());
        let output = Command::new("sh")
            .args(["-c", &text])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("KUBECONFIG", &kubeconfig)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(90), output).await;
        let output = output.unwrap_or_else(|_| panic!("{}: hangs: {text}", command.place));
        let output = output.unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}\n{complaint}", command.place);
        let printed = String::from_utf8_lossy(&output.stdout);
        // A wrong path is no error to kubectl. Taints are there only before the manager runs.
        if text.contains("custom-columns") && !text.contains("TAINTS") {
            assert!(!printed.contains("<none>"), "{}: {text}\n{printed}", command.place);
        }
    }
    let policy = std::fs::read_to_string(folder.path().join("policy.json")).unwrap();
    let policy: serde_json::Value = serde_json::from_str(&policy).unwrap();
    assert!(policy["Statement"].is_array() && !policy.to_string().contains("CLUSTER_ID"));
    demo.terminate().await.unwrap();
}
