use std::{fmt, time::Duration};

use super::rule::Rule;

/// Reason why a rule did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The rule is broken. Contains the observed behaviour.
    Failed(String),
    /// The adapter cannot create the situation that the rule needs. Contains the reason.
    Unsupported(String),
    /// The rule cannot be judged because the named rule is broken. Contains the observed behaviour.
    Blocked(&'static str, String),
}

impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("the cloud's adapter failed: {error:#}"))
    }
}

pub(super) type Verdict<T = ()> = Result<T, Problem>;

/// Returns [`Problem::Failed`] with the observed behaviour unless `ok`.
pub(super) fn expect(ok: bool, seen: impl FnOnce() -> String) -> Verdict {
    if ok {
        Ok(())
    } else {
        Err(Problem::Failed(seen()))
    }
}

/// Result of checking a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule is kept.
    Passed,
    /// The rule is broken.
    Failed,
    /// The rule was not checked, because the adapter cannot create the situation.
    Unsupported,
    /// The rule was not judged, because the named rule is broken.
    Blocked(&'static str),
    /// The rule is not kept or was not checked, and was excused in advance for this reason.
    Excused(&'static str),
}

/// Result of one rule.
#[derive(Clone, Debug)]
pub struct Case {
    /// Stable id of the rule, in kebab case.
    pub rule: &'static str,
    /// Expected behaviour.
    pub expected: &'static str,
    /// Observed behaviour; empty if the rule is kept.
    pub observed: String,
    /// Result of the check.
    pub outcome: Outcome,
    /// Duration of the check, by tokio's clock.
    pub took: Duration,
}

/// Results of a suite. `Display` is for people, [`junit`](Self::junit) for machines.
#[derive(Clone, Debug)]
pub struct Report {
    suite: &'static str,
    cases: Vec<Case>,
}

impl Report {
    pub(super) fn new(suite: &'static str) -> Self {
        Self::of(suite, Vec::new())
    }

    pub(super) fn of(suite: &'static str, cases: Vec<Case>) -> Self {
        Self { suite, cases }
    }

    /// Adds a failure for a rule whose check did not finish.
    pub(super) fn fail(&mut self, rule: &'static str, expected: &'static str, observed: String) {
        let (outcome, took) = (Outcome::Failed, Duration::ZERO);
        self.cases
            .push(Case { rule, expected, observed, outcome, took });
    }

    /// Excuses these rules, each with a reason, and requires that all others are checked and kept.
    /// A rule that is excused but kept is a failure, so that excuses do not become outdated.
    #[must_use]
    pub fn excuse(mut self, excuses: &[(&str, &'static str)]) -> Self {
        for case in &mut self.cases {
            let excuse = excuses
                .iter()
                .find(|(rule, _)| *rule == case.rule)
                .map(|(_, reason)| *reason);
            let not_checked = case.reason();
            match (&case.outcome, excuse) {
                (Outcome::Passed, Some(reason)) => {
                    case.observed = format!("it is kept, although it is excused: {reason}");
                    case.outcome = Outcome::Failed;
                }
                (Outcome::Failed | Outcome::Unsupported | Outcome::Blocked(_), Some(reason)) => {
                    case.outcome = Outcome::Excused(reason);
                }
                (Outcome::Unsupported | Outcome::Blocked(_), None) => {
                    case.observed = format!("not checked, and not excused: {not_checked}");
                    case.outcome = Outcome::Failed;
                }
                (Outcome::Failed | Outcome::Excused(_), _) | (Outcome::Passed, None) => {}
            }
        }
        self
    }

    /// Returns the name of the suite.
    pub fn suite(&self) -> &'static str {
        self.suite
    }

    pub(super) fn push<C: ?Sized>(&mut self, rule: &Rule<C>, verdict: Verdict, took: Duration) {
        let (outcome, observed) = match verdict {
            Ok(()) => (Outcome::Passed, String::new()),
            Err(Problem::Failed(observed)) => (Outcome::Failed, observed),
            Err(Problem::Unsupported(reason)) => (Outcome::Unsupported, reason),
            Err(Problem::Blocked(by, observed)) => (Outcome::Blocked(by), observed),
        };
        self.cases.push(Case {
            rule: rule.id,
            expected: rule.expected,
            observed,
            outcome,
            took,
        });
    }

    /// Turns each case that is blocked by a rule which did not fail into a failure. Otherwise a
    /// broken rule could go unreported.
    pub(super) fn fail_unfounded_blocks(&mut self) {
        let failed: Vec<_> = self.failures().map(|case| case.rule).collect();
        for case in &mut self.cases {
            if matches!(case.outcome, Outcome::Blocked(by) if !failed.contains(&by)) {
                case.outcome = Outcome::Failed;
            }
        }
    }

    /// Returns all results in the order in which the rules were checked.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Returns the results of broken rules.
    pub fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(|case| case.outcome == Outcome::Failed)
    }

    /// Returns true if no rule is broken and at least one is kept.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
            && self
                .cases
                .iter()
                .any(|case| case.outcome == Outcome::Passed)
    }

    /// Returns the report as a JUnit XML document.
    pub fn junit(&self) -> String {
        junit(std::slice::from_ref(self))
    }

    fn testsuite(&self) -> String {
        let failures = self.failures().count();
        let skipped = self.skipped().count();
        let total: Duration = self.cases.iter().map(|case| case.took).sum();
        let mut xml = format!(
            "<testsuite name=\"provider conformance: {}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" \
             skipped=\"{skipped}\" time=\"{:.3}\">\n",
            escape(self.suite),
            self.cases.len(),
            total.as_secs_f64()
        );
        for case in &self.cases {
            let head = format!(
                "  <testcase classname=\"conformance.{}\" name=\"{}\" time=\"{:.3}\"",
                escape(self.suite),
                escape(case.rule),
                case.took.as_secs_f64()
            );
            let element = match &case.outcome {
                Outcome::Passed => format!("{head}/>\n"),
                Outcome::Failed => format!(
                    "{head}>\n    <failure message=\"{}\">{}</failure>\n  </testcase>\n",
                    escape(case.expected),
                    escape(&case.observed)
                ),
                Outcome::Unsupported | Outcome::Blocked(_) | Outcome::Excused(_) => {
                    format!(
                        "{head}>\n    <skipped message=\"{}\"/>\n  </testcase>\n",
                        escape(&case.reason())
                    )
                }
            };
            xml.push_str(&element);
        }
        xml.push_str("</testsuite>\n");
        xml
    }

    fn skipped(&self) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(|case| !matches!(case.outcome, Outcome::Passed | Outcome::Failed))
    }
}

