//! Requests with `DryRun`, with which EC2 says whether it would allow them, and changes nothing.

use aws_sdk_ec2::{
    Client,
    operation::{
        authorize_security_group_ingress::AuthorizeSecurityGroupIngressInput,
        create_security_group::CreateSecurityGroupInput, create_tags::CreateTagsInput,
        describe_vpcs::DescribeVpcsInput, modify_instance_attribute::ModifyInstanceAttributeInput,
    },
};
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{
            Intercept,
            context::{BeforeSerializationInterceptorContextMut, Input},
        },
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::config_bag::ConfigBag;

/// Returns a client that only asks whether requests would be allowed.
pub(super) fn client(ec2: &Client) -> Client {
    let config = ec2.config().to_builder().interceptor(DryRun).build();
    Client::from_conf(config)
}

/// Sets the parameter, and stops every request that it does not know.
#[derive(Debug)]
struct DryRun;

impl Intercept for DryRun {
    fn name(&self) -> &'static str {
        "DryRun"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if set_dry_run(context.input_mut()) {
            Ok(())
        } else {
            Err("this request cannot be sent with DryRun".into())
        }
    }
}

/// Sets the parameter. Returns false for a request that is not in the list.
fn set_dry_run(input: &mut Input) -> bool {
    macro_rules! set {
        ($($request:ty),*) => {
            $(if let Some(request) = input.downcast_mut::<$request>() {
                request.dry_run = Some(true);
                return true;
            })*
        };
    }
    set!(
        DescribeVpcsInput,
        CreateSecurityGroupInput,
        AuthorizeSecurityGroupIngressInput,
        CreateTagsInput,
        ModifyInstanceAttributeInput
    );
    false
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::operation::delete_security_group::DeleteSecurityGroupInput;

    use super::*;

    #[test]
    fn only_known_requests_are_sent() {
        let tags = CreateTagsInput::builder().build().unwrap();
        let mut input = Input::erase(tags);
        assert!(set_dry_run(&mut input));
        let tags = input.downcast_ref::<CreateTagsInput>().unwrap();
        assert_eq!(tags.dry_run, Some(true));
        let vpcs = DescribeVpcsInput::builder().build().unwrap();
        assert!(set_dry_run(&mut Input::erase(vpcs)));
        let delete = DeleteSecurityGroupInput::builder().build().unwrap();
        assert!(!set_dry_run(&mut Input::erase(delete)));
    }
}
