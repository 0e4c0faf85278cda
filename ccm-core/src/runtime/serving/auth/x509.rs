//! Verification of client certificates.

use std::{sync::Arc, time::Duration};

use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use x509_cert::{
    Certificate, TbsCertificate,
    attr::AttributeValue,
    der::{
        Decode, Tag, Tagged,
        asn1::{Ia5StringRef, ObjectIdentifier, PrintableStringRef, Utf8StringRef},
    },
    ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage},
};

use super::UserInfo;
use crate::crypto::{self, digest};

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
/// Kubernetes' own attribute for the UID of a user (`k8s.io/apimachinery/pkg/apis/asn1` v0.37).
const KUBERNETES_UID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");
/// The key of the extra value in which upstream identifies the credential.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// CAs of client certificates.
#[derive(Debug)]
pub(super) struct CaBundle {
    pem: Vec<u8>,
    ca_certificates: Vec<CaCertificate>,
}

/// One CA. Each has its own verifier, because the library does not check a trust anchor's validity
/// period and this code does.
#[derive(Debug)]
struct CaCertificate {
    from: Duration,
    until: Duration,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Subject of a verified certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CertificateSubject {
    /// `CN`, or empty.
    pub(super) common_name: String,
    organizations: Vec<String>,
    uid: String,
    fingerprint: String,
}

impl CaBundle {
    /// Parses a PEM bundle. Certificates in it that are not CAs are ignored; at least one must be a
    /// CA.
    ///
    /// # Errors
    /// The text is not PEM, or contains no CA.
    pub(super) fn parse(pem: &[u8]) -> Result<Self, String> {
        let provider = Arc::new(crypto::provider());
        let mut anchors = Vec::new();
        let mut skipped = Vec::new();
        for (index, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
            let certificate = certificate
                .map_err(|error| format!("certificate {} is no PEM: {error}", index + 1))?;
            match CaCertificate::new(certificate, &provider) {
                Ok(anchor) => anchors.push(anchor),
                Err(reason) => skipped.push(format!("certificate {}: {reason}", index + 1)),
            }
        }
        if anchors.is_empty() {
            let reason = if skipped.is_empty() {
                "it holds no certificate".to_owned()
            } else {
                skipped.join(", ")
            };
            return Err(format!("no CA that can be used: {reason}"));
        }
        for reason in skipped {
            tracing::warn!(%reason, "part of a bundle of client CAs is not used");
        }
        Ok(Self { pem: pem.to_vec(), ca_certificates: anchors })
    }

    /// Returns true if the bundle was parsed from this text.
    pub(super) fn is_of(&self, pem: &[u8]) -> bool {
        self.pem == pem
    }

    /// Verifies a client certificate, with the intermediates that the client sent, for client
    /// authentication at this time. The TLS handshake has proven that the client has its key.
    ///
    /// # Errors
    /// Why the certificate is not accepted, for the log.
    pub(super) fn verify(
        &self,
        peer: &[CertificateDer<'static>],
        now: UnixTime,
    ) -> Result<CertificateSubject, String> {
        let Some((leaf, others)) = peer.split_first() else {
            return Err("no certificate".into());
        };
        let since_epoch = Duration::from_secs(now.as_secs());
        let mut reason = "all CAs have expired".to_owned();
        for anchor in self
            .ca_certificates
            .iter()
            .filter(|a| a.from <= since_epoch && since_epoch <= a.until)
        {
            match anchor.verifier.verify_client_cert(leaf, others, now) {
                Ok(_) => return subject(leaf),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(reason)
    }
}

impl CaCertificate {
    fn new(der: CertificateDer<'static>, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let certificate = parse(&der)?;
        let tbs = certificate.tbs_certificate();
        let constraints = tbs
            .get_extension::<BasicConstraints>()
            .map_err(|e| e.to_string())?;
        let usage = tbs.get_extension::<KeyUsage>().map_err(|e| e.to_string())?;
        if !constraints.is_some_and(|(_, constraints)| constraints.ca) {
            return Err("it is no CA".into());
        }
        if usage.is_some_and(|(_, usage)| !usage.key_cert_sign()) {
            return Err("it may not sign certificates".into());
        }
        let mut roots = RootCertStore::empty();
        roots.add(der).map_err(|e| e.to_string())?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                .build();
        Ok(Self {
            from: tbs.validity().not_before.to_unix_duration(),
            until: tbs.validity().not_after.to_unix_duration(),
            verifier: verifier.map_err(|e| e.to_string())?,
        })
    }
}

impl CertificateSubject {
    /// Returns the user of the certificate as upstream does: `CN` is the name, each `O` a group.
    /// `None` without a name.
    pub(super) fn user_info(self) -> Option<UserInfo> {
        if self.common_name.is_empty() {
            return None;
        }
        let extra =
            [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={}", self.fingerprint)])].into();
        Some(UserInfo {
            name: self.common_name,
            uid: self.uid,
            groups: self.organizations,
            extra,
        })
    }
}

/// Parses the subject of a verified certificate. Also requires the extended key usage for clients:
/// the verifier checks it only if the extension is present.
fn subject(der: &CertificateDer<'_>) -> Result<CertificateSubject, String> {
    let certificate = parse(der)?;
    let tbs = certificate.tbs_certificate();
    let usage = tbs
        .get_extension::<ExtendedKeyUsage>()
        .map_err(|e| e.to_string())?;
    if !usage.is_some_and(|(_, usage)| usage.0.contains(&CLIENT_AUTH)) {
        return Err("it does not say that it is for clients".into());
    }
    let uids = values(tbs, KUBERNETES_UID)?;
    if uids.len() > 1 || uids.iter().any(String::is_empty) {
        return Err("its subject has no clear UID".into());
    }
    let mut names = values(tbs, COMMON_NAME)?;
    let common_name = names.pop().unwrap_or_default();
    if !names.is_empty() {
        return Err("its subject has several common names".into());
    }
    let digest = digest::digest(&digest::SHA256, der);
    let fingerprint = digest
        .as_ref()
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let uid = uids.into_iter().next().unwrap_or_default();
    Ok(CertificateSubject {
        common_name,
        organizations: values(tbs, ORGANIZATION)?,
        uid,
        fingerprint,
    })
}

fn parse(der: &CertificateDer<'_>) -> Result<Certificate, String> {
    Certificate::from_der(der).map_err(|error| format!("it cannot be read: {error}"))
}

/// Returns the values of one attribute of the subject, in order.
fn values(tbs: &TbsCertificate, kind: ObjectIdentifier) -> Result<Vec<String>, String> {
    tbs.subject()
        .iter()
        .filter(|attribute| attribute.oid == kind)
        .map(|attribute| text(&attribute.value))
        .collect::<Result<_, _>>()
        .map_err(|error| format!("its subject cannot be read: {error}"))
}

/// Returns the text of an attribute. Older encodings are errors, because other programs could
/// decode them to another name.
fn text(value: &AttributeValue) -> x509_cert::der::Result<String> {
    let text = match value.tag() {
        Tag::Utf8String => value.decode_as::<Utf8StringRef<'_>>()?.as_str().to_owned(),
        Tag::PrintableString => value
            .decode_as::<PrintableStringRef<'_>>()?
            .as_str()
            .to_owned(),
        Tag::Ia5String => value.decode_as::<Ia5StringRef<'_>>()?.as_str().to_owned(),
        other => return Err(other.value_error().into()),
    };
    Ok(text)
}
