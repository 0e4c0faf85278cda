//! Evaluates IAM policies, as far as the documents of this project need it.
//!
//! The rules are those of the IAM User Guide ("Policy evaluation logic", "IAM JSON policy elements
//! reference"): everything is denied that no statement allows, and an explicit deny wins. The evaluator
//! is strict: an element, operator or context key that it does not know is an error, and never a
//! condition that holds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Context keys that [`authorization`](super::authorization) provides. A trailing slash stands for a
/// family of keys. Others are not evaluated, because they would silently be absent.
const KEYS: [&str; 10] = [
    "aws:RequestTag/",
    "aws:ResourceTag/",
    "aws:TagKeys",
    "ec2:Attribute",
    "ec2:Attribute/",
    "ec2:CreateAction",
    "ec2:ResourceTag/",
    "elasticloadbalancing:CreateAction",
    "elasticloadbalancing:ResourceTag/",
    "iam:AWSServiceName",
];

/// What AWS asks the policies: whether an action is allowed on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorizationRequest {
    /// Action, such as `ec2:CreateTags`.
    pub(crate) action: String,
    /// ARN of the resource, or `*` for an action without resources.
    pub(crate) resource: String,
    /// Values of the context keys, by key.
    keys: BTreeMap<String, Vec<String>>,
}

impl AuthorizationRequest {
    /// Creates a request without context keys.
    pub(crate) fn new(action: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            action: action.into(),
            resource: resource.into(),
            keys: BTreeMap::new(),
        }
    }

    /// Adds a context key.
    #[must_use]
    pub(crate) fn key<V: Into<String>>(
        mut self,
        key: impl AsRef<str>,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        // Names of keys are not case-sensitive.
        let key = key.as_ref().to_ascii_lowercase();
        let values = values.into_iter().map(Into::into).collect();
        self.keys.insert(key, values);
        self
    }
}

/// Answer of policies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Allowed by the statement with this ID.
    Allowed(String),
    /// Denied by the statement with this ID.
    ExplicitlyDenied(String),
    /// Denied, because nothing allows it.
    ImplicitlyDenied,
}

/// A policy document.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    statements: Vec<Statement>,
}

#[derive(Clone, Debug)]
struct Statement {
    sid: String,
    allows: bool,
    /// Patterns of actions.
    actions: Vec<String>,
    /// True for `NotAction`: the statement is about all other actions.
    not_action: bool,
    resources: Vec<String>,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug)]
struct Condition {
    quantifier: Option<Quantifier>,
    operator: Operator,
    if_exists: bool,
    /// Context key in lower case.
    key: String,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantifier {
    ForAllValues,
    ForAnyValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    StringEquals,
    StringLike,
    Bool,
    Null,
}

impl Policy {
    /// Parses a document.
    pub(crate) fn parse(document: &Value) -> Result<Self, String> {
        let fields = fields(document, "the document", &["Id", "Statement", "Version"])?;
        if fields.get("Version") != Some(&Value::from("2012-10-17")) {
            return Err("the version has to be 2012-10-17".to_owned());
        }
        let statements = match fields.get("Statement") {
            Some(Value::Array(statements)) => statements.clone(),
            Some(statement) => vec![statement.clone()],
            None => return Err("there is no statement".to_owned()),
        };
        let statements: Result<_, _> = statements.iter().map(Statement::parse).collect();
        Ok(Self { statements: statements? })
    }

    /// Returns the statement ID and action of each permission that the policy gives.
    pub(crate) fn grants(&self) -> BTreeSet<(String, String)> {
        let grants = self.statements.iter().flat_map(|statement| {
            let actions = statement.actions.iter().cloned();
            actions.map(|action| (statement.sid.clone(), action))
        });
        grants.collect()
    }

