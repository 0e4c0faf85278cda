//! The API server and the CAs that callers are checked with.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use http::{Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::Registry;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use super::super::{AuthClients, AuthError, AuthRefusal, DelegatedAuth, UserInfo};
use crate::{
    config::{AuthenticationConfig, AuthorizationConfig},
    runtime::events::WallClock,
};

/// Any moment, far from the certificates' ends.
pub(super) const START: &str = "2026-05-01T00:00:00Z";

/// An API server that knows tokens, rights and its ConfigMap.
#[derive(Clone, Default)]
pub(super) struct FakeApiServer(Arc<Mutex<ApiServerState>>);

#[derive(Default)]
struct ApiServerState {
    tokens: HashMap<String, Value>,
    /// User and path.
    rights: Vec<(String, String)>,
    config_map: Option<BTreeMap<String, String>>,
    /// Codes of the next answers, before it works again.
    failures: Vec<u16>,
    /// The text of the next answer.
    text: Option<String>,
    /// How long an answer takes.
    delay: Duration,
    /// What was asked: path and spec.
    asked: Vec<(String, Value)>,
}

impl FakeApiServer {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn token(&self, token: &str, user: &str, groups: &[&str]) {
        let user = json!({"username": user, "uid": "u1", "groups": groups, "extra": {"k": ["v"]}});
        self.0.lock().tokens.insert(token.into(), user);
    }

    pub(super) fn revoke(&self, token: &str) {
        self.0.lock().tokens.remove(token);
    }

    pub(super) fn allow(&self, user: &str, path: &str) {
        self.0.lock().rights.push((user.into(), path.into()));
    }

    pub(super) fn forbid_all(&self) {
        self.0.lock().rights.clear();
    }

    pub(super) fn config_map(&self, pairs: &[(&str, &str)]) {
        let pairs = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        self.0.lock().config_map = Some(pairs.collect());
    }

    pub(super) fn no_config_map(&self) {
        self.0.lock().config_map = None;
    }

    pub(super) fn fail(&self, codes: &[u16]) {
        self.0.lock().failures = codes.to_vec();
    }

    pub(super) fn answer_with(&self, text: &str) {
        self.0.lock().text = Some(text.into());
    }

    pub(super) fn delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// How often the resource was asked for.
    pub(super) fn count(&self, resource: &str) -> usize {
        self.0
            .lock()
            .asked
            .iter()
            .filter(|(path, _)| path.contains(resource))
            .count()
    }

    /// The last question's spec.
    pub(super) fn last(&self) -> Value {
        self.0
            .lock()
            .asked
            .last()
            .map(|(_, spec)| spec.clone())
            .unwrap_or_default()
    }

    pub(super) fn client(&self) -> kube::Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let delay = world.0.lock().delay;
                tokio::time::sleep(delay).await;
                let (code, answer) = world.answer(parts.uri.path(), &body);
                let text = world.0.lock().text.take();
                let text = text.unwrap_or_else(|| answer.to_string());
                let response = Response::builder().status(code).body(Full::from(text));
                Ok::<_, tower::BoxError>(response?)
            }
        });
        kube::Client::new(service, "default")
    }

    fn answer(&self, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut state = self.0.lock();
        state.asked.push((path.to_owned(), body["spec"].clone()));
        if !state.failures.is_empty() {
            let code = StatusCode::from_u16(state.failures.remove(0)).unwrap();
            let message = format!("no: {}", body["spec"]);
            return (
                code,
                json!({"kind": "Status", "status": "Failure", "message": message, "code": code.as_u16()}),
            );
        }
        match path {
            "/apis/authentication.k8s.io/v1/tokenreviews" => {
                body["status"] = match state
                    .tokens
                    .get(body["spec"]["token"].as_str().unwrap_or_default())
                {
                    Some(user) => {
                        json!({"authenticated": true, "user": user, "audiences": ["api"]})
                    }
                    None => json!({"user": {}, "error": "invalid bearer token"}),
                };
                (StatusCode::CREATED, body)
            }
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                let spec = &body["spec"];
                let allowed = state.rights.iter().any(|(user, path)| {
                    spec["user"] == **user
                        && spec["nonResourceAttributes"] == json!({"path": path, "verb": "get"})
                });
                body["status"] = json!({"allowed": allowed});
                if !allowed {
                    body["status"]["reason"] = json!("no role");
                }
                (StatusCode::CREATED, body)
            }
            "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication" => {
                match &state.config_map {
                    Some(data) => (StatusCode::OK, json!({"kind": "ConfigMap", "data": data})),
                    None => (
                        StatusCode::NOT_FOUND,
                        json!({"kind": "Status", "reason": "NotFound", "code": 404}),
                    ),
                }
            }
            _ => (StatusCode::NOT_FOUND, json!({"kind": "Status", "code": 404})),
        }
    }
}

/// What a test checks callers with: flags as they are by default, clients of one world.
pub(super) struct Checked {
    pub(super) auth: DelegatedAuth,
    pub(super) registry: Registry,
}

pub(super) fn authentication() -> AuthenticationConfig {
    AuthenticationConfig {
        token_webhook_cache_ttl: Duration::from_secs(10),
        requestheader_username_headers: vec!["x-remote-user".into()],
        requestheader_group_headers: vec!["x-remote-group".into()],
        requestheader_extra_headers_prefix: vec!["x-remote-extra-".into()],
        ..AuthenticationConfig::default()
    }
}

