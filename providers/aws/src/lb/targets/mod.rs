//! Targets of a load balancer: which nodes or pods should be registered, which AWS objects they are, and updates of only these.

pub(in crate::lb) mod desired;
pub(in crate::lb) mod interfaces;
pub(super) mod pods;
