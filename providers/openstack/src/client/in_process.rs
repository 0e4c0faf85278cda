//! The local cloud as transport: in process, without a socket, so that time may be virtual.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use openstack_local::server::LocalCloud;
use tower::ServiceExt as _;

use super::{Transport, TransportError};
use crate::config::{Auth, Cloud, Domain, Identity, Scope, Settings, User};

/// Host name of the local cloud.
pub(crate) const HOST: &str = "cloud.test";

type TransportResult = Result<Response<Bytes>, TransportError>;

/// Requests go to the router of a local cloud.
pub(crate) struct InProcess(
    Box<dyn Fn(Request<Bytes>) -> BoxFuture<'static, TransportResult> + Send + Sync>,
);

impl InProcess {
    pub(crate) fn new(cloud: &LocalCloud) -> Arc<Self> {
        let router = cloud.router();
        Arc::new(Self(Box::new(move |mut request| {
            let router = router.clone();
            Box::pin(async move {
                // As a client over sockets does.
                let host = request
                    .uri()
                    .authority()
                    .and_then(|host| host.as_str().parse().ok());
                host.and_then(|host| request.headers_mut().insert(header::HOST, host));
                let Ok(response) = router.oneshot(request.map(Full::new)).await;
                let (head, body) = response.into_parts();
                let body = body.collect().await.map_err(|error| TransportError {
                    message: format!("the answer of {HOST} was cut short"),
                    maybe_sent: true,
                    source: Some(error.into()),
                })?;
                Ok(Response::from_parts(head, body.to_bytes()))
            })
        })))
    }
}

#[async_trait]
impl Transport for InProcess {
    async fn send(&self, request: Request<Bytes>) -> TransportResult {
        (self.0)(request).await
    }
}

/// Credentials of a user of the local cloud, in the project of the same name.
pub(crate) fn auth(cloud: &LocalCloud, user: &str) -> Auth {
    let domain = Domain::Id("default".into());
    let password = cloud
        .credentials()
        .password(user)
        .expect("the user is there")
        .expose()
        .into();
    Auth {
        url: format!("http://{HOST}/identity/v3").parse().expect("a URL"),
        identity: Identity::Password {
            user: User::Name { name: user.into(), domain: domain.clone() },
            password,
        },
        scope: Scope::ProjectName { name: user.into(), domain },
    }
}

/// Settings with every default for the user `demo`.
pub(crate) fn settings(cloud: &LocalCloud) -> Settings {
    Settings::new(Cloud {
        region: "RegionOne".into(),
        ..Cloud::new(auth(cloud, "demo"))
    })
}
