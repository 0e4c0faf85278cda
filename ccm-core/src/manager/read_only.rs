//! Clients that reject every write, as the last safeguard of shadow mode.

use std::sync::Arc;

use http::{Method, Request};
use kube::client::Body;

use crate::manager::ClientFactory;

/// The paths of `POST` requests that change nothing, which are reviews of users and permissions.
const REVIEW_PATHS: [&str; 4] = [
    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    "/apis/authentication.k8s.io/v1/tokenreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews",
];

/// The error for a request that would change something.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path} was not sent: a shadow changes nothing")]
struct WriteRefused {
    method: Method,
    path: String,
}

/// Wraps the clients of a factory so that they reject requests that would change something on the
/// API server. This is the last safeguard, for code that does not check the write gate.
pub fn read_only(clients: ClientFactory) -> ClientFactory {
    Arc::new(move |name| {
        let client = clients(name);
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let client = client.clone();
            async move {
                check(request.method(), request.uri().path())?;
                Ok::<_, tower::BoxError>(client.send(request).await?)
            }
        });
        kube::Client::new(service, namespace)
    })
}

fn check(method: &Method, path: &str) -> Result<(), WriteRefused> {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => Ok(()),
        Method::POST if REVIEW_PATHS.contains(&path) => Ok(()),
        _ => Err(WriteRefused { method: method.clone(), path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;

    use super::*;

    #[test]
    fn only_questions_pass() {
        for (method, path, passes) in [
            (Method::GET, "/api/v1/nodes", true),
            (Method::HEAD, "/api", true),
            (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews", true),
            (Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews", true),
            (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", true),
            (Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews", true),
            (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", false),
            (Method::POST, "/api/v1/namespaces/default/events", false),
            (Method::POST, "/api/v1/namespaces/kube-system/serviceaccounts/ccm/token", false),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ccm", false),
            (Method::PATCH, "/api/v1/nodes/n1", false),
            (Method::DELETE, "/api/v1/nodes/n1", false),
            (Method::CONNECT, "/api/v1/nodes/n1/proxy", false),
        ] {
            assert_eq!(check(&method, path).is_ok(), passes, "{method} {path}");
        }
    }

    #[tokio::test]
    async fn what_is_refused_never_reaches_the_connection() {
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = sent.clone();
        let clients: ClientFactory = Arc::new(move |_| {
            let counter = counter.clone();
            let service = tower::service_fn(move |_: Request<Body>| {
                counter.fetch_add(1, Ordering::SeqCst);
                async {
                    Ok::<_, std::convert::Infallible>(Response::new(Body::from(b"{}".to_vec())))
                }
            });
            kube::Client::new(service, "default")
        });
        let client = read_only(clients)("x");
        let send = async |method: &str| {
            let request = Request::builder()
                .method(method)
                .uri("/api/v1/nodes/n1")
                .body(Body::empty())
                .unwrap();
            client.send(request).await.map(drop)
        };
        send("GET").await.unwrap();
        for method in ["PATCH", "DELETE", "PUT", "POST"] {
            let error = crate::error::chain(&send(method).await.unwrap_err());
            assert!(error.contains("a shadow changes nothing"), "{error}");
        }
        assert_eq!(sent.load(Ordering::SeqCst), 1);
    }
}
