//! Two sketch providers that prove the shape of the provider trait: everything that the AWS and the OpenStack provider
//! need is carried by it, without a watch or a Kubernetes client of their own.
//!
//! Each sketch talks to a narrow client trait; a small in-memory client stands behind it, so that the contract can be
//! asserted and not only compiled. The mapping rules are the real ones where they are short; breadth (all annotations,
//! subnets, security groups, floating IPs) is left to the providers themselves.

mod aws;
#[cfg(test)]
mod fixtures;
mod openstack;
