//! A transport for HTTP and HTTPS.

use std::{net::IpAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use rustls::{ClientConfig, RootCertStore};

use super::Transport;
use crate::{crypto, error::BoxError, provider::CloudError};

/// The timeout of connecting, and that of a whole request with its response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a response. A listing of a thousand objects has a few megabytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// A transport for HTTP and HTTPS. It reuses connections, follows no redirects and never retries.
///
/// Trusts the system's certificate authorities, or those in the file that the environment variable
/// `SSL_CERT_FILE` names. Uses the proxies of the usual variables (`HTTPS_PROXY`, `NO_PROXY`, …),
/// but none for loopback addresses.
#[derive(Clone, Debug)]
pub struct Https {
    proxied_client: reqwest::Client,
    direct_client: reqwest::Client,
}

impl Https {
    /// Creates a transport that sends `agent`, such as `ccm-shelf/v0.1.0`, as its user agent.
    ///
    /// # Errors
    /// Returns an error if `agent` cannot be sent in a header.
    pub fn new(agent: &str) -> Result<Self, BoxError> {
        let mut roots = RootCertStore::empty();
        let (added, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            tracing::warn!("the system has no CA certificates; HTTPS requests will fail");
        }
        let mut tls = ClientConfig::builder_with_provider(Arc::new(crypto::provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            proxied_client: client_builder(tls.clone(), agent).build()?,
            direct_client: client_builder(tls, agent).no_proxy().build()?,
        })
    }

    fn client(&self, host: &str) -> &reqwest::Client {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let loopback = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if loopback {
            &self.direct_client
        } else {
            &self.proxied_client
        }
    }
}

fn client_builder(tls: ClientConfig, agent: &str) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .user_agent(agent)
}

#[async_trait]
impl Transport for Https {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        let what = format!("{} {}", request.method(), request.uri().path());
        let transport_error = |error: reqwest::Error| {
            let message = if error.is_timeout() {
                "no answer in time"
            } else {
                "no answer"
            };
            CloudError::transient(format!("{what}: {message}")).with_source(error.without_url())
        };
        let client = self.client(request.uri().host().unwrap_or_default());
        let mut answer = client
            .execute(request.try_into().map_err(transport_error)?)
            .await
            .map_err(transport_error)?;
        let status = answer.status();
        let headers = answer.headers().clone();
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await.map_err(transport_error)? {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(CloudError::transient(format!(
                    "{what}: the answer is longer than {MAX_RESPONSE_BYTES} bytes"
                )));
            }
            body.extend_from_slice(&chunk);
        }
        let mut response = Response::new(body.freeze());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}
