//! Flags of the tagging controller, with upstream's names and validation errors.

use std::{collections::BTreeMap, fmt, num::NonZeroUsize};

use ccm_core::config::{ControllerInfo, Flag};

use super::plan::Checksum;
use crate::{api::Tags, config::Rate};

/// Name of the controller, as upstream spells it.
pub const NAME: &str = "tagging";
/// Name of its Kubernetes client, and of its ServiceAccount.
const CLIENT_NAME: &str = "tagging-controller";

const TAGS: &str = "tags";
const RESOURCES: &str = "resources";
const RATE: &str = "tagging-controller-rate-limit";
const BURST: &str = "tagging-controller-burst-limit";
const WORKERS: &str = "tagging-controller-concurrent-node-syncs";
const BATCHING: &str = "tagging-controller-enable-batching";

/// The only kind of resource that is tagged.
const INSTANCE: &str = "instance";
/// Limits of EC2.
const MAX_TAGS: usize = 50;
const MAX_KEY_LENGTH: usize = 128;
const MAX_VALUE_LENGTH: usize = 256;
/// Key prefix that is reserved for AWS.
const RESERVED: &str = "aws:";

/// Returns the flags of the tagging controller.
pub fn flags() -> Vec<Flag> {
    vec![
        Flag::provider(
            TAGS,
            "",
            "Tags that the tagging controller puts on AWS resources, as key=value,key=value.",
        ),
        Flag::provider(
            RESOURCES,
            "",
            "Kind of AWS resource that the tagging controller tags: instance.",
        ),
        Flag::provider(
            RATE,
            "0",
            "Nodes per second that the tagging controller processes. Zero means no limit.",
        ),
        Flag::provider(
            BURST,
            "0",
            "Nodes that the tagging controller processes at once after a pause. Zero means no limit.",
        ),
        Flag::provider(
            WORKERS,
            "1",
            "Maximum number of concurrent requests of the tagging controller.",
        ),
        Flag::provider_switch_on(
            BATCHING,
            "Whether the tagging controller tags up to 50 instances with one request.",
        ),
    ]
}

/// Returns the controller's names on the command line. `*` does not select it.
pub fn info() -> ControllerInfo {
    ControllerInfo {
        name: NAME,
        aliases: &[CLIENT_NAME],
        client_name: CLIENT_NAME,
        enabled_by_default: false,
    }
}

/// Parsed options of the tagging controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Tags that every instance gets; at least one.
    pub(super) tags: Tags,
    /// Rate limit of processed nodes. `None` means no limit.
    pub(super) rate: Option<Rate>,
    /// Maximum number of concurrent requests of each kind.
    pub(super) workers: NonZeroUsize,
    /// True if one request may tag several instances.
    pub(super) batching: bool,
}

/// Validation error of the tagging controller's flags, in upstream's wording where upstream has the
/// same error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The value does not have the flag's type.
    #[error("invalid argument {value:?} for \"--{flag}\" flag: {reason}")]
    Invalid {
        /// The flag, without dashes.
        flag: &'static str,
        /// The value as given.
        value: Box<str>,
        /// Reason why the value is invalid.
        reason: Box<str>,
    },
    /// No tags were given.
    #[error("--tags must not be empty and must be a form of key=value")]
    NoTags,
    /// EC2 would reject a tag.
    #[error("--tags: {0}")]
    BadTag(Box<str>),
    /// No kind of resource was given.
    #[error("--resources must not be empty")]
    NoResources,
    /// The controller does not tag this kind of resource.
    #[error("{0} is not a supported resource. Current supported resources [instance]")]
    UnsupportedResource(Box<str>),
    /// The limit is negative.
    #[error("--{0} should not be less than zero")]
    Negative(&'static str),
    /// The number of workers is zero or negative.
    #[error("--tagging-controller-concurrent-node-syncs must be a positive number")]
    NoWorkers,
}

/// All validation errors of the tagging controller's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionErrors(pub Vec<OptionError>);

