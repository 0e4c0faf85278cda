//! Headers and signatures beyond what the SDK puts on a request by itself.

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

/// What follows the SDK's own user agent, as upstream has it.
const AGENT: &str = concat!("kubernetes/v", env!("CARGO_PKG_VERSION"));

/// Says in the user agent who asks.
#[derive(Debug)]
pub(super) struct UserAgent;

impl Intercept for UserAgent {
    fn name(&self) -> &'static str {
        "UserAgent"
    }

    // The header is no part of the signature, and only now is it sure to be there.
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

/// Signs for another service name.
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

/// Tells STS for whom a role is assumed, so that the role's policy can refuse others (the confused deputy).
#[derive(Debug)]
pub(super) struct SourceHeaders {
    /// `SourceARN`.
    pub(super) arn: Box<str>,
    /// Account of the role.
    pub(super) account: Box<str>,
}

impl Intercept for SourceHeaders {
    fn name(&self) -> &'static str {
        "SourceHeaders"
    }

    // Before the signature, which has to cover them.
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
