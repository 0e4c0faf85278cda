//! Tags and node labels.

use super::*;

fn reserved(key: &str) -> (&'static str, String) {
    ("ReservedTag", format!("tag {key} cannot be set by annotation and is left out"))
}

#[test]
fn tags_are_read_loosely() {
    let found = nlb()
        .says("additional-resource-tags", "a=1, b=, c,a=2")
        .wanted()
        .extra_tags;
    assert_eq!(pairs(&found), [("a", "2"), ("b", ""), ("c", "")]);
    assert_eq!(nlb().says("additional-resource-tags", "").wanted(), nlb().wanted());
}

#[test]
fn tags_by_which_things_are_found_cannot_be_set() {
    let keys = [
        "kubernetes.io/cluster/c1",
        "KubernetesCluster",
        "kubernetes.io/service-name",
        "elbv2.k8s.aws/cluster",
    ];
    for key in keys {
        let case = nlb().says("additional-resource-tags", &format!("{key}=x,team=a"));
        assert_eq!(pairs(&case.wanted().extra_tags), [("team", "a")]);
        assert_eq!(case.remarks(), [reserved(key)]);
    }
    let other = nlb().says("additional-resource-tags", "kubernetes.io/cluster/other=shared");
    assert_eq!(other.wanted().extra_tags.len(), 1);
}

#[test]
fn tags_that_aws_does_not_take_are_refused() {
    let cases = [
        ("aws:x".to_owned(), "the prefix aws: is AWS' own"),
        ("k".repeat(129), "the key is longer than 128 characters"),
    ];
    for (key, why) in cases {
        let message = format!("tag {key:?} is not possible in AWS: {why}");
        assert_eq!(
            nlb()
                .says("additional-resource-tags", &format!("{key}=1"))
                .mistakes(),
            [message]
        );
    }
    let long = nlb().says("additional-resource-tags", &format!("k={}", "v".repeat(257)));
    assert_eq!(
        long.mistakes(),
        ["tag \"k\" is not possible in AWS: the value is longer than 256 characters"]
    );
}

// TG1
#[test]
fn node_labels_are_all_required() {
    let labels = |text: &str| nlb().says("target-node-labels", text).wanted().node_labels;
    let equals = |key: &str, value: &str| LabelRequirement::Equals(key.into(), value.into());
    assert_eq!(labels(""), []);
    assert_eq!(labels("b=1, a"), [LabelRequirement::Exists("a".into()), equals("b", "1")]);
    assert_eq!(labels("a=,b=1"), labels("b=1,a"));
    let ip = nlb()
        .says("target-node-labels", "a")
        .says("nlb-target-type", "ip")
        .wanted();
    assert_eq!(ip.node_labels, []);
}
