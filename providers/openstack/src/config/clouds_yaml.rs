//! Reads `clouds.yaml`, `secure.yaml` and `clouds-public.yaml` for values that `cloud.conf` does not
//! set.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ccm_core::config::gcfg_keys::ConfigValue;
use openstack_api::Secret;
use serde::Deserialize;

use super::{ConfigIssue, Environment, Raw, keys::Global};
use crate::config::validation_report::{ValidationReport, text};

/// Variable with the path of the file.
const FILE: &str = "OS_CLIENT_CONFIG_FILE";

macro_rules! texts {
    ($(#[$doc:meta])* $name:ident { $($field:ident)* }) => {
        $(#[$doc])*
        #[derive(Clone, Default, Deserialize)]
        #[serde(default)]
        struct $name {
            $($field: Option<String>,)*
        }

        impl $name {
            /// Fills in missing values from `defaults`.
            fn or(self, defaults: Self) -> Self {
                Self { $($field: self.$field.or(defaults.$field),)* }
            }
        }
    };
}

texts! {
    /// Keys below `auth`. They are texts and not YAML values, because YAML would read an ID of
    /// digits as a number.
    AuthKeys {
        auth_url user_id username password project_id project_name domain_id domain_name project_domain_id
        project_domain_name user_domain_id user_domain_name application_credential_id application_credential_name
        application_credential_secret token trust_id
    }
}

/// The entry of a cloud in a file. `auth` is not flattened, because that would convert its texts to
/// YAML values.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct CloudEntry {
    profile: Option<String>,
    cloud: Option<String>,
    auth: Option<AuthKeys>,
    region_name: Option<String>,
    endpoint_type: Option<String>,
    interface: Option<String>,
    cacert: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    verify: Option<bool>,
}

impl CloudEntry {
    /// Fills in missing values from `defaults`.
    fn or(self, defaults: Self) -> Self {
        Self {
            profile: self.profile.or(defaults.profile),
            cloud: self.cloud.or(defaults.cloud),
            auth: Some(
                self.auth
                    .unwrap_or_default()
                    .or(defaults.auth.unwrap_or_default()),
            ),
            region_name: self.region_name.or(defaults.region_name),
            endpoint_type: self.endpoint_type.or(defaults.endpoint_type),
            interface: self.interface.or(defaults.interface),
            cacert: self.cacert.or(defaults.cacert),
            cert: self.cert.or(defaults.cert),
            key: self.key.or(defaults.key),
            verify: self.verify.or(defaults.verify),
        }
    }
}

/// The content of a file.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    clouds: Option<BTreeMap<String, CloudEntry>>,
    #[serde(rename = "public-clouds")]
    public: Option<BTreeMap<String, CloudEntry>>,
}

/// Fills in missing values from the cloud's entry.
pub(super) fn merge(raw: &mut Raw, environment: &Environment, report: &mut ValidationReport) {
    let mut files = Files { folders: search_folders(environment), read: Vec::new() };
    let cloud = find_cloud(&raw.global, environment, &mut files);
    raw.sources = files.read;
    match cloud {
        Ok(ResolvedCloud { name, file, values }) => {
            if values.verify == Some(false) && raw.global.insecure.value.is_empty() {
                let message = format!(
                    "`verify` of cloud {name:?} has no effect: set tls-insecure in the cloud config"
                );
                report
                    .warnings
                    .push(ConfigIssue::at(0, file.display().to_string(), message));
            }
            fill_missing(&mut raw.global, values);
        }
        Err(reason) => report.add_error("Global", &raw.global.use_clouds, reason),
    }
}

struct ResolvedCloud {
    name: String,
    file: PathBuf,
    values: CloudEntry,
}

