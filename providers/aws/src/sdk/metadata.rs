//! Client for the instance metadata service, version 2.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_config::{imds, provider_config::ProviderConfig};
use aws_smithy_runtime_api::client::http::SharedHttpClient;

use crate::api::{AwsError, AwsErrorCause, Metadata};

/// A link-local service either answers at once or does not exist.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 2;

/// Implementation of [`Metadata`] with the SDK's client.
#[derive(Clone, Debug)]
pub(super) struct SdkMetadata {
    client: imds::Client,
    disabled: bool,
}

impl SdkMetadata {
    /// Creates a client. Sends no request yet.
    ///
    /// # Errors
    /// Returns an error if the endpoint is not a URL.
    pub(super) fn new(
        http: SharedHttpClient,
        endpoint: Option<&str>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut client = imds::Client::builder()
            .configure(&ProviderConfig::without_region().with_http_client(http))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .max_attempts(ATTEMPTS);
        if let Some(endpoint) = endpoint {
            client = client.endpoint(endpoint)?;
        }
        let disabled = std::env::var("AWS_EC2_METADATA_DISABLED")
            .is_ok_and(|value| value.eq_ignore_ascii_case("true"));
        Ok(Self { client: client.build(), disabled })
    }

    /// Returns the SDK's client, for the credentials of the instance's role.
    pub(super) fn client(&self) -> imds::Client {
        self.client.clone()
    }
}

#[async_trait]
impl Metadata for SdkMetadata {
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError> {
        if self.disabled {
            let fault = AwsErrorCause::NoResponse(Arc::from(Box::from(
                "switched off by AWS_EC2_METADATA_DISABLED",
            )));
            return Err(AwsError { action: None, cause: fault });
        }
        let fault = match self.client.get(format!("/latest/meta-data/{path}")).await {
            Ok(text) => return Ok(Some(String::from(text.as_ref()))),
            Err(imds::client::error::ImdsError::ErrorResponse(answer)) => {
                let status = answer.response().status().as_u16();
                if status == 404 {
                    return Ok(None);
                }
                let message = format!("HTTP status {status} for {path}").into();
                AwsErrorCause::Response { code: Box::default(), message, status, request_id: None }
            }
            Err(error) => AwsErrorCause::NoResponse(Arc::new(error)),
        };
        Err(AwsError { action: None, cause: fault })
    }
}