impl fmt::Display for OptionErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tagging controller inputs are not properly set: ")?;
        let errors: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&errors.join("; "))
    }
}

impl std::error::Error for OptionErrors {}

impl Options {
    /// Parses the values of the flags ([`Config::extra`](ccm_core::config::Config::extra)). A
    /// missing flag has its default. May only be called if the controller is enabled, because the
    /// required flags may be missing otherwise.
    ///
    /// # Errors
    /// Returns all validation errors.
    pub fn parse(texts: &BTreeMap<&'static str, String>) -> Result<Self, OptionErrors> {
        let mut errors = Vec::new();
        let tags = parse_tags(text_of(texts, TAGS, ""), &mut errors);
        match text_of(texts, RESOURCES, "") {
            "" => errors.push(OptionError::NoResources),
            INSTANCE => {}
            other => errors.push(OptionError::UnsupportedResource(other.into())),
        }
        let rate = parse_rate(texts, &mut errors);
        let workers = parse_workers(texts, &mut errors);
        let batching = text_of(texts, BATCHING, "true") != "false";
        match workers {
            Some(workers) if errors.is_empty() => Ok(Self { tags, rate, workers, batching }),
            _ => Err(OptionErrors(errors)),
        }
    }

    /// Returns the tags that every instance gets.
    pub(crate) fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Returns the label value of a node whose instance has these tags.
    pub(super) fn checksum(&self) -> Checksum {
        Checksum::for_tags(&self.tags)
    }
}

/// Returns the text of a flag, or its default if the flag is missing.
fn text_of<'a>(texts: &'a BTreeMap<&'static str, String>, flag: &str, default: &'a str) -> &'a str {
    match texts.get(flag) {
        Some(text) => text,
        None => default,
    }
}

fn parse_rate(
    texts: &BTreeMap<&'static str, String>,
    errors: &mut Vec<OptionError>,
) -> Option<Rate> {
    let per_second: f64 = parse_number(RATE, text_of(texts, RATE, "0"), errors).unwrap_or_default();
    let burst: i32 = parse_number(BURST, text_of(texts, BURST, "0"), errors).unwrap_or_default();
    if !per_second.is_finite() {
        errors.push(OptionError::Invalid {
            flag: RATE,
            value: text_of(texts, RATE, "").into(),
            reason: "must be a finite number".into(),
        });
    }
    if per_second < 0.0 {
        errors.push(OptionError::Negative(RATE));
    }
    let Ok(burst) = u32::try_from(burst) else {
        errors.push(OptionError::Negative(BURST));
        return None;
    };
    if burst > 0 && per_second > 0.0 {
        Some(Rate { per_second, burst })
    } else {
        None
    }
}

fn parse_workers(
    texts: &BTreeMap<&'static str, String>,
    errors: &mut Vec<OptionError>,
) -> Option<NonZeroUsize> {
    let number: i32 = parse_number(WORKERS, text_of(texts, WORKERS, "1"), errors)?;
    let workers = usize::try_from(number).ok().and_then(NonZeroUsize::new);
    if workers.is_none() {
        errors.push(OptionError::NoWorkers);
    }
    workers
}

fn parse_number<T: std::str::FromStr>(
    flag: &'static str,
    text: &str,
    errors: &mut Vec<OptionError>,
) -> Option<T> {
    let Ok(number) = text.trim().parse() else {
        errors.push(OptionError::Invalid {
            flag,
            value: text.into(),
            reason: "must be a number".into(),
        });
        return None;
    };
    Some(number)
}

/// Parses `key=value,key=value`, where a pair may be quoted so that it can contain commas. As in
/// pflag, text with a single `=` is one pair, including its commas.
fn parse_tags(text: &str, errors: &mut Vec<OptionError>) -> Tags {
    let mut tags = Tags::new();
    if text.is_empty() {
        errors.push(OptionError::NoTags);
        return tags;
    }
    let pairs = match split_pairs(text) {
        Ok(pairs) => pairs,
        Err(reason) => {
            errors.push(invalid_tags(text, reason));
            return tags;
        }
    };
    for pair in &pairs {
        match pair.split_once('=') {
            Some((key, value)) => drop(tags.insert(key.into(), value.into())),
            None => errors.push(invalid_tags(text, not_a_pair(pair))),
        }
    }
    check_tags(&tags, errors);
    tags
}

