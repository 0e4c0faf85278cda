//! Identity (Keystone v3).
