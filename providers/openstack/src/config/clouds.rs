//! `clouds.yaml`, `secure.yaml` and `clouds-public.yaml`: what `cloud.conf` leaves out.

use std::path::{Path, PathBuf};

use ccm_core::config::keys::Spot;
use openstack_api::Secret;
use serde_json::{Map, Value};

use super::{Environment, Mistake, Raw, check::Report, check::text, keys::Global};

/// Variable with the path of the file.
const FILE: &str = "OS_CLIENT_CONFIG_FILE";

/// Takes what is missing from the entry of the cloud.
pub(super) fn merge(raw: &mut Raw, environment: &Environment, report: &mut Report) {
    let mut files = Files { folders: folders(environment), read: Vec::new() };
    let entry = entry(&raw.global, environment, &mut files);
    raw.sources = files.read;
    match entry {
        Ok(Entry { name, file, values }) => {
            if values.get("verify") == Some(&Value::Bool(false)) && raw.global.insecure.value.is_empty() {
                let words = format!("`verify` of cloud {name:?} has no effect: set tls-insecure in the cloud config");
                report.warnings.push(Mistake::at(0, file.display().to_string(), words));
            }
            fill(&mut raw.global, &values);
        }
        Err(why) => report.refuse("Global", &raw.global.use_clouds, why),
    }
}

struct Entry {
    name: String,
    file: PathBuf,
    values: Map<String, Value>,
}

/// Finds the entry of a cloud, complete with what the other files say about it.
fn entry(global: &Global, environment: &Environment, files: &mut Files) -> Result<Entry, String> {
    let (file, clouds) = match text(&global.clouds_file).or_else(|| environment.get(FILE)) {
        Some(file) => {
            let file = PathBuf::from(file);
            if let Some(folder) = file.parent() {
                files.folders.insert(0, folder.to_owned());
            }
            let clouds = files.read(&file)?.ok_or_else(|| format!("{}: there is no such file", file.display()))?;
            (file, clouds)
        }
        None => files.find(&["clouds.yaml", "clouds.yml"])?.ok_or_else(|| {
            let folders: Vec<String> = files.folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("there is no clouds.yaml in {}", folders.join(", "))
        })?,
    };
    let clouds = section(&clouds, "clouds").ok_or_else(|| format!("{}: there is no `clouds`", file.display()))?;
    let names = || clouds.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
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
    let Some(Value::Object(own)) = clouds.get(&name) else {
        return Err(format!("{}: there is no cloud {name:?}, only {}", file.display(), names()));
    };
    let mut values = Map::new();
    let profile = ["profile", "cloud"].into_iter().find_map(|key| own.get(key)?.as_str());
    if let Some(profile) = profile
        && let Some((public, clouds)) = files.find(&["clouds-public.yaml", "clouds-public.yml"])?
    {
        match section(&clouds, "public-clouds").or_else(|| section(&clouds, "clouds")).and_then(|all| all.get(profile))
        {
            Some(Value::Object(base)) => lay_over(&mut values, base),
            _ => return Err(format!("{}: there is no cloud {profile:?}", public.display())),
        }
    }
    lay_over(&mut values, own);
    if let Some((_, secure)) = files.find(&["secure.yaml", "secure.yml"])?
        && let Some(Value::Object(secrets)) = section(&secure, "clouds").and_then(|all| all.get(&name))
    {
        lay_over(&mut values, secrets);
    }
    Ok(Entry { name, file, values })
}

fn section<'a>(document: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    document.get(name)?.as_object()
}

