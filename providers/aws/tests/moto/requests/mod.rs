//! Every request of the provider, through the SDK.

mod balancers;
mod classic;
mod fixture;
mod groups;
mod instances;
mod listeners;
mod network;
mod overlay;
mod targets;

use ccm_testkit::moto::Moto;
use futures::future::LocalBoxFuture;

use self::fixture::RequestFixture;

/// What a case does.
pub(crate) type Body = for<'a> fn(RequestFixture<'a>) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// A list of cases, by their functions' names.
macro_rules! cases {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((
            concat!(stringify!($module), "::", stringify!($name)),
            (|rig| Box::pin($module::$name(rig))) as Body,
        )),*),*]
    };
}

/// All cases.
pub(crate) fn cases() -> Vec<(&'static str, Body)> {
    cases! {
        instances { look_ups, pages, states, source_checks }
        network { zones, subnets_and_vpcs, interfaces, route_tables, routes, object_tags }
        groups { life, rules }
        balancers { life, settings, addresses, attributes, resource_tags }
        targets { life, health_checks, members, attributes }
        listeners { life, tls, attributes }
        classic { life }
        overlay {
            each_attempt_is_one_request, errors_of_balancers, lost_answers, topology, names_are_taken_once,
        }
    }
}

/// Runs a case on a server that is emptied before.
pub(crate) async fn run(moto: &Moto, body: Body) -> anyhow::Result<()> {
    moto.reset().await?;
    body(RequestFixture::new(moto).await?).await
}