fn invalid_tags(text: &str, reason: String) -> OptionError {
    OptionError::Invalid { flag: TAGS, value: text.into(), reason: reason.into() }
}

fn not_a_pair(text: &str) -> String {
    format!("{text} must be formatted as key=value")
}

fn split_pairs(text: &str) -> Result<Vec<String>, String> {
    match text.matches('=').count() {
        0 => Err(not_a_pair(text)),
        1 => Ok(vec![text.trim_matches('"').to_owned()]),
        _ => split_at_commas(text)
            .ok_or_else(|| "has a quote that is not closed, or inside a pair".to_owned()),
    }
}

/// Splits at commas outside quotes. A doubled quote inside quotes means one quote. Returns `None`
/// if the quotes are malformed.
fn split_at_commas(text: &str) -> Option<Vec<String>> {
    let mut pairs = Vec::new();
    let mut remaining = text;
    loop {
        let (pair, after_pair) = match remaining.strip_prefix('"') {
            Some(quoted) => take_quoted(quoted)?,
            None => take_unquoted(remaining)?,
        };
        pairs.push(pair);
        if after_pair.is_empty() {
            return Some(pairs);
        }
        remaining = after_pair.strip_prefix(',')?;
    }
}

/// Splits text after an opening quote. Returns the quoted text, and the text after its closing
/// quote.
fn take_quoted(mut text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    loop {
        let (before_quote, after_quote) = text.split_once('"')?;
        value.push_str(before_quote);
        let Some(after_doubled_quote) = after_quote.strip_prefix('"') else {
            return Some((value, after_quote));
        };
        value.push('"');
        text = after_doubled_quote;
    }
}

/// Splits text before the next comma. Returns the text before it, and the comma with the text after
/// it. Returns `None` if a quote is inside the first part.
fn take_unquoted(text: &str) -> Option<(String, &str)> {
    let end = text.find(',').unwrap_or(text.len());
    let (value, after) = text.split_at(end);
    if value.contains('"') {
        None
    } else {
        Some((value.to_owned(), after))
    }
}

