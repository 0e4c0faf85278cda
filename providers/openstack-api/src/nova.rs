//! Compute (Nova).
