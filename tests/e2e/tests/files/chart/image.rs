//! Which image the pods get.

use super::workload;
use crate::cases;
use crate::helm::{Helm, container};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![names_of_images_have_no_empty_part, a_whole_name_needs_no_registry]
}

fn image(helm: &Helm, set: &str) -> String {
    let objects = helm.objects(&["--set", set]).unwrap();
    container(workload(&objects))["image"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn names_of_images_have_no_empty_part() {
    let helm = Helm::find().unwrap();
    let cases = [
        ("provider=aws,image.registry=r.example/infra", "r.example/infra/ccm-aws:0.1.0"),
        ("provider=aws,image.registry=r.example/infra/", "r.example/infra/ccm-aws:0.1.0"),
        ("provider=aws,image.registry=r/,image.repository=/a/b,image.tag=t", "r/a/b:t"),
        ("provider=mock", "ccm-mock:0.1.0"),
    ];
    for (set, wanted) in cases {
        assert_eq!(image(&helm, set), wanted, "{set}");
    }
}

/// Without either, `values_that_contradict_each_other_are_told_together` has what is said.
fn a_whole_name_needs_no_registry() {
    let helm = Helm::find().unwrap();
    // The chart of a release has a registry by default.
    for registry in ["", "ghcr.io/owner/project"] {
        for (repository, whole) in [
            ("r.example/infra/ccm-aws", true),
            ("registry:5000/ccm-aws", true),
            ("localhost/ccm-aws", true),
            ("infra/ccm-aws", false),
            ("ccm.aws", false),
            ("localhost", false),
        ] {
            let set =
                format!("provider=aws,image.registry={registry},image.repository={repository}");
            let wanted = if whole || registry.is_empty() {
                format!("{repository}:0.1.0")
            } else {
                format!("{registry}/{repository}:0.1.0")
            };
            assert_eq!(image(&helm, &set), wanted, "{set}");
        }
    }
}
