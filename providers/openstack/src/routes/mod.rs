//! Routes of a Neutron router.
