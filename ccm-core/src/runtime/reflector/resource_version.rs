use super::error::ReflectorError;

/// The newest resource version that was seen of a resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestResourceVersion(Option<u64>);

impl LatestResourceVersion {
    /// Moves on to a resource version. What is no number cannot be compared and is let through.
    ///
    /// # Errors
    /// [`Failure::ResourceVersionDecreased`] when it is older than the newest one.
    pub(crate) fn advance(&mut self, resource_version: &str) -> Result<(), ReflectorError> {
        let Ok(to) = resource_version.parse::<u64>() else { return Ok(()) };
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
        let accepted: Vec<_> = ["7", "7", "10", "9", "", "x", "11"].map(|v| newest.advance(v).is_ok()).into();
        assert_eq!(accepted, [true, true, true, false, true, true, true]);
    }
}
