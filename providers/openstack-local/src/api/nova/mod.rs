//! Compute (Nova v2.1, microversions 2.1 to 2.96).
//!
//! Which fields a server has depends on the microversion asked for, and on whether its cell
//! answers: everything but `id` and `status` is optional.

mod action;
mod flavor;
mod misc;
mod server;
mod server_request;
#[cfg(test)]
mod tests;

pub use self::{
    action::{GroupByName, Reboot, RebootType, ResetState, ServerAction},
    flavor::{Flavor, FlavorCreate, FlavorEnvelope, Flavors, Swap},
    misc::{
        AbsoluteLimits, AvailabilityZone, AvailabilityZones, FixedIp, InterfaceAttach,
        InterfaceAttachment, InterfaceAttachmentEnvelope, InterfaceAttachments, Limits,
        LimitsEnvelope, Metadata, QuotaSet, QuotaSetEnvelope, QuotaSetUpdate, ZoneState,
    },
    server::{
        Address, AddressType, Addresses, AttachedVolume, Fault, GroupName, Image, Link, Server,
        ServerEnvelope, ServerFlavor, Servers,
    },
    server_request::{
        NetworkRequest, Networks, SchedulerHints, ServerCreate, ServerCreateBody, ServerCreated,
        ServerUpdate,
    },
};

/// Lowest microversion: what a request without a header gets.
pub const MIN_MICROVERSION: (u16, u16) = (2, 1);
/// Highest microversion whose shape these types know.
pub const MAX_MICROVERSION: (u16, u16) = (2, 96);

/// Status of a server whose cell does not answer: nothing is known about it, least of all that it
/// is gone.
pub const STATUS_UNKNOWN: &str = "UNKNOWN";
