//! TLS settings of the server.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
    version::{TLS12, TLS13},
};

use super::certificates::Certificates;
use crate::config::{self, TlsVersion};

/// Builds the TLS configuration of the server.
pub(super) fn server_config(
    config: &config::ServingConfig,
    provider: &Arc<CryptoProvider>,
    certificates: Arc<Certificates>,
) -> Result<ServerConfig, Error> {
    let versions = match config.tls_min_version {
        TlsVersion::Tls13 => &[&TLS13][..],
        // The library supports no older versions.
        TlsVersion::Default | TlsVersion::Tls10 | TlsVersion::Tls11 | TlsVersion::Tls12 => {
            &[&TLS13, &TLS12]
        }
    };
    let verifier = AnyClient(provider.clone());
    let mut tls = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(certificates);
    // The operator's list of groups or suites is in order of preference.
    tls.ignore_client_order = true;
    tls.alpn_protocols = if config.disable_http2 {
        vec![b"http/1.1".to_vec()]
    } else {
        vec![b"h2".to_vec(), b"http/1.1".to_vec()]
    };
    Ok(tls)
}

/// Requests a client certificate and accepts any, or none. Who its holder is, is decided per
/// request, with CAs that change while the process runs. The handshake only proves that the client
/// has the certificate's key.
#[derive(Debug)]
struct AnyClient(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
