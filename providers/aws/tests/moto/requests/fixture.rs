//! What each test gets.

use std::sync::Arc;

use anyhow::Context as _;
use ccm_aws::{
    api::{AwsError, Call, Reply, Request, Tags, Transport},
    config::{OverriddenService, ServiceOverride, Settings},
    sdk,
};
use ccm_testkit::moto::{
    Moto,
    fixture::{Fixture, Subnet, Vpc},
    query_api::REGION,
};

/// A client of an empty moto.
pub(crate) struct RequestFixture<'a> {
    pub(crate) moto: &'a Moto,
    pub(crate) fixture: Fixture,
    transport: Arc<dyn Transport>,
}

impl<'a> RequestFixture<'a> {
    pub(crate) async fn new(moto: &'a Moto) -> anyhow::Result<Self> {
        let service = |service| ServiceOverride {
            service,
            region: REGION.into(),
            url: moto.url().into(),
            signing_region: REGION.into(),
            signing_name: None,
        };
        let overrides =
            [OverriddenService::Ec2, OverriddenService::Elb, OverriddenService::Classic]
                .map(service);
        let settings = Settings {
            region: Some(REGION.into()),
            overrides: overrides.into(),
            ..Settings::default()
        };
        let connection = sdk::connect_with_keys(&settings, "AKIATEST", "secret")
            .await
            .context("connect")?;
        Ok(Self {
            moto,
            fixture: Fixture::new(moto.direct().clone()),
            transport: connection.transport,
        })
    }

    /// Sends a request that has to succeed.
    pub(crate) async fn send<R: Request>(&self, request: R) -> anyhow::Result<R::Reply> {
        self.attempt(request)
            .await
            .with_context(|| format!("send {}", R::ACTION.name()))
    }

    /// Sends a request that may fail.
    pub(crate) async fn attempt<R: Request>(&self, request: R) -> Result<R::Reply, AwsError> {
        let call: Call = request.into_call();
        let reply: Reply = self.transport.send(call).await?;
        Ok(R::from_reply(reply).expect("the reply is of the request's kind"))
    }

    /// Sends a request that has to fail.
    pub(crate) async fn failure<R: Request>(&self, request: R) -> anyhow::Result<AwsError> {
        match self.attempt(request).await {
            Ok(_) => anyhow::bail!("{} succeeds", R::ACTION.name()),
            Err(error) => Ok(error),
        }
    }

    /// Sends a request that has to fail, and returns the code of the answer.
    pub(crate) async fn refused<R: Request>(&self, request: R) -> anyhow::Result<String> {
        Ok(self.failure(request).await?.code().to_owned())
    }

    /// A VPC with public subnets in two zones.
    pub(crate) async fn network(&self) -> anyhow::Result<(Vpc, [Subnet; 2])> {
        let vpc = self.fixture.vpc("10.0.0.0/16", &[("Name", "test")]).await?;
        let a = self
            .fixture
            .subnet(&vpc, "a", "10.0.0.0/24", true, &[("zone", "a")])
            .await?;
        let b = self
            .fixture
            .subnet(&vpc, "b", "10.0.1.0/24", true, &[("zone", "b")])
            .await?;
        Ok((vpc, [a, b]))
    }
}

pub(crate) fn tags(of: &[(&str, &str)]) -> Tags {
    of.iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}
