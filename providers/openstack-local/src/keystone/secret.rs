//! Secrets: generated at random, stored as salted hashes.

use std::num::NonZeroU32;

use crate::api::Secret;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::pbkdf2;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Rounds for hashing a secret that a user chose: they take a few milliseconds. The cloud is a
/// local one, and its users wait for each token.
const ROUNDS: NonZeroU32 = NonZeroU32::new(10_000).expect("ten thousand is not zero");

/// A secret as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashed {
    rounds: NonZeroU32,
    salt: String,
    hash: String,
}

impl Hashed {
    /// Hashes a secret that a user chose, with a salt of its own.
    pub fn new(secret: &Secret) -> Self {
        Self::with(ROUNDS, secret)
    }

    /// Hashes a secret that was generated at random: it is too long to guess, so that one round is
    /// enough.
    pub(crate) fn of_random(secret: &Secret) -> Self {
        Self::with(NonZeroU32::MIN, secret)
    }

    fn with(rounds: NonZeroU32, secret: &Secret) -> Self {
        let salt = random(16);
        let mut hash = [0; 32];
        let text = secret.expose().as_bytes();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt.as_bytes(), text, &mut hash);
        Self { rounds, salt, hash: URL_SAFE_NO_PAD.encode(hash) }
    }

    /// Returns whether this was the secret.
    pub fn verify(&self, secret: &Secret) -> bool {
        let Ok(hash) = URL_SAFE_NO_PAD.decode(&self.hash) else {
            return false;
        };
        let salt = self.salt.as_bytes();
        let secret = secret.expose().as_bytes();
        pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA256, self.rounds, salt, secret, &hash).is_ok()
    }
}

/// Returns random text with this many bytes of randomness.
pub(super) fn random(bytes: usize) -> String {
    let bytes: Vec<u8> = (0..bytes).map(|_| rand::random()).collect();
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a random secret.
pub(crate) fn random_secret() -> Secret {
    random(32).into()
}

/// Returns the lookup key of a token. Tokens are random, so a plain digest cannot be reversed.
pub(super) fn digest(token: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_knows_its_secret_and_no_other() {
        let (one, two) = (Hashed::new(&"s".into()), Hashed::of_random(&"s".into()));
        assert!(one.verify(&"s".into()) && two.verify(&"s".into()));
        assert!(!one.verify(&"t".into()) && !one.verify(&"".into()));
        assert_ne!(one, two, "no salt");
        assert!(
            !serde_json::to_string(&Hashed::new(&"swordfish".into()))
                .unwrap()
                .contains("swordfish")
        );
    }
}
