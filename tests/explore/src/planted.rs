//! Bugs that are planted to show that the explorer finds them.

use std::sync::Arc;

use ccm_core::provider::CloudProvider;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {}

impl Bug {
    pub(crate) fn in_provider(self, _: Arc<dyn CloudProvider>) -> Arc<dyn CloudProvider> {
        match self {}
    }
}
