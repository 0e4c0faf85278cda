//! `cloud.conf` and `clouds.yaml`.
