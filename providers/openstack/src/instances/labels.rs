//! Converts the cloud's names to label values.

/// Maximum number of characters in a label value.
const MAX_LABEL_VALUE: usize = 63;

/// Converts the name of a zone to a label value. Replaces each run of invalid characters by one `-`,
/// and removes punctuation at both ends.
pub fn to_label_value(name: &str) -> String {
    let mut value = String::with_capacity(name.len());
    for letter in name.chars() {
        let is_valid = letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
        if is_valid {
            value.push(letter);
        } else if !value.ends_with(REPLACED) {
            value.push(REPLACED);
        }
    }
    let value = value.replace(REPLACED, "-");
    let truncated: String = trim(&value).chars().take(MAX_LABEL_VALUE).collect();
    trim(&truncated).to_owned()
}

/// Placeholder for a run of replaced characters, distinct from a `-` in the name.
const REPLACED: char = '\u{0}';

fn trim(value: &str) -> &str {
    value.trim_matches(|letter| matches!(letter, '-' | '.' | '_'))
}

#[cfg(test)]
mod tests {
    use ccm_core::k8s::is_label_value;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zones_become_values() {
        let rows = [
            ("nova", "nova"),
            ("az 1", "az-1"),
            ("az: 1", "az-1"),
            ("a--b", "a--b"),
            ("-nova_", "nova"),
            ("nova (old)", "nova-old"),
            ("日本", ""),
            (&"a".repeat(70), &"a".repeat(63)),
            (&format!("{} b", "a".repeat(62)), &"a".repeat(62)),
        ];
        for (name, wanted) in rows {
            assert_eq!(to_label_value(name), wanted, "{name}");
        }
    }

    #[test]
    fn values_are_told_from_other_names() {
        for good in ["", "m1.small", "4C-8G", "a", &"a".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["m1 small", "-a", "a.", "größe", &"a".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_zone_becomes_a_value(name in ".{0,100}") {
            prop_assert!(is_label_value(&to_label_value(&name)));
        }
    }
}