    /// Returns the IDs of all statements that match a request.
    pub(crate) fn matching(&self, request: &AuthorizationRequest) -> Result<Vec<&str>, String> {
        let mut sids = Vec::new();
        for statement in &self.statements {
            if statement.matches(request)? {
                sids.push(&*statement.sid);
            }
        }
        Ok(sids)
    }
}

/// Decides about a request under all policies of a role.
pub(crate) fn evaluate(
    policies: &[&Policy],
    request: &AuthorizationRequest,
) -> Result<Decision, String> {
    let mut allowed_by = None;
    for statement in policies.iter().flat_map(|policy| &policy.statements) {
        if statement.matches(request)? {
            if !statement.allows {
                return Ok(Decision::ExplicitlyDenied(statement.sid.clone()));
            }
            allowed_by.get_or_insert(&statement.sid);
        }
    }
    Ok(allowed_by.map_or(Decision::ImplicitlyDenied, |sid| Decision::Allowed(sid.clone())))
}

impl Statement {
    fn parse(statement: &Value) -> Result<Self, String> {
        let known = ["Action", "Condition", "Effect", "NotAction", "Resource", "Sid"];
        let fields = fields(statement, "a statement", &known)?;
        let sid = fields.get("Sid").map(text).transpose()?.unwrap_or_default();
        let allows = match fields.get("Effect").and_then(Value::as_str) {
            Some("Allow") => true,
            Some("Deny") => false,
            _ => return Err(format!("{sid}: the effect has to be Allow or Deny")),
        };
        let (actions, not_action) = match (fields.get("Action"), fields.get("NotAction")) {
            (Some(actions), None) => (texts(actions)?, false),
            (None, Some(actions)) => (texts(actions)?, true),
            _ => return Err(format!("{sid}: either Action or NotAction is needed")),
        };
        let resources = fields
            .get("Resource")
            .ok_or_else(|| format!("{sid}: there is no resource"))?;
        let mut conditions = Vec::new();
        if let Some(condition) = fields.get("Condition") {
            for (operator, keys) in condition.as_object().ok_or("a condition is an object")? {
                for (key, values) in keys.as_object().ok_or("an operator has keys")? {
                    conditions.push(Condition::parse(operator, key, values)?);
                }
            }
        }
        Ok(Self {
            sid,
            allows,
            actions,
            not_action,
            resources: texts(resources)?,
            conditions,
        })
    }

    fn matches(&self, request: &AuthorizationRequest) -> Result<bool, String> {
        let action = request.action.to_ascii_lowercase();
        let named = self
            .actions
            .iter()
            .any(|pattern| glob(&pattern.to_ascii_lowercase(), &action));
        let on_resource = self
            .resources
            .iter()
            .any(|pattern| matches_arn(pattern, &request.resource));
        if named == self.not_action || !on_resource {
            return Ok(false);
        }
        for condition in &self.conditions {
            if !condition.holds(request)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Condition {
    fn parse(operator: &str, key: &str, values: &Value) -> Result<Self, String> {
        let unknown = || format!("the operator {operator} is not known");
        let (quantifier, name) = match operator.split_once(':') {
            None => (None, operator),
            Some(("ForAllValues", name)) => (Some(Quantifier::ForAllValues), name),
            Some(("ForAnyValue", name)) => (Some(Quantifier::ForAnyValue), name),
            Some(_) => return Err(unknown()),
        };
        let (name, if_exists) = match name.strip_suffix("IfExists") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let operator = match name {
            "StringEquals" => Operator::StringEquals,
            "StringLike" => Operator::StringLike,
            "Bool" => Operator::Bool,
            "Null" if quantifier.is_none() && !if_exists => Operator::Null,
            _ => return Err(unknown()),
        };
        let is_known = KEYS.iter().any(|known| match known.strip_suffix('/') {
            Some(family) => key
                .split_once('/')
                .is_some_and(|(name, rest)| name.eq_ignore_ascii_case(family) && !rest.is_empty()),
            None => known.eq_ignore_ascii_case(key),
        });
        if !is_known {
            return Err(format!("the context key {key} is not known"));
        }
        let values = texts(values)?;
        let is_boolean = matches!(operator, Operator::Bool | Operator::Null);
        if is_boolean
            && !matches!(values.as_slice(), [value] if value == "true" || value == "false")
        {
            return Err(format!("{key}: the value has to be true or false"));
        }
        if values.iter().any(|value| value.contains("${")) {
            return Err(format!("{key}: variables are not known"));
        }
        Ok(Self {
            quantifier,
            operator,
            if_exists,
            key: key.to_ascii_lowercase(),
            values,
        })
    }

    fn holds(&self, request: &AuthorizationRequest) -> Result<bool, String> {
        let actual = request.keys.get(&self.key);
        if self.operator == Operator::Null {
            let is_absent = actual.is_none_or(Vec::is_empty);
            return Ok(self.values == [is_absent.to_string()]);
        }
        let Some(actual) = actual else {
            return Ok(self.if_exists || self.quantifier == Some(Quantifier::ForAllValues));
        };
        let fits = |value: &String| {
            let equals = |expected: &String| match self.operator {
                Operator::StringLike => glob(expected, value),
                _ => expected == value,
            };
            self.values.iter().any(equals)
        };
        match (self.quantifier, actual.as_slice()) {
            (Some(Quantifier::ForAllValues), values) => Ok(values.iter().all(fits)),
            (Some(Quantifier::ForAnyValue), values) => Ok(values.iter().any(fits)),
            (None, [value]) => Ok(fits(value)),
            (None, _) => Err(format!("{} has several values and no quantifier", self.key)),
        }
    }
}

/// Returns true if a pattern of the element `Resource` matches a resource, part by part.
fn matches_arn(pattern: &str, resource: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let (patterns, parts) = (pattern.splitn(6, ':'), resource.splitn(6, ':'));
    patterns.clone().count() == parts.clone().count()
        && patterns
            .zip(parts)
            .all(|(pattern, part)| glob(pattern, part))
}

/// Returns true if a text matches a pattern, in which `*` stands for any characters and `?` for one.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = &pattern[1..];
            text.char_indices().any(|(at, _)| glob(rest, &text[at..])) || glob(rest, "")
        }
        Some(expected) => {
            let mut chars = text.chars();
            let fits = chars
                .next()
                .is_some_and(|c| expected == '?' || expected == c);
            fits && glob(&pattern[expected.len_utf8()..], chars.as_str())
        }
    }
}

fn fields<'a>(
    value: &'a Value,
    what: &str,
    known: &[&str],
) -> Result<&'a serde_json::Map<String, Value>, String> {
    let fields = value
        .as_object()
        .ok_or_else(|| format!("{what} is no object"))?;
    match fields.keys().find(|field| !known.contains(&field.as_str())) {
        Some(field) => Err(format!("{what}: the element {field} is not known")),
        None => Ok(fields),
    }
}

