use std::{fmt, time::Duration};

use super::rule::Rule;

/// Why a rule did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// Broken; what was seen.
    Failed(String),
    /// The cloud cannot be brought into the state that the rule needs.
    Unsupported(String),
    /// Cannot be judged because another rule is broken; what was seen.
    Blocked(&'static str, String),
}

impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("the cloud's adapter failed: {error:#}"))
    }
}

pub(super) type Verdict<T = ()> = Result<T, Problem>;

/// Fails with what was seen unless `ok`.
pub(super) fn expect(ok: bool, seen: impl FnOnce() -> String) -> Verdict {
    if ok { Ok(()) } else { Err(Problem::Failed(seen())) }
}

/// What became of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Kept.
    Passed,
    /// Broken.
    Failed,
    /// Not checked: the cloud's adapter cannot make the situation.
    Unsupported,
    /// Not judged, because the named rule is broken.
    Blocked(&'static str),
}

/// One rule's result.
#[derive(Clone, Debug)]
pub struct Case {
    /// Stable id of the rule, kebab case.
    pub rule: &'static str,
    /// What the rule expects.
    pub expected: &'static str,
    /// What was seen; empty when the rule is kept.
    pub seen: String,
    /// What became of it.
    pub outcome: Outcome,
    /// How long the check took.
    pub took: Duration,
}

/// Result of a run. `Display` is for people, [`junit`](Self::junit) for machines.
#[derive(Clone, Debug)]
pub struct Report {
    suite: &'static str,
    cases: Vec<Case>,
}

impl Report {
    pub(super) fn new(suite: &'static str) -> Self {
        Self { suite, cases: Vec::new() }
    }

    pub(super) fn push<C: ?Sized>(&mut self, rule: &Rule<C>, verdict: Verdict, took: Duration) {
        let (outcome, seen) = match verdict {
            Ok(()) => (Outcome::Passed, String::new()),
            Err(Problem::Failed(seen)) => (Outcome::Failed, seen),
            Err(Problem::Unsupported(why)) => (Outcome::Unsupported, why),
            Err(Problem::Blocked(by, seen)) => (Outcome::Blocked(by), seen),
        };
        self.cases.push(Case { rule: rule.id, expected: rule.expected, seen, outcome, took });
    }

    /// Turns cases that blame a rule which did not fail into failures, so that nothing passes unseen.
    pub(super) fn settle(&mut self) {
        let failed: Vec<_> = self.failures().map(|case| case.rule).collect();
        for case in &mut self.cases {
            if matches!(case.outcome, Outcome::Blocked(by) if !failed.contains(&by)) {
                case.outcome = Outcome::Failed;
            }
        }
    }

    /// Returns all results in the order of the checks.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Returns the broken rules.
    pub fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| case.outcome == Outcome::Failed)
    }

    /// Tells whether no rule is broken and at least one was checked.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none() && self.cases.iter().any(|case| case.outcome == Outcome::Passed)
    }

    /// Returns the report as a JUnit XML document.
    pub fn junit(&self) -> String {
        let failures = self.failures().count();
        let skipped = self.skipped().count();
        let total: Duration = self.cases.iter().map(|case| case.took).sum();
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"provider conformance: {}\" tests=\"{}\" \
             failures=\"{failures}\" skipped=\"{skipped}\" time=\"{:.3}\">\n",
            self.suite,
            self.cases.len(),
            total.as_secs_f64()
        );
        for case in &self.cases {
            let head = format!(
                "  <testcase classname=\"conformance.{}\" name=\"{}\" time=\"{:.3}\"",
                self.suite,
                escape(case.rule),
                case.took.as_secs_f64()
            );
            let element = match &case.outcome {
                Outcome::Passed => format!("{head}/>\n"),
                Outcome::Failed => format!(
                    "{head}>\n    <failure message=\"{}\">{}</failure>\n  </testcase>\n",
                    escape(case.expected),
                    escape(&case.seen)
                ),
                Outcome::Unsupported | Outcome::Blocked(_) => {
                    format!("{head}>\n    <skipped message=\"{}\"/>\n  </testcase>\n", escape(&case.reason()))
                }
            };
            xml.push_str(&element);
        }
        xml.push_str("</testsuite>\n");
        xml
    }

    fn skipped(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| matches!(case.outcome, Outcome::Unsupported | Outcome::Blocked(_)))
    }
}

