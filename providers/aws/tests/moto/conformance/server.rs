//! moto as the account that the kit is run on.
//!
//! The kit and the provider run under paused time: waits cost nothing, and how long a call of the
//! provider sleeps is seen to the millisecond. Requests to moto are made in another runtime, whose
//! time is real; while one is under way, the paused clock stands still, as it does for every
//! blocking task. There is one thread for such tasks, so that a request whose caller has gone is
//! carried out before the next one.

use std::{future::Future, net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use ccm_aws::{
    api::{AwsError, Call, InstanceId, Reply, Transport},
    config::{OverriddenService, ServiceOverride, Settings},
    sdk,
};
use ccm_testkit::{
    conformance::CallFaultKind,
    moto::{
        Moto,
        fault_proxy::{Fault, ProxyFault},
        fixture::{Fixture, Subnet},
        query_api::{EC2, REGION},
    },
};
use ipnet::Ipv6Net;
use tokio::runtime::Handle;

use super::adapter::account::{AccountBackend, InstanceChange, OURS, SharedVpc, THEIRS, refusal};

/// A running moto and the SDK's way to it.
struct Server {
    moto: Arc<Moto>,
    fixture: Fixture,
    transport: Arc<dyn Transport>,
    real: Handle,
}

/// moto, reached from paused time.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Server>);

impl Remote {
    /// Connects to moto, in the runtime whose time is real.
    pub(crate) async fn connect(moto: Arc<Moto>) -> anyhow::Result<Self> {
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
        let transport = sdk::connect_with_keys(&settings, "AKIATEST", "secret")
            .await
            .context("connect")?
            .transport;
        let fixture = Fixture::new(moto.direct().clone());
        Ok(Self(Arc::new(Server { moto, fixture, transport, real: Handle::current() })))
    }

    /// Does something in real time.
    async fn really<T, F>(&self, action: impl FnOnce(Arc<Server>) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let server = Arc::clone(&self.0);
        let done =
            tokio::task::spawn_blocking(move || server.real.clone().block_on(action(server)));
        done.await.expect("requests to moto do not panic")
    }
}

#[async_trait]
impl Transport for Remote {
    async fn send(&self, call: Call) -> Result<Reply, AwsError> {
        self.really(|server| async move { server.transport.send(call).await })
            .await
    }
}

#[async_trait]
impl AccountBackend for Remote {
    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }

    async fn clear(&self) -> anyhow::Result<SharedVpc> {
        self.really(|server| async move { server.place().await })
            .await
    }

    async fn launch(&self, place: &SharedVpc, ip: Ipv4Addr) -> anyhow::Result<InstanceId> {
        let place = place.clone();
        self.really(move |server| async move { server.launch(&place, ip).await })
            .await
    }

    async fn turn(&self, id: &InstanceId, turn: InstanceChange) -> anyhow::Result<()> {
        let id = id.clone();
        let action = match turn {
            InstanceChange::Stop => "StopInstances",
            InstanceChange::Start => "StartInstances",
            InstanceChange::Terminate | InstanceChange::Vanish => "TerminateInstances",
        };
        self.really(move |server| async move { server.fixture.instance_state(action, &id).await })
            .await?;
        Ok(())
    }

    async fn spoil(&self, call: Call, trouble: CallFaultKind) -> Result<Reply, AwsError> {
        let trouble = match trouble {
            CallFaultKind::Fails(fault) => {
                let (status, code) = refusal(call.action(), fault);
                ProxyFault::Refused(status, code.to_owned())
            }
            CallFaultKind::AnswerLost => ProxyFault::AnswerLost,
        };
        let fault = Fault {
            action: call.action().name().to_owned(),
            after: 0,
            times: 1,
            effect: trouble,
        };
        self.really(|server| async move {
            server.moto.overlay().fail(fault);
            server.transport.send(call).await
        })
        .await
    }

    /// As many as a table of AWS holds by default.
    fn many(&self) -> usize {
        40
    }

    /// A request takes moto some ten milliseconds. Every call is tried on the in-memory AWS.
    fn stride(&self) -> usize {
        7
    }

    async fn activate_after(&self, _: Duration) -> bool {
        false
    }
}

impl Server {
    async fn place(&self) -> anyhow::Result<SharedVpc> {
        self.moto.reset().await?;
        let make = &self.fixture;
        let tag = |id: &str| format!("kubernetes.io/cluster/{id}");
        let (ours, theirs) = (tag(OURS), tag(THEIRS));
        let shared = [(&*ours, "shared"), (&*theirs, "shared")];
        let vpc = make.vpc("10.0.0.0/16", &[]).await?;
        let six: Ipv6Net = make.ipv6_network(&vpc).await?.parse()?;
        let front = [&shared[..], &[("kubernetes.io/role/elb", "1")]].concat();
        let mut public = Vec::new();
        for ((zone, cidr), six) in [("a", "10.0.0.0/20"), ("b", "10.0.16.0/20")]
            .into_iter()
            .zip(six.subnets(64)?)
        {
            let subnet = make.subnet(&vpc, zone, cidr, true, &front).await?;
            let wanted = [("SubnetId", &*subnet.id), ("Ipv6CidrBlock", &*six.to_string())];
            make.wire()
                .ask(EC2, "AssociateSubnetCidrBlock", wanted)
                .await?;
            public.push(subnet.id.as_str().into());
        }
        let private: Subnet = make
            .subnet(&vpc, "a", "10.0.128.0/17", false, &shared)
            .await?;
        let group = make.security_group(&vpc, "nodes", &shared).await?;
        let mut tables = Vec::new();
        for tags in [&[(&*ours, "owned")][..], &[(&*theirs, "owned")], &[]] {
            let table = make
                .wire()
                .ask(EC2, "CreateRouteTable", [("VpcId", &*vpc.id)])
                .await?
                .text("routeTableId")?;
            make.tag(&table, tags).await?;
            tables.push(table.as_str().into());
        }
        let tables = tables
            .try_into()
            .map_err(|_| anyhow::anyhow!("three tables were made"))?;
        Ok(SharedVpc {
            vpc: vpc.id.as_str().into(),
            public,
            private: private.id.as_str().into(),
            group: group.as_str().into(),
            tables,
        })
    }

    async fn launch(&self, place: &SharedVpc, ip: Ipv4Addr) -> anyhow::Result<InstanceId> {
        let ip = ip.to_string();
        let wanted = [
            ("ImageId", "ami-12c6146b"),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("InstanceType", "m6g.large"),
            ("SubnetId", &*place.private),
            ("PrivateIpAddress", &*ip),
            ("SecurityGroupId.1", &*place.group),
        ];
        let id = self
            .fixture
            .wire()
            .ask(EC2, "RunInstances", wanted)
            .await?
            .text("instanceId")?;
        let tag = |id: &str| format!("kubernetes.io/cluster/{id}");
        self.fixture
            .tag(&id, &[(&*tag(OURS), "shared"), (&*tag(THEIRS), "shared")])
            .await?;
        Ok(id.as_str().into())
    }
}
