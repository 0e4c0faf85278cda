//! Against servers on loopback.

mod credentials;
mod requests;
mod server;
mod trust;
mod web_identity;

use std::sync::Arc;

use super::connect_with_keys;
use crate::{
    api::{
        AwsError, Connection, Request, Transport, classic::DescribeClassic, ec2::DescribeVpcs,
        elb::DescribeLoadBalancers,
    },
    config::{OverriddenService, ServiceOverride, Settings},
};

const REGION: &str = "eu-central-1";

fn section(service: OverriddenService, url: &str) -> ServiceOverride {
    ServiceOverride {
        service,
        region: REGION.into(),
        url: url.into(),
        signing_region: REGION.into(),
        signing_name: None,
    }
}

fn settings(overrides: Vec<ServiceOverride>) -> Settings {
    Settings {
        region: Some(REGION.into()),
        overrides,
        ..Settings::default()
    }
}

async fn connection(settings: &Settings) -> Connection {
    connect_with_keys(settings, "AKIDGIVEN", "secret")
        .await
        .unwrap()
}

async fn send<R: Request>(
    transport: &Arc<dyn Transport>,
    request: R,
) -> Result<R::Reply, AwsError> {
    transport
        .send(request.into_call())
        .await
        .map(|reply| R::from_reply(reply).unwrap())
}

/// Asks a service for something.
async fn ask(transport: &Arc<dyn Transport>, service: &OverriddenService) -> Result<(), AwsError> {
    match service {
        OverriddenService::Ec2 => send(transport, DescribeVpcs::default()).await.map(drop),
        OverriddenService::Elb => send(transport, DescribeLoadBalancers::default())
            .await
            .map(drop),
        OverriddenService::Classic => send(transport, DescribeClassic::default()).await.map(drop),
        other => panic!("{other:?} is asked for nothing"),
    }
}

/// An empty answer to any of these.
fn nothing() -> (u16, String) {
    (200, "<R><DescribeLoadBalancersResult></DescribeLoadBalancersResult></R>".to_owned())
}

/// The answer to AssumeRole and AssumeRoleWithWebIdentity, with credentials that expire after this
/// time.
fn session(action: &str, key: &str, lasts: jiff::SignedDuration) -> (u16, String) {
    let expiration = jiff::Timestamp::now() + lasts;
    let expiration = expiration.strftime("%Y-%m-%dT%H:%M:%SZ");
    let credentials = format!(
        "<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
         <Expiration>{expiration}</Expiration>"
    );
    let xmlns = "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"";
    let result =
        format!("<{action}Result><Credentials>{credentials}</Credentials></{action}Result>");
    (200, format!("<{action}Response {xmlns}>{result}</{action}Response>"))
}
