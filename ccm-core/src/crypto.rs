//! The cryptography library of this program, which is chosen here and nowhere else.
//!
//! It is ring. In a build with the cargo feature `fips` it is AWS-LC in FIPS mode, for TLS in both
//! directions, certificates, and hashes of tokens. `docs/install.md` says what such a build covers.
//!
//! Code that needs TLS takes [`provider`], also where a library would choose one by itself.

#[cfg(feature = "fips")]
use aws_lc_rs as library;
#[cfg(not(feature = "fips"))]
use ring as library;
#[cfg(feature = "fips")]
use rustls::crypto::aws_lc_rs as tls;
#[cfg(not(feature = "fips"))]
use rustls::crypto::ring as tls;
use rustls::{
    SupportedCipherSuite,
    crypto::{CryptoProvider, SupportedKxGroup},
};

pub(crate) use library::{digest, hmac, rand::SystemRandom};

/// Whether this is a build for FIPS 140-3, with the feature `fips`.
pub const FIPS: bool = cfg!(feature = "fips");

/// The library's name, for `--version=raw`, `/statusz` and the log.
pub const LIBRARY: &str = if FIPS { "AWS-LC in FIPS mode" } else { "ring" };

/// Error of a build for FIPS whose cryptography is not in FIPS mode.
#[derive(Debug, thiserror::Error)]
#[error("this is a FIPS build, and its cryptography is not in FIPS mode")]
pub struct NotInFipsMode;

/// Returns the cryptography of TLS connections, with the library's default cipher suites and
/// groups. In a FIPS build these are the approved ones.
pub fn provider() -> CryptoProvider {
    tls::default_provider()
}

/// Makes [`provider`] the default of the process, unless there is one. The client of the API server
/// uses the default. Can be called again.
///
/// # Errors
/// Returns an error if this is a FIPS build and the default is not in FIPS mode. Nothing may be
/// connected then.
pub fn install() -> Result<(), NotInFipsMode> {
    if CryptoProvider::get_default().is_none() {
        // Fails if another thread was faster. What counts is the default afterwards.
        let _ = provider().install_default();
    }
    check(CryptoProvider::get_default().map(AsRef::as_ref))
}

/// Checks the default of the process.
fn check(default: Option<&CryptoProvider>) -> Result<(), NotInFipsMode> {
    if FIPS && !default.is_some_and(CryptoProvider::fips) {
        return Err(NotInFipsMode);
    }
    Ok(())
}

/// Returns every cipher suite that the library has, approved or not.
pub(crate) fn cipher_suites() -> &'static [SupportedCipherSuite] {
    tls::ALL_CIPHER_SUITES
}

/// Returns every key-exchange group that the library has, approved or not.
pub(crate) fn key_exchanges() -> &'static [&'static dyn SupportedKxGroup] {
    tls::ALL_KX_GROUPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_of_the_process_is_ours_and_in_fips_mode_where_it_has_to_be() {
        install().unwrap();
        install().unwrap();
        let default = CryptoProvider::get_default().unwrap();
        assert_eq!((default.fips(), provider().fips()), (FIPS, FIPS));
    }

    #[test]
    fn a_fips_build_refuses_another_library() {
        let ring = rustls::crypto::ring::default_provider();
        assert_eq!(check(Some(&ring)).is_err(), FIPS);
        assert_eq!(check(None).is_err(), FIPS);
        assert!(check(Some(&provider())).is_ok());
    }

    #[test]
    fn certificates_are_signed_by_the_same_library() {
        let made = rcgen::generate_simple_self_signed(["manager.test".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let server = rustls::ServerConfig::builder_with_provider(provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.into()], key.into())
            .unwrap();
        assert_eq!(server.fips(), FIPS);
    }
}
