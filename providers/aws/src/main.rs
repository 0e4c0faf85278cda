//! `ccm-aws`: the cloud-controller-manager for AWS.

fn main() {}