/// Records an error for every tag that EC2 would reject.
fn check_tags(tags: &Tags, errors: &mut Vec<OptionError>) {
    let mut reasons = Vec::new();
    if tags.len() > MAX_TAGS {
        reasons.push(format!("{} tags are more than the {MAX_TAGS} of EC2", tags.len()));
    }
    for (key, value) in tags {
        if key.is_empty() {
            reasons.push(format!("the tag with value {value:?} has no key"));
        }
        if key.starts_with(RESERVED) {
            reasons
                .push(format!("key {key:?} begins with {RESERVED:?}, which is reserved for AWS"));
        }
        if key.chars().count() > MAX_KEY_LENGTH {
            reasons.push(format!("key {key:?} is longer than {MAX_KEY_LENGTH} characters"));
        }
        if value.chars().count() > MAX_VALUE_LENGTH {
            reasons
                .push(format!("the value of {key:?} is longer than {MAX_VALUE_LENGTH} characters"));
        }
    }
    errors.extend(
        reasons
            .into_iter()
            .map(|reason| OptionError::BadTag(reason.into())),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[(&'static str, &str)]) -> Result<Options, OptionErrors> {
        Options::parse(
            &texts
                .iter()
                .map(|(flag, text)| (*flag, (*text).to_owned()))
                .collect(),
        )
    }

    fn tags(text: &str) -> Result<Vec<(String, String)>, String> {
        let options = parse(&[(TAGS, text), (RESOURCES, "instance")])
            .map_err(|errors| errors.0[0].to_string())?;
        Ok(options
            .tags
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect())
    }

    #[test]
    fn the_defaults_of_the_flags_are_those_of_texts_that_are_missing() {
        let options = parse(&[(TAGS, "key1=value1"), (RESOURCES, "instance")]).unwrap();
        assert_eq!((options.rate, options.workers.get(), options.batching), (None, 1, true));
    }

    #[test]
    fn tags_are_read_as_pflag_reads_them() {
        let owned = |pairs: &[(&str, &str)]| {
            Ok(pairs
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect())
        };
        let cases = [
            ("a=1", owned(&[("a", "1")])),
            ("a=1,b=2", owned(&[("a", "1"), ("b", "2")])),
            ("a=1,2", owned(&[("a", "1,2")])),
            ("a=", owned(&[("a", "")])),
            ("\"a=1,2\",b=3", owned(&[("a", "1,2"), ("b", "3")])),
            ("a=1=2,b=3", owned(&[("a", "1=2"), ("b", "3")])),
            ("\"a=\"\"1\"\"\",b=2", owned(&[("a", "\"1\""), ("b", "2")])),
        ];
        for (text, expected) in cases {
            assert_eq!(tags(text), expected, "{text}");
        }
        for text in ["a", "a=1,b,c=2", "a=1,\"b=2", "a=1,b=\"2\""] {
            assert!(tags(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_mistakes_are_told_together_in_upstream_words() {
        let errors = parse(&[(RATE, "-1"), (BURST, "-2"), (WORKERS, "0")]).unwrap_err();
        let expected = [
            "--tags must not be empty and must be a form of key=value",
            "--resources must not be empty",
            "--tagging-controller-rate-limit should not be less than zero",
            "--tagging-controller-burst-limit should not be less than zero",
            "--tagging-controller-concurrent-node-syncs must be a positive number",
        ];
        assert_eq!(errors.0.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        assert!(
            errors
                .to_string()
                .starts_with("tagging controller inputs are not properly set: --tags must")
        );
    }

    #[test]
    fn what_is_no_number_or_no_instance_is_told() {
        let errors =
            parse(&[(TAGS, "a=1"), (RESOURCES, "volume"), (RATE, "fast"), (WORKERS, "many")])
                .unwrap_err();
        let expected = [
            "volume is not a supported resource. Current supported resources [instance]",
            "invalid argument \"fast\" for \"--tagging-controller-rate-limit\" flag: must be a number",
            "invalid argument \"many\" for \"--tagging-controller-concurrent-node-syncs\" flag: must be a number",
        ];
        assert_eq!(errors.0.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn tags_that_ec2_refuses_are_mistakes() {
        for text in
            ["=1", "aws:a=1", &format!("{}=1", "k".repeat(129)), &format!("a={}", "v".repeat(257))]
        {
            assert!(tags(text).unwrap_err().starts_with("--tags: "), "{text}");
        }
        let many: Vec<_> = (0..51).map(|i| format!("k{i}=v")).collect();
        assert_eq!(
            tags(&many.join(",")).unwrap_err(),
            "--tags: 51 tags are more than the 50 of EC2"
        );
    }

    #[test]
    fn a_limit_needs_rate_and_burst() {
        for (rate, burst, expected) in [
            ("0", "5", None),
            ("2", "0", None),
            ("0.5", "10", Some(Rate { per_second: 0.5, burst: 10 })),
        ] {
            let options =
                parse(&[(TAGS, "a=1"), (RESOURCES, "instance"), (RATE, rate), (BURST, burst)])
                    .unwrap();
            assert_eq!(options.rate, expected);
        }
        assert!(
            parse(&[(TAGS, "a=1"), (RESOURCES, "instance"), (RATE, "inf"), (BURST, "1")]).is_err()
        );
    }

    #[test]
    fn only_an_explicit_false_switches_batches_off() {
        for (text, expected) in [("true", true), ("false", false)] {
            let options =
                parse(&[(TAGS, "a=1"), (RESOURCES, "instance"), (BATCHING, text)]).unwrap();
            assert_eq!(options.batching, expected);
        }
    }
}
