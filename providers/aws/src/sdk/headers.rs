//! Headers and signature settings that the SDK does not add by itself.

use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{
            Intercept,
            context::{BeforeTransmitInterceptorContextMut, BeforeTransmitInterceptorContextRef},
        },
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::config_bag::ConfigBag;
use aws_types::SigningName;

/// Suffix of the SDK's user agent, as in upstream.
const AGENT: &str = concat!("kubernetes/v", env!("CARGO_PKG_VERSION"));

/// Adds [`AGENT`] to the user agent.
#[derive(Debug)]
pub(super) struct UserAgent;

impl Intercept for UserAgent {
    fn name(&self) -> &'static str {
        "UserAgent"
    }

    // The header is not signed, and the SDK has certainly set it by now.
    fn modify_before_transmit(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        let agent = match headers.get("user-agent") {
            Some(agent) => format!("{agent} {AGENT}"),
            None => AGENT.to_owned(),
        };
        headers.insert("user-agent", agent);
        Ok(())
    }
}

/// Signs requests for another service name.
#[derive(Debug)]
pub(super) struct SignAs(pub(super) SigningName);

impl Intercept for SignAs {
    fn name(&self) -> &'static str {
        "SignAs"
    }

    fn read_before_signing(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        bag.interceptor_state().store_put(self.0.clone());
        Ok(())
    }
}

/// Sends the source ARN and account when a role is assumed, so that the role's policy can reject
/// other sources. This protects against confused deputies.
#[derive(Debug)]
pub(super) struct SourceHeaders {
    /// Configured `SourceARN`.
    pub(super) arn: Box<str>,
    /// Account to which the role belongs.
    pub(super) account: Box<str>,
}

impl Intercept for SourceHeaders {
    fn name(&self) -> &'static str {
        "SourceHeaders"
    }

    // Before signing, because the signature must cover these headers.
    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        headers.insert("x-amz-source-arn", self.arn.to_string());
        headers.insert("x-amz-source-account", self.account.to_string());
        Ok(())
    }
}
