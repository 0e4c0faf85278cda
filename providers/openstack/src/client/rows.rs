//! Rows of a list, those that cannot be read among them.

use std::fmt;

use serde_json::Value;

use super::OpenStackError;

/// The rows of a list. One that cannot be read does not cost the others, but whoever takes absence
/// as a proof must look at [`unreadable`](Self::unreadable): such a row exists, whatever it is.
#[derive(Debug)]
pub struct Rows<T> {
    /// Rows that were read.
    pub rows: Vec<T>,
    /// Rows that could not be read. Each was logged.
    pub unreadable: Vec<UnreadableRow>,
}

impl<T> Rows<T> {
    /// Returns the number of rows, those that could not be read included.
    pub fn count(&self) -> usize {
        self.rows.len() + self.unreadable.len()
    }

    /// Returns the rows if all of them could be read.
    ///
    /// # Errors
    /// The error of the first row that could not be read.
    pub fn complete(self) -> Result<Vec<T>, OpenStackError> {
        match self.unreadable.into_iter().next() {
            None => Ok(self.rows),
            Some(row) => Err(row.error),
        }
    }

    /// Returns the rows if none of the unreadable ones `may_matter`.
    ///
    /// # Errors
    /// The error of the first unreadable row that may matter.
    pub fn complete_for(
        self,
        may_matter: impl Fn(&UnreadableRow) -> bool,
    ) -> Result<Vec<T>, OpenStackError> {
        let unreadable = self.unreadable.into_iter().filter(may_matter).collect();
        Rows { rows: self.rows, unreadable }.complete()
    }
}

/// A row that could not be read.
#[derive(Clone)]
pub struct UnreadableRow {
    /// The row as it was answered, without its nulls.
    pub(super) row: Value,
    /// What is wrong with it.
    pub(super) error: OpenStackError,
}

impl UnreadableRow {
    /// Returns a field if it is a text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.row.get(field)?.as_str()
    }

    /// Returns what is wrong with the row.
    pub fn error(&self) -> &OpenStackError {
        &self.error
    }

    /// Returns true if the row may have a field that is not null: it has it, or nothing is known about
    /// the row.
    pub fn shows(&self, field: &str) -> bool {
        !self.row.is_object() || self.row.get(field).is_some_and(|value| !value.is_null())
    }

    /// Returns true if a field may have this value: it has it, or is no text.
    pub fn may_have(&self, field: &str, value: &str) -> bool {
        self.text(field).is_none_or(|text| text == value)
    }
}

/// Shows the ID alone. Other fields may be long.
impl fmt::Debug for UnreadableRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnreadableRow")
            .field("id", &self.text("id"))
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}
