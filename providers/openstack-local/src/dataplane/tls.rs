//! TLS towards clients, with the listener's certificate, and towards members that are checked.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::config::TlsConfig;

/// Creates the acceptor for TLS from clients.
///
/// # Errors
/// What is wrong with the certificate or its key, without their content.
pub(super) fn acceptor(config: &TlsConfig) -> Result<TlsAcceptor, String> {
    let chain = CertificateDer::pem_slice_iter(config.certificate_chain.as_bytes())
        .collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| format!("the certificate chain is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err("the certificate chain holds no certificate".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(config.private_key.as_bytes());
    let key = key.map_err(|_| "the private key is not one in PEM".to_owned())?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| format!("the certificate cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Creates a connector that accepts any certificate: a check tests whether a member serves, not who
/// it is.
///
/// # Errors
/// Never with the protocol versions that are built in.
pub(super) fn unverified() -> Result<TlsConnector, Error> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Accepts every certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