/// Renders reports as one JUnit XML document.
pub(super) fn junit(reports: &[Report]) -> String {
    let suites: String = reports.iter().map(Report::testsuite).collect();
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n{suites}</testsuites>\n")
}

impl Case {
    /// Explains why the rule was skipped.
    fn reason(&self) -> String {
        match self.outcome {
            Outcome::Blocked(by) => format!("not judged because of {by}: {}", self.observed),
            Outcome::Excused(reason) => format!("excused, because {reason}: {}", self.observed),
            _ => self.observed.clone(),
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
                    writeln!(f, "           observed: {}", case.observed)?;
                }
                Outcome::Unsupported | Outcome::Blocked(_) | Outcome::Excused(_) => {
                    writeln!(f, "  skipped  {}: {}", case.rule, case.reason())?;
                }
            }
        }
        Ok(())
    }
}

/// Escapes text for XML content and attributes. Characters that XML 1.0 cannot represent become
/// U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // Unescaped, a parser would normalise these to blanks inside attributes.
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
        report.fail_unfounded_blocks();
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
        assert!(
            xml.contains("tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"2\" time=\"6.000\""),
            "{xml}"
        );
        assert!(
            xml.contains(">a &lt; b &amp; &quot;c&quot; &apos;d&apos;&#10;\u{fffd}</failure>"),
            "{xml}"
        );
        assert!(
            xml.contains(&format!("not judged because of {}: x &gt; y", first_rule())),
            "{xml}"
        );
        assert_eq!(xml.matches("<testcase").count(), 4);
        assert_eq!(xml.matches("</testcase>").count(), 3);
        assert!(!report.passed());
    }

    /// Checks that a document is well-formed, and counts its test cases.
    fn cases_of(xml: &str) -> usize {
        use xmlparser::{ElementEnd, Token, Tokenizer};
        let (mut open, mut roots, mut cases) = (Vec::new(), 0, 0);
        for token in Tokenizer::from(xml) {
            match token.unwrap_or_else(|error| panic!("{error}: {xml}")) {
                Token::ElementStart { local, .. } => {
                    roots += usize::from(open.is_empty());
                    cases += usize::from(local.as_str() == "testcase");
                    open.push(local.as_str());
                }
                Token::ElementEnd { end: ElementEnd::Empty, .. } => drop(open.pop()),
                Token::ElementEnd { end: ElementEnd::Close(_, local), .. } => {
                    assert_eq!(open.pop(), Some(local.as_str()), "{xml}");
                }
                _ => {}
            }
        }
        assert_eq!((open.len(), roots), (0, 1), "{xml}");
        cases
    }

    #[test]
    fn texts_of_providers_do_not_break_the_xml() {
        let nasty = "]]> <!-- --> & &#0; <testcase/> \"'\u{0}\u{b}\u{ffff}\r\n\t😀 ﷐";
        let broken = || {
            report(vec![
                Err(Problem::Failed(nasty.to_owned())),
                Ok(()),
                Err(Problem::Unsupported(nasty.into())),
            ])
        };
        assert_eq!(cases_of(&broken().junit()), 3);
        let all = junit(&[
            broken(),
            report(Vec::new()),
            broken().excuse(&[(first_rule(), "<so it is>")]),
        ]);
        assert_eq!(cases_of(&all), 6);
        assert_eq!(all.matches("<testsuite ").count(), 3);
    }

    #[test]
    fn the_text_report_shows_expected_and_observed_behaviour() {
        let text = report(vec![Err(Problem::Failed("nothing".to_owned())), Ok(())]).to_string();
        assert!(text.starts_with("instances: 1 rules kept, 1 broken, 0 not checked\n"), "{text}");
        assert!(
            text.contains(&format!("expected: {}\n", super::super::INSTANCE_RULES[0].expected)),
            "{text}"
        );
        assert!(text.contains("observed: nothing\n"), "{text}");
    }

    #[test]
    fn an_excuse_covers_only_rules_that_are_not_kept() {
        let rule = |index: usize| super::super::INSTANCE_RULES[index].id;
        let verdicts = || {
            let broken = || Err(Problem::Failed("broken".to_owned()));
            vec![Ok(()), broken(), broken(), Err(Problem::Unsupported("cannot".to_owned()))]
        };
        let excused = report(verdicts()).excuse(&[
            (rule(1), "so it is"),
            (rule(2), "so it is"),
            (rule(3), "so it is"),
        ]);
        assert!(excused.passed(), "{excused}");
        assert!(
            excused
                .to_string()
                .contains("excused, because so it is: broken"),
            "{excused}"
        );
        let failed = |excuses: &[(&str, &'static str)]| {
            report(verdicts())
                .excuse(excuses)
                .failures()
                .map(|case| case.rule)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            failed(&[(rule(0), "it is kept"), (rule(1), "so it is")]),
            [rule(0), rule(2), rule(3)]
        );
    }

    #[test]
    fn a_rule_cannot_pass_by_blaming_a_rule_that_is_kept() {
        let blaming = report(vec![Ok(()), Err(Problem::Blocked(first_rule(), "odd".to_owned()))]);
        assert_eq!(blaming.failures().count(), 1);
        assert!(
            !report(vec![Err(Problem::Unsupported("cannot".to_owned()))]).passed(),
            "nothing was checked"
        );
        assert!(report(vec![Ok(())]).passed());
    }
}
