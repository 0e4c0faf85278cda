//! Self-signed certificates: sufficient for probes and for clients that do not verify the server.

use std::{io, io::Write as _, net::IpAddr, os::unix::fs::OpenOptionsExt as _, path::Path};

use jiff::{Timestamp, tz::TimeZone};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// Validity in years. Longer than any process runs, because nothing renews the certificate while it
/// is served.
const YEARS: i16 = 10;

/// A certificate and its key, in PEM.
pub(super) struct SelfSignedCertificate {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Creates a certificate for loopback and, unless it is unspecified, for the bind address.
pub(super) fn generate(bind: IpAddr) -> Result<SelfSignedCertificate, rcgen::Error> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !bind.is_unspecified() && !names.contains(&bind.to_string()) {
        names.push(bind.to_string());
    }
    let mut params = CertificateParams::new(names)?;
    params
        .distinguished_name
        .push(DnType::CommonName, "cloud-controller-manager");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Valid from yesterday, since clocks differ. Days above 28 are cut, so that the same day exists
    // in the year of its end.
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let begin = today.yesterday().unwrap_or(today);
    let month = u8::try_from(begin.month()).unwrap_or(1);
    let day = u8::try_from(begin.day()).unwrap_or(1).min(28);
    params.not_before = date_time_ymd(begin.year().into(), month, day);
    params.not_after = date_time_ymd(begin.year().saturating_add(YEARS).into(), month, day);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(SelfSignedCertificate { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Creates a file with this mode, further restricted by the umask; fails if the file exists.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    options.open(path)?.write_all(text.as_bytes())
}
