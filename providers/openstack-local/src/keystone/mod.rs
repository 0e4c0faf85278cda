//! Identity (Keystone v3), and the parts of a key manager (Barbican) that provide certificates.

mod auth;
mod catalog;
mod delegation;
mod http_routes;
pub mod key_manager;
mod policy;
mod projects;
mod rows;
mod secret;
pub(crate) mod seed;
#[cfg(test)]
mod tests;
mod token;
mod users;

pub(crate) use self::secret::random_secret;
pub use self::{
    http_routes::routes,
    rows::*,
    token::{RequestUser, authorize},
};
use crate::state::tables;

tables! {
    /// Rows of the identity service.
    Tables {
        /// Domains.
        domains: Domain,
        /// Projects.
        projects: Project,
        /// Users.
        users: User,
        /// Roles.
        roles: Role,
        /// Who has which role where.
        assignments: Assignment,
        /// Services of the catalog.
        services: Service,
        /// Endpoints of services.
        endpoints: Endpoint,
        /// Regions.
        regions: Region,
        /// Application credentials.
        application_credentials: ApplicationCredential,
        /// Trusts.
        trusts: Trust,
        /// Tokens.
        tokens: Token,
        /// Containers of the key manager.
        key_containers: KeyContainer,
        /// Secrets of the key manager.
        key_secrets: KeySecret,
    }
}
