//! What the in-memory AWS promises.

use super::*;
use crate::api::{Page, ec2, elb};

#[tokio::test(start_paused = true)]
async fn a_world_is_as_its_documentation_says() {
    let world = World::small(4);
    let Page { items, next } = world.aws.ask(ec2::DescribeInstances::default()).await.unwrap();
    assert_eq!((items.len(), next), (4, None));
    let zones: Vec<_> = items.iter().map(|instance| &*instance.zone).collect();
    assert_eq!(zones, ["us-west-2a", "us-west-2b", "us-west-2c", "us-west-2a"]);
    assert_eq!(&*items[0].private_dns_name, "ip-10-0-128-4.us-west-2.compute.internal");
    let subnets = world.aws.ask(ec2::DescribeSubnets::default()).await.unwrap().items;
    assert_eq!(subnets.len(), 6);
    assert_eq!(subnets[3].free_ips, 4096 - 5 - 2);
    assert!(world.aws.load_balancers().is_empty());
    assert_eq!(world.aws.ask(elb::DescribeLoadBalancers::default()).await.unwrap(), Page::only(Vec::new()));
}
