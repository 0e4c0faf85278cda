//! Who is asking, and what they may do: bearer tokens and a small RBAC.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::request::RequestInfo;
use super::status::ApiError;

/// Group of those who may do everything.
pub const MASTERS: &str = "system:masters";
/// User of requests over the network without a token.
pub const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";

/// A user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Unique id, or empty.
    pub uid: String,
    /// Groups; `system:authenticated` is added to known users.
    pub groups: Vec<String>,
}

impl User {
    /// Returns a user in `system:authenticated` and these groups.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let groups = groups
            .iter()
            .copied()
            .chain([AUTHENTICATED])
            .map(str::to_owned)
            .collect();
        Self { name: name.into(), uid: String::new(), groups }
    }

    /// Returns the user of a service account.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
        Self::new(&format!("system:serviceaccount:{namespace}:{name}"), &groups)
    }

    pub fn admin() -> Self {
        Self::new("kubernetes-admin", &[MASTERS])
    }

    pub(crate) fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.into(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".into()],
        }
    }
}

/// Attributes of a request for its authorization.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Verb.
    pub verb: String,
    /// API group.
    pub group: String,
    /// Resource; empty for paths that are no resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Object name, or empty.
    pub name: String,
    /// Path, for what is no resource.
    pub path: String,
}

/// One rule, in the form of an RBAC `PolicyRule`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Verbs, or `*`.
    pub verbs: Vec<String>,
    /// API groups, or `*`.
    pub api_groups: Vec<String>,
    /// Resources as `nodes` or `nodes/status`, or `*`.
    pub resources: Vec<String>,
    /// Names; empty for all.
    pub resource_names: Vec<String>,
    /// Paths that are no resource; a final `*` matches any rest.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
    /// Namespaces this rule is bound in; empty for the whole cluster. Not a field of `PolicyRule`:
    /// it stands for the namespace of a `RoleBinding`.
    pub namespaces: Vec<String>,
}

impl Rule {
    /// Returns the rules of a `Role` or `ClusterRole` given as JSON.
    ///
    /// # Errors
    /// The text has no list of rules.
    pub fn of_role(role: &serde_json::Value) -> Result<Vec<Self>, serde_json::Error> {
        Vec::<Self>::deserialize(&role["rules"])
    }

    /// Returns true if the rule grants this.
    pub fn allows(&self, wanted: &Attributes) -> bool {
        let has = |list: &[String], value: &str| list.iter().any(|v| v == "*" || v == value);
        if !has(&self.verbs, &wanted.verb) {
            return false;
        }
        if wanted.resource.is_empty() {
            return self
                .non_resource_urls
                .iter()
                .any(|url| match url.strip_suffix('*') {
                    Some(prefix) => wanted.path.starts_with(prefix),
                    None => *url == wanted.path,
                });
        }
        let target = match wanted.subresource.as_str() {
            "" => wanted.resource.clone(),
            sub => format!("{}/{sub}", wanted.resource),
        };
        let any_of_sub = format!("*/{}", wanted.subresource);
        has(&self.api_groups, &wanted.group)
            && (has(&self.resources, &target) || self.resources.contains(&any_of_sub))
            && (self.resource_names.is_empty() || self.resource_names.contains(&wanted.name))
            && (self.namespaces.is_empty() || self.namespaces.contains(&wanted.namespace))
    }
}

/// Decides about one request.
pub type AccessCheck = Arc<dyn Fn(&User, &Attributes) -> bool + Send + Sync>;

/// Permissions of one user.
#[derive(Clone)]
pub enum Access {
    /// Everything.
    All,
    /// Everything that one of the rules grants.
    Rules(Vec<Rule>),
    /// Everything that the function allows.
    Check(AccessCheck),
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::Rules(rules) => f.debug_tuple("Rules").field(rules).finish(),
            Self::Check(_) => f.write_str("Check"),
        }
    }
}

/// Tokens and rights; cheap to clone, all clones are one. Users without rights of their own may do
/// everything.
#[derive(Clone, Default)]
pub struct Users {
    shared: Arc<RwLock<UsersState>>,
}

