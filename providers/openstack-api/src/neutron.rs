//! Networks (Neutron v2.0).
