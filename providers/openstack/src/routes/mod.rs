//! Routes of a Neutron router.

pub mod plan;
