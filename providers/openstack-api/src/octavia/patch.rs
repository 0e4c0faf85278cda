use serde::{Serialize, Serializer};

/// Change of a field by an update. Goes with
/// `#[serde(skip_serializing_if = "Patch::is_keep")]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Nothing: the field is absent from the body.
    #[default]
    Keep,
    /// Null: back to none, or to the default.
    Clear,
    /// A value.
    Set(T),
}

impl<T> Patch<T> {
    /// Returns true if the field is absent from the body.
    pub fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    /// Returns the value, if one is set.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Keep | Self::Clear => None,
        }
    }
}

impl<T> From<T> for Patch<T> {
    fn from(value: T) -> Self {
        Self::Set(value)
    }
}

impl<T: Serialize> Serialize for Patch<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(to)
    }
}
