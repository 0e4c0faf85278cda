//! Load balancers on the local cloud, in process and in virtual time.

mod adopt;
mod behaviour;
mod counts;
mod extras;
mod fixture;
mod groups;
mod in_error;
mod namesakes;
mod odd_answers;
mod properties;
mod renamed;
mod retain;
mod shared_reads;
mod sharing;
mod trouble;