/// Puts values over those that are there, maps into maps.
fn lay_over(below: &mut Map<String, Value>, above: &Map<String, Value>) {
    for (key, value) in above {
        match (below.get_mut(key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => lay_over(below, above),
            _ => {
                below.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Files that were looked at.
struct Files {
    folders: Vec<PathBuf>,
    read: Vec<PathBuf>,
}

impl Files {
    /// Reads the first of these files.
    fn find(&mut self, names: &[&str]) -> Result<Option<(PathBuf, Value)>, String> {
        let candidates: Vec<PathBuf> =
            self.folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect();
        for file in candidates {
            if let Some(value) = self.read(&file)? {
                return Ok(Some((file, value)));
            }
        }
        Ok(None)
    }

    fn read(&mut self, file: &Path) -> Result<Option<Value>, String> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
        };
        self.read.push(file.to_owned());
        let parsed: Result<Value, _> = serde_saphyr::from_str(&text);
        // Without the parser's copy of the text, in which secrets stand.
        parsed.map(Some).map_err(|error| {
            let line = error.location().map(|at| format!(" line {}", at.line())).unwrap_or_default();
            format!("{}{line} is no YAML", file.display())
        })
    }
}

fn folders(environment: &Environment) -> Vec<PathBuf> {
    let home = environment.get("HOME").map(|home| Path::new(home).join(".config/openstack"));
    environment.folder.clone().into_iter().chain(home).chain([PathBuf::from("/etc/openstack")]).collect()
}

/// Fills in what `cloud.conf` leaves out. Of keys that say the same thing in two ways, one in `cloud.conf` keeps both.
fn fill(global: &mut Global, values: &Map<String, Value>) {
    let auth = values.get("auth").and_then(Value::as_object);
    let auth = |key: &str| auth.and_then(|auth| plain(auth.get(key)));
    let own = |key: &str| plain(values.get(key));
    // Another way to prove who we are.
    let proven = [&global.username, &global.user_id].into_iter().any(|spot| text(spot).is_some());
    let proven = proven || !global.token.value.0.is_empty();
    pair(&mut global.username, auth("username"), &mut global.user_id, auth("user_id"));
    pair(&mut global.tenant_id, auth("project_id"), &mut global.tenant_name, auth("project_name"));
    pair(&mut global.domain_id, auth("domain_id"), &mut global.domain_name, auth("domain_name"));
    pair(
        &mut global.tenant_domain_id,
        auth("project_domain_id"),
        &mut global.tenant_domain_name,
        auth("project_domain_name"),
    );
    pair(&mut global.user_domain_id, auth("user_domain_id"), &mut global.user_domain_name, auth("user_domain_name"));
    if !proven {
        let (id, name) = (auth("application_credential_id"), auth("application_credential_name"));
        pair(&mut global.credential_id, id, &mut global.credential_name, name);
        let secrets = [
            (&mut global.credential_secret, auth("application_credential_secret")),
            (&mut global.token, auth("token")),
        ];
        for (spot, value) in secrets {
            if let (true, Some(value)) = (spot.value.0.is_empty(), value) {
                spot.value.0 = Secret::from(value);
            }
        }
    }
    if let (true, Some(password)) = (global.password.value.0.is_empty(), auth("password")) {
        global.password.value.0 = Secret::from(password);
    }
    let rest = [
        (&mut global.auth_url, auth("auth_url")),
        (&mut global.trust_id, auth("trust_id")),
        (&mut global.region, own("region_name")),
        (&mut global.endpoint_type, own("endpoint_type").or_else(|| own("interface"))),
        (&mut global.ca_file, own("cacert")),
        (&mut global.cert_file, own("cert")),
        (&mut global.key_file, own("key")),
    ];
    for (spot, value) in rest {
        if let (true, Some(value)) = (spot.value.is_empty(), value) {
            spot.value = value;
        }
    }
}

fn pair(a: &mut Spot<String>, value_a: Option<String>, b: &mut Spot<String>, value_b: Option<String>) {
    if a.value.is_empty() && b.value.is_empty() {
        a.value = value_a.unwrap_or_default();
        b.value = value_b.unwrap_or_default();
    }
}

/// A value as text; YAML takes digits for a number.
fn plain(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
    .filter(|text| !text.is_empty())
}
