//! A type for each kind of ID and ARN, so that they cannot be confused.

use std::{fmt, ops::Deref, sync::Arc};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

ids! {
    /// ID of an instance (`i-…`).
    InstanceId,
    /// ID of a network interface (`eni-…`).
    EniId,
    /// ID of a VPC (`vpc-…`).
    VpcId,
    /// ID of a subnet (`subnet-…`).
    SubnetId,
    /// ID of a security group (`sg-…`).
    SecurityGroupId,
    /// ID of a route table (`rtb-…`).
    RouteTableId,
    /// ID of an Elastic IP address (`eipalloc-…`).
    AllocationId,
    /// ARN of a Network Load Balancer.
    LoadBalancerArn,
    /// ARN of a target group.
    TargetGroupArn,
    /// ARN of a listener.
    ListenerArn,
}