pub(super) fn authorization() -> AuthorizationConfig {
    AuthorizationConfig {
        always_allow_paths: ["/healthz", "/readyz", "/livez"]
            .map(str::to_owned)
            .to_vec(),
        webhook_cache_authorized_ttl: Duration::from_secs(10),
        webhook_cache_unauthorized_ttl: Duration::from_secs(5),
        ..AuthorizationConfig::default()
    }
}

pub(super) fn clients(world: &FakeApiServer) -> AuthClients {
    let client = world.client();
    AuthClients {
        authentication: Some(client.clone()),
        authorization: Some(client),
        user_agent: "test".into(),
    }
}

impl Checked {
    pub(super) async fn new(world: &FakeApiServer) -> Self {
        Self::with(world, |_, _| ()).await.unwrap()
    }

    pub(super) async fn with(
        world: &FakeApiServer,
        change: impl FnOnce(&mut AuthenticationConfig, &mut AuthorizationConfig),
    ) -> Result<Self, AuthError> {
        Self::connect(clients(world), change).await
    }

    pub(super) async fn connect(
        clients: AuthClients,
        change: impl FnOnce(&mut AuthenticationConfig, &mut AuthorizationConfig),
    ) -> Result<Self, AuthError> {
        let (mut who, mut what) = (authentication(), authorization());
        change(&mut who, &mut what);
        let registry = Registry::new();
        let clock = WallClock::tokio_from(START.parse().unwrap());
        Ok(Self {
            auth: DelegatedAuth::connect_at(&who, &what, clients, &registry, clock).await?,
            registry,
        })
    }

    pub(super) async fn call(&self, call: &Call) -> Result<UserInfo, AuthRefusal> {
        self.auth
            .authenticate_and_authorize(&call.peer, &call.parts())
            .await
    }

    /// The status that a call is answered with.
    pub(super) async fn status(&self, call: &Call) -> u16 {
        self.call(call)
            .await
            .map_or_else(|refusal| refusal.status.as_u16(), |_| 200)
    }

    /// The value of a counter for one label.
    pub(super) fn metric(&self, name: &str, label: &str) -> String {
        let families = self.registry.gather();
        let family = families.iter().find(|f| f.name() == name).unwrap();
        let found = family
            .get_metric()
            .iter()
            .find(|m| m.get_label().iter().any(|l| l.value() == label));
        found
            .map_or(0.0, |m| m.get_counter().get_value())
            .to_string()
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Call {
    path: String,
    headers: Vec<(String, String)>,
    peer: Vec<CertificateDer<'static>>,
}

pub(super) fn get(path: &str) -> Call {
    Call { path: path.into(), headers: Vec::new(), peer: Vec::new() }
}

impl Call {
    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(super) fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub(super) fn peer(mut self, chain: &[CertificateDer<'static>]) -> Self {
        self.peer = chain.to_vec();
        self
    }

    pub(super) fn parts(&self) -> Parts {
        let mut request = Request::builder().uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(()).unwrap().into_parts().0
    }
}

/// A certificate authority.
pub(super) struct Ca {
    params: CertificateParams,
    key: KeyPair,
    pub(super) pem: String,
}

fn name(common_name: &[&str], organizations: &[&str]) -> DistinguishedName {
    // A type holds one value there; the second one goes by its number.
    let types = |first: DnType, last: u64| [first, DnType::CustomDnType(vec![2, 5, 4, last])];
    let mut all = DistinguishedName::new();
    for (kind, value) in types(DnType::CommonName, 3).into_iter().zip(common_name) {
        all.push(kind, *value);
    }
    for (kind, value) in types(DnType::OrganizationName, 10)
        .into_iter()
        .zip(organizations)
    {
        all.push(kind, *value);
    }
    all
}

/// What may be odd about a certificate.
#[derive(Clone)]
pub(super) struct Odd {
    pub(super) days: (i64, i64),
    pub(super) usages: Vec<ExtendedKeyUsagePurpose>,
    pub(super) ca: bool,
    pub(super) extensions: Vec<CustomExtension>,
}

impl Default for Odd {
    fn default() -> Self {
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Self { days: (-30, 30), usages, ca: false, extensions: Vec::new() }
    }
}

fn dated(params: &mut CertificateParams, (from, until): (i64, i64)) {
    let start: Timestamp = START.parse().unwrap();
    let ymd = |days: i64| {
        let date = start.to_zoned(jiff::tz::TimeZone::UTC).date() + jiff::Span::new().days(days);
        rcgen::date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    (params.not_before, params.not_after) = (ymd(from), ymd(until));
}

impl Ca {
    pub(super) fn new(common_name: &str) -> Self {
        Self::valid(common_name, (-300, 300))
    }

    pub(super) fn valid(common_name: &str, days: (i64, i64)) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[common_name], &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        dated(&mut params, days);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { params, key, pem }
    }

    /// A client's certificate.
    pub(super) fn client(
        &self,
        common_name: &str,
        organizations: &[&str],
    ) -> Vec<CertificateDer<'static>> {
        self.odd(&[common_name], organizations, &Odd::default())
    }

    pub(super) fn odd(
        &self,
        names: &[&str],
        organizations: &[&str],
        odd: &Odd,
    ) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(names, organizations);
        params.extended_key_usages = odd.usages.clone();
        params.custom_extensions = odd.extensions.clone();
        if odd.ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        dated(&mut params, odd.days);
        let issuer = Issuer::from_params(&self.params, &self.key);
        vec![
            params
                .signed_by(&KeyPair::generate().unwrap(), &issuer)
                .unwrap()
                .der()
                .clone(),
        ]
    }
}