/// Finds the entry of the cloud, and merges it with the entries of the other files.
fn find_cloud(
    global: &Global,
    environment: &Environment,
    files: &mut Files,
) -> Result<ResolvedCloud, String> {
    // First, find and read the file.
    let (file, clouds) = match text(&global.clouds_file).or_else(|| environment.get(FILE)) {
        Some(file) => {
            let file = PathBuf::from(file);
            if let Some(folder) = file.parent() {
                files.folders.insert(0, folder.to_owned());
            }
            let clouds = files
                .read(&file)?
                .ok_or_else(|| format!("{}: there is no such file", file.display()))?;
            (file, clouds)
        }
        None => files.find(&["clouds.yaml", "clouds.yml"])?.ok_or_else(|| {
            let folders: Vec<String> = files
                .folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            format!("there is no clouds.yaml in {}", folders.join(", "))
        })?,
    };
    // Then choose the cloud.
    let mut clouds = clouds
        .clouds
        .ok_or_else(|| format!("{}: there is no `clouds`", file.display()))?;
    let names = || {
        clouds
            .keys()
            .map(|name| format!("{name:?}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let wanted = text(&global.cloud).or_else(|| environment.get("OS_CLOUD"));
    let name = match (wanted, clouds.keys().next()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(only)) if clouds.len() == 1 => only.clone(),
        (None, _) => {
            return Err(format!(
                "{}: no cloud is chosen: set cloud, or OS_CLOUD, to one of {}",
                file.display(),
                names()
            ));
        }
    };
    let missing = format!("{}: there is no cloud {name:?}, only {}", file.display(), names());
    let mut values = clouds.remove(&name).ok_or(missing)?;
    // Finally, merge the profile below the entry, and `secure.yaml` above it.
    if let Some(profile) = values.profile.clone().or_else(|| values.cloud.clone())
        && let Some((public, document)) =
            files.find(&["clouds-public.yaml", "clouds-public.yml"])?
    {
        let base = document
            .public
            .or(document.clouds)
            .unwrap_or_default()
            .remove(&profile);
        let base =
            base.ok_or_else(|| format!("{}: there is no cloud {profile:?}", public.display()))?;
        values = values.or(base);
    }
    if let Some((_, secure)) = files.find(&["secure.yaml", "secure.yml"])?
        && let Some(secrets) = secure.clouds.unwrap_or_default().remove(&name)
    {
        values = secrets.or(values);
    }
    Ok(ResolvedCloud { name, file, values })
}

/// Files that were read, and folders to search.
struct Files {
    folders: Vec<PathBuf>,
    read: Vec<PathBuf>,
}

impl Files {
    /// Reads the first existing file with one of these names, in the order of the folders.
    fn find(&mut self, names: &[&str]) -> Result<Option<(PathBuf, Document)>, String> {
        let candidates: Vec<PathBuf> = self
            .folders
            .iter()
            .flat_map(|folder| names.iter().map(|name| folder.join(name)))
            .collect();
        for file in candidates {
            if let Some(value) = self.read(&file)? {
                return Ok(Some((file, value)));
            }
        }
        Ok(None)
    }

    /// Reads a file. Returns `None` if it does not exist.
    fn read(&mut self, file: &Path) -> Result<Option<Document>, String> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
        };
        self.read.push(file.to_owned());
        let parsed: Result<Option<Document>, _> = serde_saphyr::from_str(&text);
        // The parser's message is left out, because it quotes the text, which contains secrets.
        parsed
            .map(|document| Some(document.unwrap_or_default()))
            .map_err(|error| {
                let line = error
                    .location()
                    .map(|at| format!(" line {}", at.line()))
                    .unwrap_or_default();
                format!("{}{line} is not a valid clouds.yaml", file.display())
            })
    }
}

/// Returns the folders that are searched for files, in order.
fn search_folders(environment: &Environment) -> Vec<PathBuf> {
    let home = environment
        .get("HOME")
        .map(|home| Path::new(home).join(".config/openstack"));
    environment
        .folder
        .clone()
        .into_iter()
        .chain(home)
        .chain([PathBuf::from("/etc/openstack")])
        .collect()
}

/// Fills in the values that `cloud.conf` does not set.
fn fill_missing(global: &mut Global, mut entry: CloudEntry) {
    let auth = entry.auth.take().unwrap_or_default();
    let has_user = text(&global.username).is_some() || text(&global.user_id).is_some();
    let has_credentials = has_user || !global.token.value.0.is_empty();
    fill_pair(&mut global.username, auth.username, &mut global.user_id, auth.user_id);
    fill_pair(&mut global.tenant_id, auth.project_id, &mut global.tenant_name, auth.project_name);
    fill_pair(&mut global.domain_id, auth.domain_id, &mut global.domain_name, auth.domain_name);
    fill_pair(
        &mut global.tenant_domain_id,
        auth.project_domain_id,
        &mut global.tenant_domain_name,
        auth.project_domain_name,
    );
    fill_pair(
        &mut global.user_domain_id,
        auth.user_domain_id,
        &mut global.user_domain_name,
        auth.user_domain_name,
    );
    let mut secrets = vec![(&mut global.password, auth.password)];
    // An application credential or token must not replace the credentials of `cloud.conf`.
    if !has_credentials {
        fill_pair(
            &mut global.credential_id,
            auth.application_credential_id,
            &mut global.credential_name,
            auth.application_credential_name,
        );
        secrets.push((&mut global.credential_secret, auth.application_credential_secret));
        secrets.push((&mut global.token, auth.token));
    }
    for (key, value) in secrets {
        if let Some(value) = value
            && key.value.0.is_empty()
        {
            key.value.0 = Secret::from(value);
        }
    }
    let texts = [
        (&mut global.auth_url, auth.auth_url),
        (&mut global.trust_id, auth.trust_id),
        (&mut global.region, entry.region_name),
        (&mut global.endpoint_type, entry.endpoint_type.or(entry.interface)),
        (&mut global.ca_file, entry.cacert),
        (&mut global.cert_file, entry.cert),
        (&mut global.key_file, entry.key),
    ];
    for (key, value) in texts {
        if let Some(value) = value
            && key.value.is_empty()
        {
            key.value = value;
        }
    }
}

/// Fills in two keys for the same thing, such as its ID and its name, unless `cloud.conf` sets one
/// of them.
fn fill_pair(
    a: &mut ConfigValue<String>,
    value_a: Option<String>,
    b: &mut ConfigValue<String>,
    value_b: Option<String>,
) {
    if a.value.is_empty() && b.value.is_empty() {
        a.value = value_a.unwrap_or_default();
        b.value = value_b.unwrap_or_default();
    }
}
