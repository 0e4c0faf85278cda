//! Listings whose pages are numbered.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::RestClient;
use crate::provider::{CloudError, Op};

/// The format of listings whose pages are numbered.
///
/// ```
/// # use ccm_core::provider::rest::PageFormat;
/// /// `GET v1/servers?page=2`: `{"servers": [...], "meta": {"pagination": {"next_page": 3}}}`
/// const PAGES: PageFormat =
///     PageFormat { parameter: "page", next: "/meta/pagination/next_page" };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFormat {
    /// The query parameter with the number of the page. The first page is read without it.
    pub parameter: &'static str,
    /// The JSON pointer (RFC 6901) to the number of the next page, which is `null` on the last one.
    pub next: &'static str,
}

impl RestClient {
    /// Reads a list with numbered pages completely. `items` is the JSON pointer to the objects of a
    /// page, such as `/servers`.
    ///
    /// An object that is deleted during the listing moves another one to a page that was already
    /// read. So the list proves that its objects exist. It does not prove that others are absent:
    /// ask for each of these by its ID.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get), and [`ErrorKind::Transient`] if a page lacks its
    /// objects or the number of the next page.
    ///
    /// [`ErrorKind::Transient`]: crate::provider::ErrorKind::Transient
    pub async fn list_numbered<T: DeserializeOwned>(
        &self,
        op: &Op,
        path: &str,
        items: &str,
        format: PageFormat,
    ) -> Result<Vec<T>, CloudError> {
        let between = if path.contains('?') { '&' } else { '?' };
        let mut all = Vec::new();
        let mut number = 1;
        let mut current = path.to_owned();
        loop {
            let mut page: Value = self.get(op, &current).await?;
            let unexpected = || {
                CloudError::transient(format!("GET {current}: the page has an unexpected format"))
            };
            // First take the objects of this page.
            let listed = page.pointer_mut(items).map(Value::take);
            let listed: Vec<T> = serde_json::from_value(listed.ok_or_else(unexpected)?)
                .map_err(|error| unexpected().with_source(error))?;
            all.extend(listed);
            // Then find the next page. Only `null` says that there is none.
            let next = page.pointer(format.next).ok_or_else(unexpected)?;
            if next.is_null() {
                return Ok(all);
            }
            number = match next.as_u64() {
                Some(next) if next > number => next,
                _ => return Err(unexpected()),
            };
            current = format!("{path}{between}{}={number}", format.parameter);
        }
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