fn text(value: &Value) -> Result<String, String> {
    let text = value
        .as_str()
        .ok_or_else(|| format!("{value} is no text"))?;
    Ok(text.to_owned())
}

/// Reads one text, or a list of at least one.
fn texts(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(values) if values.is_empty() => Err("a list is empty".to_owned()),
        Value::Array(values) => values.iter().map(text).collect(),
        value => Ok(vec![text(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ARN: &str = "arn:aws:ec2:eu-west-1:123456789012:instance/i-1";

    fn policy(statements: &Value) -> Result<Policy, String> {
        Policy::parse(&json!({"Version": "2012-10-17", "Statement": statements}))
    }

    fn decide(statements: &Value, request: &AuthorizationRequest) -> Result<Decision, String> {
        evaluate(&[&policy(statements)?], request)
    }

    fn allows(statement: &Value, request: &AuthorizationRequest) -> bool {
        let mut statement = statement.clone();
        statement["Effect"] = "Allow".into();
        matches!(decide(&statement, request), Ok(Decision::Allowed(_)))
    }

    #[test]
    fn actions_and_resources_match_by_pattern() {
        let request = AuthorizationRequest::new("ec2:CreateTags", ARN);
        let cases = [
            ("ec2:CreateTags", "*", true),
            ("EC2:createtags", ARN, true),
            ("ec2:Create*", "arn:aws:ec2:*:*:instance/*", true),
            ("ec2:CreateTag?", "arn:aws:ec2:*:*:instance/i-?", true),
            ("ec2:CreateTag", "*", false),
            ("ec2:CreateTags?", "*", false),
            ("ec2:CreateTags", "arn:aws:ec2:*:*:volume/*", false),
            // A part of an ARN ends at its colon.
            ("ec2:CreateTags", "arn:aws:*:instance/*", false),
            ("ec2:CreateTags", "arn:aws-cn:ec2:*:*:instance/*", false),
        ];
        for (action, resource, expected) in cases {
            let statement = json!({"Action": action, "Resource": ["arn:aws:s3:::x", resource]});
            assert_eq!(allows(&statement, &request), expected, "{action} {resource}");
        }
        let other = json!({"NotAction": "ec2:Create*", "Resource": "*"});
        assert!(!allows(&other, &request));
        assert!(allows(&other, &AuthorizationRequest::new("ec2:DeleteTags", ARN)));
        // An action without resources is allowed for all of them only.
        let read = AuthorizationRequest::new("ec2:DescribeVpcs", "*");
        let limited = json!({"Action": "ec2:DescribeVpcs", "Resource": "arn:aws:ec2:*:*:vpc/*"});
        assert!(!allows(&limited, &read));
    }

    #[test]
    fn what_no_statement_allows_is_denied_and_an_explicit_deny_wins() {
        let request = AuthorizationRequest::new("ec2:CreateTags", ARN);
        let all = json!({"Sid": "All", "Effect": "Allow", "Action": "*", "Resource": "*"});
        let no = json!({"Sid": "No", "Effect": "Deny", "Action": "ec2:*", "Resource": "*"});
        let other = json!({"Effect": "Allow", "Action": "s3:*", "Resource": "*"});
        assert_eq!(decide(&other, &request), Ok(Decision::ImplicitlyDenied));
        assert_eq!(decide(&json!([other, all]), &request), Ok(Decision::Allowed("All".into())));
        for statements in [json!([all, no]), json!([no, all])] {
            let expected = Decision::ExplicitlyDenied("No".into());
            assert_eq!(decide(&statements, &request), Ok(expected));
        }
    }

    #[test]
    fn conditions_are_evaluated_as_iam_does() {
        let request = AuthorizationRequest::new("ec2:CreateTags", ARN)
            .key("aws:ResourceTag/Team", ["red"])
            .key("aws:TagKeys", ["a", "b"]);
        let team = "aws:ResourceTag/Team";
        let cases = [
            (json!({"StringEquals": {team: "red"}}), true),
            // Keys ignore case, and values do not. Several values are alternatives.
            (json!({"StringEquals": {"aws:resourcetag/team": ["blue", "red"]}}), true),
            (json!({"StringEquals": {team: "Red"}}), false),
            (json!({"StringEquals": {team: "r*"}}), false),
            (json!({"StringLike": {team: "r*"}}), true),
            (json!({"StringLike": {team: "?"}}), false),
            // A key that is absent fits nothing, unless it may be absent.
            (json!({"StringEquals": {"aws:ResourceTag/Name": "red"}}), false),
            (json!({"StringEqualsIfExists": {"aws:ResourceTag/Name": "red"}}), true),
            (json!({"StringEqualsIfExists": {team: "blue"}}), false),
            (json!({"Null": {team: "false"}}), true),
            (json!({"Null": {team: "true"}}), false),
            (json!({"Null": {"aws:ResourceTag/Name": "true"}}), true),
            (json!({"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b", "c"]}}), true),
            (json!({"ForAllValues:StringEquals": {"aws:TagKeys": "a"}}), false),
            (json!({"ForAllValues:StringEquals": {"aws:ResourceTag/Name": "a"}}), true),
            (json!({"ForAnyValue:StringEquals": {"aws:TagKeys": "b"}}), true),
            (json!({"ForAnyValue:StringEquals": {"aws:TagKeys": "c"}}), false),
            (json!({"ForAnyValue:StringEquals": {"aws:ResourceTag/Name": "a"}}), false),
            // All operators and keys have to hold.
            (json!({"StringEquals": {team: "red"}, "Null": {team: "true"}}), false),
            (json!({"StringEquals": {team: "red", "aws:ResourceTag/Name": "x"}}), false),
        ];
        for (condition, expected) in cases {
            let statement = json!({"Action": "*", "Resource": "*", "Condition": condition});
            assert_eq!(allows(&statement, &request), expected, "{condition}");
        }
        let check = AuthorizationRequest::new("x:Y", "*").key("ec2:Attribute/X", ["false"]);
        let is = |value: &str| json!({"Action": "*", "Resource": "*", "Condition": {"Bool": {"ec2:Attribute/X": value}}});
        assert!(allows(&is("false"), &check) && !allows(&is("true"), &check));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let tag = "aws:ResourceTag/a";
        let conditions = [
            (json!({"StringEqual": {tag: "x"}}), "the operator StringEqual is not known"),
            (json!({"ForSome:StringEquals": {tag: "x"}}), "operator ForSome:StringEquals"),
            (json!({"NullIfExists": {tag: "true"}}), "the operator NullIfExists is not known"),
            (json!({"StringNotEquals": {tag: "x"}}), "the operator StringNotEquals is not known"),
            (json!({"StringEquals": {"ec2:CreatAction": "x"}}), "the context key ec2:CreatAction"),
            (
                json!({"StringEquals": {"aws:ResourceTag/": "x"}}),
                "the context key aws:ResourceTag/",
            ),
            (json!({"Null": {tag: "no"}}), "has to be true or false"),
            (json!({"StringEquals": {tag: "${aws:PrincipalTag/a}"}}), "variables are not known"),
            (json!({"StringEquals": {tag: []}}), "a list is empty"),
        ];
        for (condition, expected) in conditions {
            let statement =
                json!({"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": condition});
            let error = policy(&statement).unwrap_err();
            assert!(error.contains(expected), "{condition}: {error}");
        }
        let statements = [
            json!({"Effect": "Allow", "Action": "*"}),
            json!({"Effect": "Allow", "Resource": "*"}),
            json!({"Effect": "allow", "Action": "*", "Resource": "*"}),
            json!({"Effect": "Allow", "Action": "*", "NotAction": "x:Y", "Resource": "*"}),
            json!({"Effect": "Allow", "Action": "*", "NotResource": "x"}),
            json!({"Effect": "Allow", "Action": "*", "Resource": "*", "Principal": "*"}),
        ];
        for statement in statements {
            assert!(policy(&statement).is_err(), "{statement}");
        }
        // Whether one of several values fits is not defined without a quantifier.
        let statement = json!({"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"StringEquals": {"aws:TagKeys": "a"}}});
        let request = AuthorizationRequest::new("x:Y", "*").key("aws:TagKeys", ["a", "b"]);
        assert!(decide(&statement, &request).is_err());
    }
}
