//! The chart as a package: what is in it, what it says of itself, and values to try it with.

use serde_json::Value;

use crate::cases;
use crate::helm::{Helm, chart, root};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![the_package_has_its_readme_and_no_examples, values_to_try_it_with_are_clean]
}

/// What is read as it is.
pub(crate) fn read() -> Vec<Case> {
    cases![the_chart_says_whose_it_is]
}

fn the_package_has_its_readme_and_no_examples() {
    let helm = Helm::find().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (chart, to) = (chart(), folder.path().to_str().unwrap());
    helm.run(["package", chart.to_str().unwrap(), "--destination", to])
        .unwrap();
    let package = std::fs::read_dir(to).unwrap().next().unwrap().unwrap();
    let shown = |what: &str| {
        helm.run(["show", what, package.path().to_str().unwrap()])
            .unwrap()
    };
    assert_eq!(
        shown("readme").trim(),
        std::fs::read_to_string(chart.join("README.md"))
            .unwrap()
            .trim()
    );
    let listed = std::process::Command::new("tar")
        .arg("-tzf")
        .arg(package.path())
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("/values.schema.json"), "{listed}");
    for left_out in ["/examples/", "/ci/"] {
        assert!(!listed.contains(left_out), "{left_out} in {listed}");
    }
}

/// The chart-testing tool takes `ci/*-values.yaml`, and installs the chart with each.
fn values_to_try_it_with_are_clean() {
    let helm = Helm::find().unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(chart().join("ci")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.ends_with("-values.yaml"), "{name} is not taken");
        let path = path.to_str().unwrap();
        let said = helm
            .run(["lint", "--strict", chart().to_str().unwrap(), "--values", path])
            .unwrap();
        assert!(!said.contains("[WARNING]"), "{name}: {said}");
        let objects = helm.objects(&["--values", path]).unwrap();
        // A cluster that was just made has no other kinds.
        let unknown: Vec<_> = objects
            .iter()
            .filter(|object| object["apiVersion"].as_str().unwrap().contains("coreos"))
            .collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
        seen += 1;
    }
    assert!(seen >= 4, "{seen}");
}

fn the_chart_says_whose_it_is() {
    let text = std::fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let about: Value = serde_saphyr::from_str(&text).unwrap();
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for version in ["version", "appVersion"] {
        let wanted = format!("version = {:?}", about[version].as_str().unwrap());
        assert!(workspace.contains(&wanted), "{version} is not that of the workspace");
    }
    let annotations = &about["annotations"];
    let licence = annotations["artifacthub.io/license"].as_str().unwrap();
    assert!(workspace.contains(&format!("license = {licence:?}")), "{licence}");
    assert!(annotations["artifacthub.io/category"].is_string());
    assert!(about["maintainers"][0]["name"].is_string());
    assert!(about["icon"].is_string());
    // Helm and its registries show them as links: they are there once the project has an address.
    let address = workspace.contains("\nrepository = ");
    assert_eq!(about["home"].is_string(), address, "home");
    assert_eq!(about["sources"].is_array(), address, "sources");
}
