//! Each row is one misconfiguration, for which there must be exactly one line that says what to do
//! about it.

mod fixture;
mod rows;

use std::sync::Arc;

use ccm_core::provider::{Finding, Severity};
use rcgen::{CertificateParams, CertifiedKey};

use self::{
    fixture::{CLUSTER, Fixture},
    rows::{ROWS, Row, load_balancer_of, set},
};

fn problems(findings: &[Finding]) -> Vec<&Finding> {
    findings
        .iter()
        .filter(|finding| finding.severity > Severity::Ok)
        .collect()
}

/// Requests that change something. None of them is one for a token.
fn writes(fixture: &Fixture) -> Vec<String> {
    let mut requests = fixture.stage.requests();
    requests.retain(|request| !request.starts_with("GET "));
    requests
}

#[tokio::test(start_paused = true)]
async fn each_misconfiguration_has_its_line() {
    assert!(ROWS.len() >= 20);
    let mut failures = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        if let Err(failure) = Box::pin(check_row(row)).await {
            failures.push(format!("row {number}, {}: {failure}", row.1));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns what is wrong with the findings about the misconfiguration of a row.
async fn check_row((plant, name, severity, object, advice): &Row) -> Result<(), String> {
    let mut fixture = Fixture::new().await;
    plant(&mut fixture);
    let findings = fixture.check().await;
    let [line] = problems(&findings)[..] else {
        return Err(format!("{findings:#?}"));
    };
    let (object, writes) = (object(&fixture), writes(&fixture));
    let is_expected = (line.name, line.severity) == (*name, *severity)
        && (object.is_empty() || line.object == object)
        && line.advice.contains(advice)
        && !line.consequence.is_empty()
        && writes.is_empty();
    if is_expected {
        return Ok(());
    }
    Err(format!("expected {object}, {advice:?}; writes: {writes:?}; {line:#?}"))
}

/// No controller reads quotas, so nothing fails without them.
#[tokio::test(start_paused = true)]
async fn quotas_that_may_not_be_read_are_no_problem() {
    let mut fixture = Fixture::new().await;
    fixture.fault = Some(("/network/v2.0/quotas", 403));
    let findings = fixture.check().await;
    assert!(problems(&findings).is_empty(), "{findings:#?}");
    let mut messages = findings.iter().map(|finding| &*finding.message);
    let text = "the quotas of the network service may not be read";
    assert!(messages.any(|message| message.starts_with(text)), "{findings:#?}");
}

/// The certificate of Keystone is of another CA than the file has.
#[tokio::test]
async fn a_wrong_ca_is_named() {
    let CertifiedKey { cert, signing_key } = self_signed();
    let own = self_signed().cert;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, own.pem()).unwrap();
    let (address, server) = serve(&cert.pem(), &signing_key.serialize_pem()).await;

    let mut fixture = Fixture::new().await;
    fixture.uses_sockets = true;
    set(&mut fixture.global, "auth-url", &format!("https://{address}/v3"));
    set(&mut fixture.global, "ca-file", &file.display().to_string());
    let findings = fixture.check().await;
    server.abort();
    let found = problems(&findings);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].name, "KeystoneUnreachable");
    assert!(found[0].message.contains("certificate"), "{}", found[0].message);
    assert!(found[0].advice.contains("ca-file has the CA"), "{}", found[0].advice);
}

fn self_signed() -> CertifiedKey<rcgen::KeyPair> {
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let cert = params.self_signed(&signing_key).unwrap();
    CertifiedKey { cert, signing_key }
}

/// Accepts TLS connections with this certificate, and says nothing.
async fn serve(cert: &str, key: &str) -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // The client does not accept the certificate.
            let _ = acceptor.accept(stream).await;
        }
    });
    (address, task)
}

#[tokio::test(start_paused = true)]
async fn a_healthy_cluster_is_green_and_nothing_is_changed() {
    let mut fixture = Fixture::new().await;
    load_balancer_of(&mut fixture, CLUSTER);
    load_balancer_of(&mut fixture, "other");
    let findings = fixture.check().await;
    let found = problems(&findings);
    assert!(found.is_empty(), "{found:#?}");
    let messages: Vec<&str> = findings.iter().map(|finding| &*finding.message).collect();
    let messages = messages.join("\n");
    for line in [
        "user demo in project demo (".to_owned(),
        // Keystone's order.
        "), roles: ".to_owned(),
        "compute service at http://cloud.test/compute".to_owned(),
        "load-balancer service at http://cloud.test/load-balancer".to_owned(),
        "driver amphora: tags, timeouts".to_owned(),
        format!("floating-network-id {} of [LoadBalancer] exists", fixture.external),
        format!("subnet-id {} of [LoadBalancer] exists", fixture.subnet),
        "exists and has 0 routes".to_owned(),
        "other clusters in this project: other".to_owned(),
        "floating IPs: 0 of 50 in use".to_owned(),
        "load balancers: 2".to_owned(),
    ] {
        assert!(messages.contains(&line), "{line}: {messages}");
    }
    assert_eq!(writes(&fixture), [""; 0]);
    assert!(fixture.stage.requests().len() <= 20, "{:?}", fixture.stage.requests());
}
