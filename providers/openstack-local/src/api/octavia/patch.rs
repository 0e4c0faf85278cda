use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Change of a field by an update. Goes with
/// `#[serde(default, skip_serializing_if = "Patch::is_keep")]`.
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

    /// Changes `field`; null makes it the default of its type.
    pub fn apply(self, field: &mut T)
    where
        T: Default,
    {
        self.apply_or(field, T::default());
    }

    /// Changes `field`; null makes it `default`.
    pub fn apply_or(self, field: &mut T, default: T) {
        match self {
            Self::Keep => {}
            Self::Clear => *field = default,
            Self::Set(value) => *field = value,
        }
    }

    /// Changes `field`; null makes it `None`.
    pub fn apply_opt(self, field: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *field = None,
            Self::Set(value) => *field = Some(value),
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

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(match Option::deserialize(from)? {
            None => Self::Clear,
            Some(value) => Self::Set(value),
        })
    }
}
