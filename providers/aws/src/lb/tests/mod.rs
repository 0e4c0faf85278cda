//! Load balancers on the in-memory AWS.

mod adopted;
mod behaviour;
mod capacity;
mod classic;
mod classic_doubt;
mod classic_orphans;
mod classic_upstream;
mod counts;
mod deletion;
mod denied_tags;
mod dialects;
mod disowned;
pub(crate) mod fixture;
mod matrix;
mod moving;
mod partial_failures;
mod pods;
mod properties;
mod resume;
mod retained;
mod shared_group;
mod sleep_limits;
mod source_nat;
mod takeover;
