//! TLS of the connections to the cloud: CA bundle and client certificate, from files that may
//! change.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use ccm_core::crypto;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};

use crate::config::{ClientPair, Tls};

/// An error in the TLS settings.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {key} {}", path.display())]
    Read {
        /// Key of the configuration.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The content of a file is not as expected.
    #[error("{key} {} {reason}", path.display())]
    Content {
        /// Key of the configuration.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        reason: Box<str>,
    },
    /// The parts do not match, for example certificate and key.
    #[error("TLS cannot be set up")]
    Settings(#[from] rustls::Error),
}

/// Returns the files that the configuration is read from.
pub(super) fn files(tls: &Tls) -> Vec<&Path> {
    let pair = tls.client.iter().flat_map(|pair| [&*pair.cert, &*pair.key]);
    tls.ca_file.as_deref().into_iter().chain(pair).collect()
}

/// Builds the configuration from the current content of the files. Nothing is installed for the
/// whole process.
///
/// # Errors
/// A file that cannot be used.
pub(super) fn config(tls: &Tls) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(crypto::provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = if tls.insecure {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
    } else if let Some(path) = tls.ca_file.as_deref() {
        let trusted = certificates("ca-file", path)?;
        let roots = Arc::new(roots_from_file(path, &trusted)?);
        let inner = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let inner = inner.map_err(|error| TlsError::Content {
            key: "ca-file",
            path: path.to_owned(),
            reason: error.to_string().into(),
        })?;
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustedFileVerifier { inner, trusted }))
    } else {
        builder.with_root_certificates(system_roots())
    };
    let mut config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (chain, key) = client(pair)?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { key, path: path.to_owned(), source })
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content =
        |reason: String| TlsError::Content { key, path: path.to_owned(), reason: reason.into() };
    let pem = read(key, path)?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| content(format!("is not PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(content("holds no certificate".to_owned()));
    }
    Ok(certificates)
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(system.certs);
    if added == 0 {
        let errors: Vec<String> = system.errors.iter().map(ToString::to_string).collect();
        tracing::warn!(
            errors = errors.join("; "),
            "the system has no authorities, so that no server is trusted"
        );
    }
    roots
}

fn roots_from_file(
    path: &Path,
    certificates: &[CertificateDer<'static>],
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        roots
            .add(certificate.clone())
            .map_err(|error| TlsError::Content {
                key: "ca-file",
                path: path.to_owned(),
                reason: format!("has a certificate, number {}, that is none: {error}", index + 1)
                    .into(),
            })?;
    }
    Ok(roots)
}

fn client(
    pair: &ClientPair,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates("cert-file", &pair.cert)?;
    let pem = read("key-file", &pair.key)?;
    // Without the parser's own message: it might repeat a part of the file.
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| TlsError::Content {
        key: "key-file",
        path: pair.key.clone(),
        reason: "holds no private key in PEM without password".into(),
    })?;
    Ok((chain, key))
}

/// Verifies certificates with the authorities of `ca-file`. In contrast to rustls alone, also accepts
/// a self-signed certificate that is itself in the file, and that calls itself an authority. Tools
/// such as `openssl req -x509` make such certificates, and Go and OpenSSL accept them.
#[derive(Debug)]
struct TrustedFileVerifier {
    inner: Arc<WebPkiServerVerifier>,
    /// The certificates in the file.
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for TrustedFileVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let result = self
            .inner
            .verify_server_cert(certificate, intermediates, name, ocsp, now);
        match result {
            Err(error) if is_authority_as_server(&error) && self.trusted.contains(certificate) => {
                // webpki compares the time before it rejects an authority, and the name after it.
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Returns true if the only fault of a server's certificate is that it is an authority's.
fn is_authority_as_server(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) = error
    else {
        return false;
    };
    matches!(error.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Accepts any certificate: `tls-insecure`. That the server has the certificate's key is still
/// checked.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
