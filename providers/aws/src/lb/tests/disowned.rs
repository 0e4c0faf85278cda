//! What this process made and remembers is deleted only while its tags say whose it is.

use super::fixture::{Fixture, published, service};
use crate::{
    api::{Action, elb::DeleteListener},
    fake::CLUSTER,
    ownership_tags::SERVICE_TAG,
};

#[tokio::test(start_paused = true)]
async fn a_balancer_that_was_given_to_another_service_stays() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let arn = rig.aws.load_balancers()[0].arn.clone();
    rig.aws.tag(&arn, SERVICE_TAG, "default/other");
    drop(rig.delete(&web).await);
    assert_eq!(rig.aws.calls(Action::DeleteLoadBalancer), 0);
    assert_eq!(rig.aws.load_balancers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_target_group_that_was_given_to_another_service_stays() {
    let rig = Fixture::new(1);
    let web = service("web", &[80, 443]);
    let web = published(&web, &rig.settle(&web).await);
    let given = rig.aws.target_groups()[0].arn.clone();
    rig.aws.tag(&given, SERVICE_TAG, "default/other");
    rig.remove(&web).await;
    assert_eq!(rig.aws.load_balancers(), []);
    assert_eq!(
        rig.aws
            .target_groups()
            .into_iter()
            .map(|group| group.arn)
            .collect::<Vec<_>>(),
        [given]
    );
}

#[tokio::test(start_paused = true)]
async fn an_unused_target_group_stays_unless_its_tags_name_the_service_and_the_cluster() {
    // What it lacks, and whether the process that made it deletes it.
    for (lacks, goes) in
        [(SERVICE_TAG.to_owned(), false), (format!("kubernetes.io/cluster/{CLUSTER}"), true)]
    {
        for restart in [false, true] {
            let mut rig = Fixture::new(1);
            let web = service("web", &[80]);
            let web = published(&web, &rig.settle(&web).await);
            let listener = rig.aws.listeners(&rig.aws.load_balancers()[0].arn)[0]
                .arn
                .clone();
            rig.aws.ask(DeleteListener { arn: listener }).await.unwrap();
            rig.aws.untag(&rig.aws.target_groups()[0].arn, &lacks);
            if restart {
                rig = rig.restart();
            }
            rig.remove(&web).await;
            assert_eq!(rig.aws.load_balancers(), [], "{lacks} {restart}");
            assert_eq!(rig.aws.target_groups().is_empty(), goes && !restart, "{lacks} {restart}");
        }
    }
}
