//! The latest resource version that was observed of a resource.

use super::error::ReflectorError;

/// The latest resource version observed of a resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestResourceVersion(Option<u64>);

impl LatestResourceVersion {
    /// Advances to a resource version. A version that is not a number cannot be compared and is
    /// accepted.
    ///
    /// # Errors
    /// [`ReflectorError::ResourceVersionDecreased`] when it is older than the latest one.
    pub(crate) fn advance(&mut self, resource_version: &str) -> Result<(), ReflectorError> {
        let Ok(to) = resource_version.parse::<u64>() else {
            return Ok(());
        };
        match self.0 {
            Some(from) if to < from => Err(ReflectorError::ResourceVersionDecreased { from, to }),
            _ => {
                self.0 = Some(to);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_numbers_are_refused() {
        let mut newest = LatestResourceVersion::default();
        let accepted: Vec<_> = ["7", "7", "10", "9", "", "x", "11"]
            .map(|v| newest.advance(v).is_ok())
            .into();
        assert_eq!(accepted, [true, true, true, false, true, true, true]);
    }
}
