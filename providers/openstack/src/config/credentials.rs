//! Credentials that are read again for each token, so that rotated ones need no restart.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    path::{Path, PathBuf},
};

use ccm_core::error::chain;
use parking_lot::Mutex;

use super::{Auth, Environment, load};
use crate::client::Credentials;

/// Credentials from a file, and from `clouds.yaml` if the file enables it. The other settings in
/// the files are read only at startup.
#[derive(Debug)]
pub struct ReloadingCredentials {
    file: PathBuf,
    environment: Environment,
    /// Files that were read last time.
    sources: Mutex<Vec<PathBuf>>,
}

impl ReloadingCredentials {
    /// Creates credentials that are read from a file.
    pub fn new(file: impl Into<PathBuf>, environment: Environment) -> Self {
        let file = file.into();
        Self { sources: Mutex::new(vec![file.clone()]), file, environment }
    }
}

impl Credentials for ReloadingCredentials {
    fn read(&self) -> Result<Auth, Box<str>> {
        let settings = load(Some(&self.file), &self.environment)
            .map_err(|error| chain(&error).into_boxed_str())?;
        *self.sources.lock() = settings.sources;
        Ok(settings.cloud.auth)
    }

    fn file_version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.sources
            .lock()
            .iter()
            .for_each(|file| stamp(file).hash(&mut hasher));
        hasher.finish()
    }
}

/// Returns values of which at least one changes when a file is replaced: time, length, and the real
/// path, because the file may be a symbolic link.
pub(crate) fn stamp(path: &Path) -> Option<(std::time::SystemTime, u64, PathBuf)> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len(), std::fs::canonicalize(path).ok()?))
}
