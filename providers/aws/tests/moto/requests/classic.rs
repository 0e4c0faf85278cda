use ccm_aws::api::{
    InstanceId,
    classic::{
        DeleteClassic, DeregisterClassic, DescribeClassic, DescribeClassicTags, RegisterClassic,
    },
};

use super::fixture::{RequestFixture, tags};

pub(crate) async fn life(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [subnet, _]) = rig.network().await?;
    let one = InstanceId::from(
        rig.fixture
            .instance(&subnet, "t3.small", &[], &[])
            .await?
            .id,
    );
    let two = InstanceId::from(
        rig.fixture
            .instance(&subnet, "t3.small", &[], &[])
            .await?
            .id,
    );
    rig.fixture
        .classic("clb", &subnet, &[("kubernetes.io/cluster/c", "owned")])
        .await?;
    rig.fixture.classic("other", &subnet, &[]).await?;

    let name: Box<str> = "clb".into();
    rig.send(RegisterClassic {
        name: name.clone(),
        instances: vec![one.clone(), two.clone()],
    })
    .await?;
    rig.send(DeregisterClassic { name: name.clone(), instances: vec![one] })
        .await?;
    let by_name = DescribeClassic { names: vec![name.clone()], token: None };
    let found = rig.send(by_name.clone()).await?.items;
    assert_eq!((found.len(), &*found[0].name, &found[0].instances[..]), (1, "clb", &[two][..]));
    assert!(!found[0].dns_name.is_empty() && found[0].created.is_some());
    assert_eq!(rig.send(DescribeClassic::default()).await?.items.len(), 2);
    let found = rig
        .send(DescribeClassicTags { names: vec![name.clone()] })
        .await?;
    assert_eq!(found, [(name.clone(), tags(&[("kubernetes.io/cluster/c", "owned")]))]);

    rig.send(DeleteClassic { name: name.clone() }).await?;
    rig.send(DeleteClassic { name }).await?;
    assert_eq!(rig.refused(by_name).await?, "LoadBalancerNotFound");
    Ok(())
}
