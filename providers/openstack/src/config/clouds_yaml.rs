//! `clouds.yaml`, `secure.yaml` and `clouds-public.yaml`: values that `cloud.conf` does not set.

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
            /// Merges both; values of `self` take precedence.
            fn over(self, below: Self) -> Self {
                Self { $($field: self.$field.or(below.$field),)* }
            }
        }
    };
}

texts! {
    /// Keys below `auth`. They are texts and not YAML values, because YAML reads an ID of digits as
    /// a number.
    AuthKeys {
        auth_url user_id username password project_id project_name domain_id domain_name project_domain_id
        project_domain_name user_domain_id user_domain_name application_credential_id application_credential_name
        application_credential_secret token trust_id
    }
}

/// A cloud in a file. Not flattened, because that would turn texts into YAML values.
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
    /// Merges both; values of `self` take precedence.
    fn merged_over(self, below: Self) -> Self {
        Self {
            profile: self.profile.or(below.profile),
            cloud: self.cloud.or(below.cloud),
            auth: Some(
                self.auth
                    .unwrap_or_default()
                    .over(below.auth.unwrap_or_default()),
            ),
            region_name: self.region_name.or(below.region_name),
            endpoint_type: self.endpoint_type.or(below.endpoint_type),
            interface: self.interface.or(below.interface),
            cacert: self.cacert.or(below.cacert),
            cert: self.cert.or(below.cert),
            key: self.key.or(below.key),
            verify: self.verify.or(below.verify),
        }
    }
}

/// A file.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    clouds: Option<BTreeMap<String, CloudEntry>>,
    #[serde(rename = "public-clouds")]
    public: Option<BTreeMap<String, CloudEntry>>,
}

/// Fills in missing values from the cloud's entry.
pub(super) fn merge(raw: &mut Raw, environment: &Environment, report: &mut ValidationReport) {
    let mut files = Files { folders: folders(environment), read: Vec::new() };
    let entry = entry(&raw.global, environment, &mut files);
    raw.sources = files.read;
    match entry {
        Ok(ResolvedCloud { name, file, values }) => {
            if values.verify == Some(false) && raw.global.insecure.value.is_empty() {
                let words = format!(
                    "`verify` of cloud {name:?} has no effect: set tls-insecure in the cloud config"
                );
                report
                    .warnings
                    .push(ConfigIssue::at(0, file.display().to_string(), words));
            }
            fill(&mut raw.global, values);
        }
        Err(reason) => report.add_error("Global", &raw.global.use_clouds, reason),
    }
}

struct ResolvedCloud {
    name: String,
    file: PathBuf,
    values: CloudEntry,
}

/// Finds the entry of a cloud, merged with what the other files say about it.
fn entry(
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
                "{}: which cloud is not said: set cloud, or OS_CLOUD, to one of {}",
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
        values = values.merged_over(base);
    }
    if let Some((_, secure)) = files.find(&["secure.yaml", "secure.yml"])?
        && let Some(secrets) = secure.clouds.unwrap_or_default().remove(&name)
    {
        values = secrets.merged_over(values);
    }
    Ok(ResolvedCloud { name, file, values })
}

/// Files that were read, and folders to search.
struct Files {
    folders: Vec<PathBuf>,
    read: Vec<PathBuf>,
}

impl Files {
    /// Reads the first of these files that exists.
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

    fn read(&mut self, file: &Path) -> Result<Option<Document>, String> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
        };
        self.read.push(file.to_owned());
        let parsed: Result<Option<Document>, _> = serde_saphyr::from_str(&text);
        // Without the parser's copy of the text, which contains secrets.
        parsed
            .map(|document| Some(document.unwrap_or_default()))
            .map_err(|error| {
                let line = error
                    .location()
                    .map(|at| format!(" line {}", at.line()))
                    .unwrap_or_default();
                format!("{}{line} is no YAML of the form of clouds.yaml", file.display())
            })
    }
}

fn folders(environment: &Environment) -> Vec<PathBuf> {
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

/// Fills in what `cloud.conf` does not set. Where two keys mean the same thing, one of them in
/// `cloud.conf` excludes both of the file.
fn fill(global: &mut Global, mut values: CloudEntry) {
    let auth = values.auth.take().unwrap_or_default();
    let keys = values;
    // `cloud.conf` has other credentials.
    let proven = [&global.username, &global.user_id]
        .into_iter()
        .any(|spot| text(spot).is_some());
    let proven = proven || !global.token.value.0.is_empty();
    pair(&mut global.username, auth.username, &mut global.user_id, auth.user_id);
    pair(&mut global.tenant_id, auth.project_id, &mut global.tenant_name, auth.project_name);
    pair(&mut global.domain_id, auth.domain_id, &mut global.domain_name, auth.domain_name);
    let id = &mut global.tenant_domain_id;
    let name = &mut global.tenant_domain_name;
    pair(id, auth.project_domain_id, name, auth.project_domain_name);
    pair(
        &mut global.user_domain_id,
        auth.user_domain_id,
        &mut global.user_domain_name,
        auth.user_domain_name,
    );
    let mut secrets = vec![(&mut global.password, auth.password)];
    if !proven {
        let id = auth.application_credential_id;
        let name = auth.application_credential_name;
        pair(&mut global.credential_id, id, &mut global.credential_name, name);
        secrets.push((&mut global.credential_secret, auth.application_credential_secret));
        secrets.push((&mut global.token, auth.token));
    }
    for (spot, value) in secrets {
        if let (true, Some(value)) = (spot.value.0.is_empty(), value) {
            spot.value.0 = Secret::from(value);
        }
    }
    let rest = [
        (&mut global.auth_url, auth.auth_url),
        (&mut global.trust_id, auth.trust_id),
        (&mut global.region, keys.region_name),
        (&mut global.endpoint_type, keys.endpoint_type.or(keys.interface)),
        (&mut global.ca_file, keys.cacert),
        (&mut global.cert_file, keys.cert),
        (&mut global.key_file, keys.key),
    ];
    for (spot, value) in rest {
        if let (true, Some(value)) = (spot.value.is_empty(), value) {
            spot.value = value;
        }
    }
}

fn pair(
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
