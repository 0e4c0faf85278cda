//! Desired targets of a load balancer: nodes or pods, and the network interfaces behind them.

pub(in crate::lb) mod desired;
pub(in crate::lb) mod interfaces;
pub(super) mod pods;