impl Case {
    fn reason(&self) -> String {
        match self.outcome {
            Outcome::Blocked(by) => format!("not judged because of {by}: {}", self.seen),
            _ => self.seen.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, skipped) = (self.failures().count(), self.skipped().count());
        let passed = self.cases.len() - failed - skipped;
        writeln!(f, "{}: {passed} rules kept, {failed} broken, {skipped} not checked", self.suite)?;
        for case in &self.cases {
            match case.outcome {
                Outcome::Passed => writeln!(f, "  ok       {}", case.rule)?,
                Outcome::Failed => {
                    writeln!(f, "  BROKEN   {}", case.rule)?;
                    writeln!(f, "           expected: {}", case.expected)?;
                    writeln!(f, "           seen:     {}", case.seen)?;
                }
                Outcome::Unsupported | Outcome::Blocked(_) => {
                    writeln!(f, "  skipped  {}: {}", case.rule, case.reason())?;
                }
            }
        }
        Ok(())
    }
}

/// Escapes text for XML content and attributes. Characters that XML 1.0 cannot hold become U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // Kept from being normalised to blanks inside attributes.
            '\n' => out.push_str("&#10;"),
            '\r' => out.push_str("&#13;"),
            '\t' => out.push_str("&#9;"),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdicts: Vec<Verdict>) -> Report {
        let mut report = Report::new("instances");
        for (rule, verdict) in super::super::INSTANCE_RULES.iter().zip(verdicts) {
            report.push(rule, verdict, Duration::from_millis(1500));
        }
        report.settle();
        report
    }

    fn first_rule() -> &'static str {
        super::super::INSTANCE_RULES[0].id
    }

    #[test]
    fn xml_is_escaped_and_counts_add_up() {
        let report = report(vec![
            Err(Problem::Failed("a < b & \"c\" 'd'\n\u{1}".to_owned())),
            Ok(()),
            Err(Problem::Unsupported("cannot".to_owned())),
            Err(Problem::Blocked(first_rule(), "x > y".to_owned())),
        ]);
        let xml = report.junit();
        assert!(xml.contains("tests=\"4\" failures=\"1\" skipped=\"2\" time=\"6.000\""), "{xml}");
        assert!(xml.contains(">a &lt; b &amp; &quot;c&quot; &apos;d&apos;&#10;\u{fffd}</failure>"), "{xml}");
        assert!(xml.contains(&format!("not judged because of {}: x &gt; y", first_rule())), "{xml}");
        assert_eq!(xml.matches("<testcase").count(), 4);
        assert_eq!(xml.matches("</testcase>").count(), 3);
        assert!(!report.passed());
    }

    #[test]
    fn a_person_reads_what_was_expected_and_seen() {
        let text = report(vec![Err(Problem::Failed("nothing".to_owned())), Ok(())]).to_string();
        assert!(text.starts_with("instances: 1 rules kept, 1 broken, 0 not checked\n"), "{text}");
        assert!(text.contains(&format!("expected: {}\n", super::super::INSTANCE_RULES[0].expected)), "{text}");
        assert!(text.contains("seen:     nothing\n"), "{text}");
    }

    #[test]
    fn nothing_passes_by_blaming_a_rule_that_holds() {
        let blaming = report(vec![Ok(()), Err(Problem::Blocked(first_rule(), "odd".to_owned()))]);
        assert_eq!(blaming.failures().count(), 1);
        assert!(!report(vec![Err(Problem::Unsupported("cannot".to_owned()))]).passed(), "nothing was checked");
        assert!(report(vec![Ok(())]).passed());
    }
}
