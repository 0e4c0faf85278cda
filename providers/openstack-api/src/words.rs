//! The words of the services: states, protocols, algorithms and the like.

/// Defines an enum of a service's words. An unknown word is kept as it is, because newer releases may
/// have more.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$word_doc])* $variant,)*
            /// An unknown word.
            Other(Box<str>),
        }

        impl $name {
            /// All known words.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the word.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        /// The empty word, for a field that an answer lacks.
        impl Default for $name {
            fn default() -> Self {
                Self::Other(Box::default())
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    word => Self::Other(word.into()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let word = std::borrow::Cow::<'de, str>::deserialize(from)?;
                Ok(Self::from(&*word))
            }
        }
    };
}
pub(crate) use words;
