//! The authorities that are trusted.

use std::{fs, path::Path, sync::Arc, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, pki_types::PrivateKeyDer},
};

use super::{
    super::{
        ca_bundle::{self, CaBundleError},
        connect::{ConnectOptions, connect_with},
    },
    ask, nothing, section,
    server::Server,
    settings,
};
use crate::{api::AwsErrorCause, config::OverriddenService};

/// An authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A server for `localhost` with a certificate of this authority.
    async fn server(&self) -> (Server, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let server =
            Server::start_with(|_| nothing(), Some(TlsAcceptor::from(Arc::new(config)))).await;
        let url = format!("https://localhost:{}", server.port);
        (server, url)
    }
}

fn around(bundle: &Path) -> ConnectOptions {
    let keys = aws_credential_types::Credentials::new("AKIDGIVEN", "s", None, None, "test");
    let credentials = Some(aws_credential_types::provider::SharedCredentialsProvider::new(keys));
    ConnectOptions {
        bundle: Some(bundle.to_owned()),
        credentials,
        ca_check_interval: Duration::ZERO,
    }
}

#[tokio::test]
async fn a_rotated_bundle_takes_effect() {
    let (one, two) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("ca.pem");
    fs::write(&bundle, &one.pem).unwrap();
    let ((_first, first_url), (second, second_url)) = (one.server().await, two.server().await);
    let overrides = vec![
        section(OverriddenService::Ec2, &first_url),
        section(OverriddenService::Elb, &second_url),
    ];
    let transport = connect_with(&settings(overrides), around(&bundle))
        .await
        .unwrap()
        .transport;
    ask(&transport, &OverriddenService::Ec2).await.unwrap();
    let error = ask(&transport, &OverriddenService::Elb).await.unwrap_err();
    assert!(matches!(error.cause, AwsErrorCause::NoResponse(_)), "{error:?}");
    assert!(second.take().is_empty());

    // A file that cannot be used leaves what there was.
    fs::write(&bundle, "half a certificate").unwrap();
    ask(&transport, &OverriddenService::Ec2).await.unwrap();

    fs::write(&bundle, format!("{}{}", one.pem, two.pem)).unwrap();
    ask(&transport, &OverriddenService::Elb).await.unwrap();
    ask(&transport, &OverriddenService::Ec2).await.unwrap();

    fs::write(&bundle, &two.pem).unwrap();
    ask(&transport, &OverriddenService::Elb).await.unwrap();
    ask(&transport, &OverriddenService::Ec2).await.unwrap_err();
}

#[test]
fn a_bundle_that_cannot_be_used_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    let error = |path: &Path| ca_bundle::client(Some(path.to_owned()), Duration::ZERO).unwrap_err();
    assert!(matches!(error(&path), CaBundleError::Read { .. }));
    for (content, reason) in [
        ("", "holds no certificate"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "is not PEM"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "number 1, that is none",
        ),
    ] {
        fs::write(&path, content).unwrap();
        let error = error(&path).to_string();
        assert!(error.contains(reason) && error.contains("ca.pem"), "{error}");
    }
}
