//! The requests of the subcommand `check` to the API server: reads and reviews, which change
//! nothing.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    check::{Area, ClusterFinding, Finding, lease::Lease, permissions::Permission},
    error::chain,
    k8s::well_known,
    runtime::api::{ApiClient, ApiError, ApiErrorKind, ApiRequest},
};

/// The oldest minor version of Kubernetes that the chart supports.
const OLDEST_MINOR: u32 = 30;
/// The newest minor version of Kubernetes that is tested (`docs/compatibility.md`).
const NEWEST_MINOR: u32 = 36;
/// Objects per page of a list.
const PAGE: usize = 500;
/// Maximum number of pages of a list. More objects are left out.
const MAX_PAGES: usize = 40;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    minor: String,
    git_version: String,
}

/// Checks the version of the API server.
pub(super) async fn check_version(api: &ApiClient) -> Finding {
    let version = match get::<Version>(api, "/version").await {
        Ok(version) => version,
        Err(error) => {
            let message = format!("the version cannot be read: {}", chain(&error));
            return ClusterFinding::ApiServerVersionUnknown.about("API server", message);
        }
    };
    let message = format!("Kubernetes {}", version.git_version);
    // Some distributions append a plus sign.
    let minor: Option<u32> = version.minor.trim_end_matches('+').parse().ok();
    match minor {
        Some(minor) if minor < OLDEST_MINOR => {
            ClusterFinding::ApiServerTooOld.about("API server", message)
        }
        Some(minor) if minor > NEWEST_MINOR => {
            ClusterFinding::ApiServerTooNew.about("API server", message)
        }
        _ => Finding::ok(Area::ApiServer, message),
    }
}

/// The API server's answers about permissions.
pub(super) struct Reviews<'a> {
    /// The number of permissions that were asked for.
    pub(super) asked: usize,
    /// The permissions that are missing.
    pub(super) denied: Vec<&'a Permission>,
    /// Why the permissions of the controllers' own ServiceAccounts are not known.
    pub(super) accounts_unknown: Option<String>,
}

/// Asks the API server for each permission.
pub(super) async fn review<'a>(
    api: &ApiClient,
    required: &'a [Permission],
) -> Result<Reviews<'a>, ApiError> {
    #[derive(Deserialize)]
    struct Review {
        status: ReviewStatus,
    }
    #[derive(Deserialize)]
    struct ReviewStatus {
        allowed: bool,
    }
    const OWN: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    const OTHER: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let mut reviews = Reviews { asked: 0, denied: Vec::new(), accounts_unknown: None };
    for permission in required {
        let is_of_account = permission.is_of_account();
        if is_of_account && reviews.accounts_unknown.is_some() {
            continue;
        }
        let path = if is_of_account { OTHER } else { OWN };
        let request = ApiRequest::create(path, &permission.review())?;
        let answer = match api.send(request).await {
            Ok(answer) => answer,
            // Whoever lacks this permission can still check everything else.
            Err(error) if is_of_account && *error.kind() == ApiErrorKind::Forbidden => {
                reviews.accounts_unknown = Some(chain(&error));
                continue;
            }
            Err(error) => return Err(error),
        };
        reviews.asked += 1;
        if !answer.json::<Review>()?.status.allowed {
            reviews.denied.push(permission);
        }
    }
    Ok(reviews)
}

/// Returns the name of the user of this process; `None` if the API server does not say.
pub(in crate::manager) async fn own_user(api: &ApiClient) -> Option<String> {
    const PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer: Value = api
        .send(ApiRequest::create(PATH, &review).ok()?)
        .await
        .ok()?
        .json()
        .ok()?;
    answer["status"]["userInfo"]["username"]
        .as_str()
        .map(str::to_owned)
}

/// Returns true if a controller's ServiceAccount certainly does not exist.
pub(super) async fn is_account_missing(api: &ApiClient, account: &str) -> bool {
    let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{account}");
    get::<Value>(api, &path)
        .await
        .is_err_and(|error| error.is_not_found())
}

/// Reads the Lease of leader election.
pub(in crate::manager) async fn lease(
    api: &ApiClient,
    namespace: &str,
    name: &str,
) -> Result<Lease, ApiError> {
    get(api, &format!("{}/{name}", leases_path(namespace))).await
}

/// Lists the Leases of a namespace with their names.
pub(super) async fn leases(
    api: &ApiClient,
    namespace: &str,
) -> Result<Vec<(String, Lease)>, ApiError> {
    let items = list(api, &leases_path(namespace)).await?;
    let named = items.into_iter().filter_map(|item| {
        let name = item["metadata"]["name"].as_str()?.to_owned();
        Some((name, serde_json::from_value(item).ok()?))
    });
    Ok(named.collect())
}

fn leases_path(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// Lists the pods of a namespace.
pub(super) async fn pods(api: &ApiClient, namespace: &str) -> Result<Vec<Value>, ApiError> {
    list(api, &format!("/api/v1/namespaces/{namespace}/pods")).await
}

/// Lists the Services that are being deleted and have the finalizer of a load balancer, by
/// `namespace/name`.
pub(in crate::manager) async fn services_being_deleted(
    api: &ApiClient,
) -> Result<Vec<String>, ApiError> {
    let has_finalizer = |service: &&Value| {
        let mut finalizers = service["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten();
        finalizers.any(|finalizer| finalizer == well_known::FINALIZER_LOAD_BALANCER)
    };
    let is_deleting = |service: &&Value| !service["metadata"]["deletionTimestamp"].is_null();
    let key = |service: &Value| {
        let metadata = &service["metadata"];
        let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
        Some(format!("{namespace}/{name}"))
    };
    let services = list(api, "/api/v1/services").await?;
    Ok(services
        .iter()
        .filter(has_finalizer)
        .filter(is_deleting)
        .filter_map(key)
        .collect())
}

/// Lists objects, page by page.
async fn list(api: &ApiClient, path: &str) -> Result<Vec<Value>, ApiError> {
    #[derive(Deserialize)]
    struct List {
        #[serde(default)]
        metadata: ListMeta,
        items: Vec<Value>,
    }
    #[derive(Default, Deserialize)]
    struct ListMeta {
        #[serde(default, rename = "continue")]
        next: String,
    }
    let mut items = Vec::new();
    let mut next = String::new();
    for _ in 0..MAX_PAGES {
        let continuation = match &*next {
            "" => String::new(),
            next => format!("&continue={}", crate::percent::encode(next)),
        };
        let page: List = get(api, &format!("{path}?limit={PAGE}{continuation}")).await?;
        items.extend(page.items);
        next = page.metadata.next;
        if next.is_empty() {
            break;
        }
    }
    Ok(items)
}

async fn get<T: DeserializeOwned>(api: &ApiClient, path: &str) -> Result<T, ApiError> {
    api.send(ApiRequest::get(path)).await?.json()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_are_those_of_the_compatibility_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compatibility.md");
        let page = std::fs::read_to_string(page).unwrap();
        let versions = |state: &str| -> Vec<u32> {
            page.lines()
                .filter_map(|line| line.strip_prefix("| 1."))
                .filter_map(|row| row.split_once(" | "))
                .filter(|(_, rest)| rest.starts_with(state))
                .map(|(minor, _)| minor.parse().unwrap())
                .collect()
        };
        assert_eq!(versions("tested with").iter().max(), Some(&NEWEST_MINOR));
        assert_eq!(versions("").iter().min(), Some(&OLDEST_MINOR));
    }
}
