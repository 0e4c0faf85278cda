//! `cloud.conf` and `clouds.yaml`.

mod settings;

pub use ccm_core::config::gcfg::Mistake;
pub use settings::*;
