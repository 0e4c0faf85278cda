//! Credentials that are read anew for each token, so that rotated ones need no restart.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    path::{Path, PathBuf},
};

use ccm_core::error::chain;
use parking_lot::Mutex;

use super::{Auth, Environment, load};
use crate::client::Credentials;

/// Credentials of a file, and of `clouds.yaml` where that says so. The rest of the files counts at the start alone.
#[derive(Debug)]
pub struct ReloadingCredentials {
    file: PathBuf,
    environment: Environment,
    /// Files that the last reading took something from.
    sources: Mutex<Vec<PathBuf>>,
}

impl ReloadingCredentials {
    /// Makes credentials of a file.
    pub fn new(file: impl Into<PathBuf>, environment: Environment) -> Self {
        let file = file.into();
        Self { sources: Mutex::new(vec![file.clone()]), file, environment }
    }
}

impl Credentials for ReloadingCredentials {
    fn read(&self) -> Result<Auth, Box<str>> {
        let settings = load(Some(&self.file), &self.environment).map_err(|error| chain(&error).into_boxed_str())?;
        *self.sources.lock() = settings.sources;
        Ok(settings.cloud.auth)
    }

    fn file_version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.sources.lock().iter().for_each(|file| stamp(file).hash(&mut hasher));
        hasher.finish()
    }
}

/// What tells that a file is another: time, length, and the file itself where it is replaced by a link.
pub(crate) fn stamp(path: &Path) -> Option<(std::time::SystemTime, u64, PathBuf)> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len(), std::fs::canonicalize(path).ok()?))
}
