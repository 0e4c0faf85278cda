//! Booleans as flags and feature gates spell them.

/// The spellings of Go's `strconv.ParseBool`, and no others.
pub(crate) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}
