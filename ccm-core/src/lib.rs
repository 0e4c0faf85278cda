//! Framework.