#[derive(Default)]
struct UsersState {
    tokens: HashMap<String, Token>,
    access: HashMap<String, Access>,
}

#[derive(Clone)]
struct Token {
    user: User,
    expires: Option<Timestamp>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tokens are secrets.
        let state = self.shared.read();
        f.debug_struct("Users")
            .field("tokens", &state.tokens.len())
            .field("access", &state.access)
            .finish()
    }
}

impl Users {
    /// Adds a token for a user.
    pub fn add(&self, token: &str, user: User) {
        self.shared
            .write()
            .tokens
            .insert(token.into(), Token { user, expires: None });
    }

    pub(crate) fn add_until(&self, token: &str, user: User, expires: Timestamp) {
        self.shared
            .write()
            .tokens
            .insert(token.into(), Token { user, expires: Some(expires) });
    }

    /// Revokes a token.
    pub fn revoke(&self, token: &str) {
        self.shared.write().tokens.remove(token);
    }

    /// Limits the user of that name.
    pub fn set_access(&self, user: &str, access: Access) {
        self.shared.write().access.insert(user.into(), access);
    }

    /// Returns the user of a token.
    pub fn authenticate(&self, token: &str, now: Timestamp) -> Option<User> {
        let found = self.shared.read().tokens.get(token).cloned()?;
        found.expires.is_none_or(|e| now < e).then_some(found.user)
    }

    /// Returns true if the user may do this.
    pub fn allowed(&self, user: &User, wanted: &Attributes) -> bool {
        if user.groups.iter().any(|g| g == MASTERS) || is_public(user, wanted) {
            return true;
        }
        if user.name == ANONYMOUS {
            return false;
        }
        match self.shared.read().access.get(&user.name) {
            None | Some(Access::All) => true,
            Some(Access::Rules(rules)) => rules.iter().any(|r| r.allows(wanted)),
            Some(Access::Check(check)) => check(user, wanted),
        }
    }

    /// Refuses what the user may not do.
    ///
    /// # Errors
    /// 403 in the real server's words.
    pub(crate) fn authorize(&self, user: &User, wanted: &Attributes) -> Result<(), ApiError> {
        if self.allowed(user, wanted) {
            return Ok(());
        }
        let who = &user.name;
        if wanted.resource.is_empty() {
            let message = format!("User \"{who}\" cannot {} path \"{}\"", wanted.verb, wanted.path);
            return Err(ApiError::forbidden("", "", "", &message));
        }
        let target = match wanted.subresource.as_str() {
            "" => wanted.resource.clone(),
            sub => format!("{}/{sub}", wanted.resource),
        };
        let place = match wanted.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        let message = format!(
            "User \"{who}\" cannot {} resource \"{target}\" in API group \"{}\" {place}",
            wanted.verb, wanted.group
        );
        Err(ApiError::forbidden(&wanted.group, &wanted.resource, &wanted.name, &message))
    }
}

/// Returns true if `system:public-info-viewer`, `system:discovery` or `system:basic-user` grants
/// the request.
fn is_public(user: &User, wanted: &Attributes) -> bool {
    let known = user.name != ANONYMOUS;
    let path = wanted.path.as_str();
    if wanted.resource.is_empty() {
        let for_all = ["/healthz", "/livez", "/readyz", "/version", "/version/"].contains(&path);
        let for_known = ["/api", "/apis", "/openapi"].iter().any(|p| {
            path.strip_prefix(p)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        return wanted.verb == "get" && (for_all || (known && for_known));
    }
    known && wanted.verb == "create" && wanted.resource == "selfsubjectaccessreviews"
}

impl Attributes {
    pub(crate) fn of(info: &RequestInfo) -> Self {
        let namespaces = info.resource == "namespaces" && info.group.is_empty();
        Self {
            verb: info.verb.clone(),
            group: info.group.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            // The real server sees a namespace's name as its namespace too.
            namespace: if namespaces {
                info.name.clone()
            } else {
                info.namespace.clone()
            },
            name: info.name.clone(),
            path: info.path.clone(),
        }
    }
}
