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
    let set = "provider=aws,image.repository=r.example/infra/ccm-aws";
    assert_eq!(image(&helm, set), "r.example/infra/ccm-aws:0.1.0");
}
