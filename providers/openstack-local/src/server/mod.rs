//! The HTTP side: routes, tokens, pages, bodies of errors, request log and faults.

mod admin;
mod clock;
mod errors;
mod extract;
mod faults;
pub mod list;
mod listen;
mod local;
mod request_log;
mod router;
mod settings;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use parking_lot::RwLock;

pub use self::{
    clock::{Clock, TimeSource},
    errors::Shape,
    extract::{Auth, Input, Origin},
    faults::{Fault, FaultKind, Faults},
    local::{Credentials, LocalCloud, StartError},
    request_log::{LoggedRequest, RequestLog},
    router::router,
    settings::{CatalogForm, Settings},
};
pub(crate) use self::{errors::unauthorized, extract::caller};
use crate::store::Store;

/// What all requests share.
#[derive(Debug)]
pub struct Cloud {
    /// The state.
    pub store: Store,
    /// The time.
    pub clock: Clock,
    /// Requests so far.
    pub journal: RequestLog,
    /// Faults to inject.
    pub faults: Faults,
    settings: RwLock<Arc<Settings>>,
}

impl Cloud {
    /// Creates it from store and settings.
    pub fn new(store: Store, settings: Settings) -> Self {
        Self {
            store,
            clock: Clock::new(settings.time),
            journal: RequestLog::default(),
            faults: Faults::default(),
            settings: RwLock::new(Arc::new(settings)),
        }
    }

    /// Returns the current settings.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// Changes the settings, from the next request on.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.settings.write();
        let mut changed = Settings::clone(&settings);
        change(&mut changed);
        *settings = Arc::new(changed);
    }
}
