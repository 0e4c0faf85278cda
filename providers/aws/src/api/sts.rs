//! The Security Token Service (STS): whose credentials the requests are signed with.

use jiff::Timestamp;

/// Request for the identity of whoever sends it. AWS needs no permission for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetCallerIdentity;

/// The identity of whoever sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerIdentity {
    /// ID of the account.
    pub account: Box<str>,
    /// ARN of a user, or of the session of a role.
    pub arn: Box<str>,
    /// The lifetime of the credentials with which the request was signed. It comes from the
    /// credentials themselves, not from STS.
    pub lifetime: CredentialsLifetime,
}

/// How long credentials are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CredentialsLifetime {
    /// Until this time. Their source gives new ones before.
    Until(Timestamp),
    /// They are temporary and come from the environment of the process, so that the process can
    /// get no others. Nothing says when they end.
    NotRenewed,
    /// The credentials name no end. Keys of users have none.
    #[default]
    Unknown,
}
