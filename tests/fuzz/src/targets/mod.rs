//! The targets, a file each: `run` panics when something does not hold.

pub mod annotations;
pub mod aws_cloud_conf;
pub mod cidr_sets;
pub mod clouds_yaml;
pub mod config_files;
pub mod flags;
pub mod framework_patches;
pub mod openstack_cloud_conf;
pub mod protobuf;
pub mod provider_ids;
pub mod selectors;
pub mod server_patches;
pub mod watches;

mod gcfg;
mod secrets;
