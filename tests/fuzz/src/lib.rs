//! Fuzz targets: functions that take any bytes and panic when something does not hold.
//!
//! A target says more than that nothing panics: what is written is read again as the same, what is
//! decided equals what a simple model decides, what is foreign stays. Targets for text take the
//! bytes as text; the others draw what they need from the bytes with [`arbitrary::Unstructured`],
//! so that the same function serves libFuzzer and the loop of [`run`] here, which needs no nightly
//! compiler.

#![deny(missing_docs)]
#![allow(
    clippy::panic,
    reason = "a target says so that something does not hold"
)]

mod input;
pub mod mutate;
pub mod run;
pub mod targets;

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name: of its folder in the corpus, and of its file for cargo-fuzz.
    pub name: &'static str,
    /// Panics when something does not hold.
    pub run: fn(&[u8]),
    /// Words that inputs are likely to have, for mutation.
    pub words: &'static [&'static str],
}

macro_rules! targets {
    ($($name:ident)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[
            $(Target { name: stringify!($name), run: targets::$name::run, words: targets::$name::WORDS },)*
        ];
    };
}

targets! {
    annotations
    aws_cloud_conf
    cidr_sets
    clouds_yaml
    config_files
    flags
    framework_patches
    openstack_cloud_conf
    protobuf
    provider_ids
    selectors
    server_patches
    watches
}
