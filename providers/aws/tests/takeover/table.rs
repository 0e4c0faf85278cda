//! What a change of managers changes in AWS, as data: the takeover compares it with what was
//! recorded, and the page for operators shows it, which the crate's own tests see to.

#![expect(
    dead_code,
    reason = "each of the two programs that have this uses a part of it"
)]

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use anyhow::Context as _;

/// How often each changing request was sent, by Service and action. What is for no Service has an
/// empty name.
pub(crate) type Changes = BTreeMap<(String, String), usize>;

/// Which load balancers the Services have, and how upstream treats their security groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Network load balancers without security groups, which is the default.
    Plain,
    /// `NLBSecurityGroupMode = Managed`.
    Managed,
    /// Classic load balancers with all their settings.
    Classic,
}

/// When changing calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// Upstream follows upstream: what it does at each of its own starts.
    Upstream,
    /// Ours follows upstream.
    Takeover,
    /// Ours follows ours.
    Restart,
    /// Ours compares everything with AWS, as it does once an hour.
    Check,
    /// A Service asks for the dialect `extended`.
    OptIn,
    /// Upstream follows ours.
    Rollback,
}

/// A call of one action for one kind of Service.
struct Row {
    round: Round,
    situation: Situation,
    /// Name of the Service in the test.
    service: &'static str,
    /// What is special about it.
    kind: &'static str,
    action: &'static str,
    why: &'static str,
}

const fn row(
    situation: Situation,
    service: &'static str,
    kind: &'static str,
    action: &'static str,
    why: &'static str,
) -> Row {
    Row { round: Round::Plain, situation, service, kind, action, why }
}

const fn managed(mut row: Row) -> Row {
    row.round = Round::Managed;
    row
}

const fn classic(mut row: Row) -> Row {
    row.round = Round::Classic;
    row
}

const HTTP: &str = "HTTP health check";
const LOCAL: &str = "`externalTrafficPolicy: Local`";
const TLS: &str = "TLS without `ssl-negotiation-policy`";
const CLASSIC: &str = "classic load balancer";
const MANAGED_LOCAL: &str = "`NLBSecurityGroupMode = Managed`, with `externalTrafficPolicy: Local`";

const SPACES: &str = "`ssl-ports` with a space, `alpn-policy`";
const ALPN: &str =
    "Upstream ignores the annotation on network load balancers. The listener gets the ALPN policy.";
const DISRUPTIVE: &str = "Upstream ignores the entry with the space. The port gets TLS; AWS cannot change TCP to TLS, so clients are cut off for a moment. Upstream makes it TCP again when it takes back.";

const CLASSIC_POLICY: &str = "classic load balancer with `ssl-negotiation-policy`";
const CLASSIC_TAGS: &str = "classic load balancer with `additional-resource-tags`";
const CLASSIC_PROXY: &str = "classic load balancer with `proxy-protocol`";
const CREATE_POLICY: &str = "classic CreateLoadBalancerPolicy";
const SET_POLICIES: &str = "classic SetLoadBalancerPoliciesOfListener";

const SAME_POLICIES: &str =
    "Upstream sends the policy at each start although it is the same. No effect.";
const SAME_PROXY: &str = "Upstream creates the policy at each start although it exists. No effect.";
const SAME_TAGS: &str =
    "Upstream sends the tags at each start although they are the same. No effect.";
const SAME_PATH: &str = "Upstream sends the path at each start although it is the same. No effect.";
const SAME_POLICY: &str =
    "Upstream takes AWS' default policy for a difference at each start. No effect.";
const SAME_CLASSIC: &str =
    "Upstream sends the attributes at each start although they are the same. No effect.";

const ROWS: &[Row] = &[
    row(Situation::Upstream, "health", HTTP, "ModifyTargetGroup", SAME_PATH),
    row(Situation::Upstream, "local", LOCAL, "ModifyTargetGroup", SAME_PATH),
    row(Situation::Upstream, "tls", TLS, "ModifyListener", SAME_POLICY),
    row(
        Situation::Upstream,
        "classic",
        CLASSIC,
        "classic ModifyLoadBalancerAttributes",
        SAME_CLASSIC,
    ),
    row(
        Situation::OptIn,
        "proxy",
        "`proxy-protocol`",
        "ModifyTargetGroupAttributes",
        "Upstream ignores the annotation on network load balancers. Targets get the PROXY header.",
    ),
    row(
        Situation::OptIn,
        "health",
        "health check with `healthcheck-timeout`",
        "ModifyTargetGroup",
        "Upstream ignores the annotation on network load balancers. Health checks get the timeout.",
    ),
    row(Situation::OptIn, "spaces", SPACES, "ModifyListener", ALPN),
    row(Situation::OptIn, "spaces", SPACES, "DeleteListener", DISRUPTIVE),
    row(Situation::OptIn, "spaces", SPACES, "CreateListener", DISRUPTIVE),
    row(Situation::Rollback, "health", HTTP, "ModifyTargetGroup", SAME_PATH),
    row(Situation::Rollback, "tls", TLS, "ModifyListener", SAME_POLICY),
    row(
        Situation::Rollback,
        "classic",
        CLASSIC,
        "classic ModifyLoadBalancerAttributes",
        SAME_CLASSIC,
    ),
    managed(row(Situation::Upstream, "local", MANAGED_LOCAL, "ModifyTargetGroup", SAME_PATH)),
    classic(row(Situation::Upstream, "policy", CLASSIC_POLICY, SET_POLICIES, SAME_POLICIES)),
    classic(row(Situation::Upstream, "proxy", CLASSIC_PROXY, CREATE_POLICY, SAME_PROXY)),
    classic(row(Situation::Upstream, "tagged", CLASSIC_TAGS, "classic AddTags", SAME_TAGS)),
    classic(row(Situation::Rollback, "policy", CLASSIC_POLICY, SET_POLICIES, SAME_POLICIES)),
    classic(row(Situation::Rollback, "proxy", CLASSIC_PROXY, CREATE_POLICY, SAME_PROXY)),
    classic(row(Situation::Rollback, "tagged", CLASSIC_TAGS, "classic AddTags", SAME_TAGS)),
];

/// The classic load balancers that upstream sends attributes for, at each of its starts. The last of
/// them are deleted before upstream takes back.
const CLASSICS: [&str; 15] = [
    "one", "two", "tls", "http", "policy", "proxy", "health", "internal", "settings", "logs",
    "ranges", "given", "extra", "tagged", "local",
];
const DELETED: usize = 1;
/// Those that ours makes.
const MADE_BY_OURS: [&str; 2] = ["ours", PROXY_BY_OURS];
/// The one with proxy protocol.
const PROXY_BY_OURS: &str = "oursprox";

/// Services that ask for the dialect `extended`, one after the other.
pub(crate) const OPT_INS: [&str; 3] = ["proxy", "health", "spaces"];

/// What may be changed, and has to be.
pub(crate) fn expected(round: Round, situation: Situation) -> Changes {
    let rows = ROWS
        .iter()
        .filter(|row| row.round == round && row.situation == situation);
    let mut changes: Changes = rows
        .map(|row| ((row.service.to_owned(), row.action.to_owned()), 1))
        .collect();
    let (sent, made_by_ours) = match (round, situation) {
        (Round::Classic, Situation::Upstream) => (&CLASSICS[..], &[][..]),
        (Round::Classic, Situation::Rollback) => {
            (&CLASSICS[..CLASSICS.len() - DELETED], &MADE_BY_OURS[..])
        }
        _ => (&[][..], &[][..]),
    };
    for service in sent.iter().chain(made_by_ours) {
        let action = "classic ModifyLoadBalancerAttributes".to_owned();
        changes.insert(((*service).to_owned(), action), 1);
    }
    if made_by_ours.contains(&PROXY_BY_OURS) {
        changes.insert((PROXY_BY_OURS.to_owned(), CREATE_POLICY.to_owned()), 1);
    }
    changes
}

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->\n";

/// The page for operators has this table. `CCM_UPDATE_REFERENCE=1` writes it.
pub(crate) fn page() -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/providers/aws-takeover.md");
    let page =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let (before, rest) = page
        .split_once(BEGIN)
        .context("the page has no mark where tables begin")?;
    let (_, after) = rest
        .split_once(END)
        .context("the page has no mark where tables end")?;
    let wanted = format!("{before}{BEGIN}{}{END}{after}", tables());
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        return Ok(std::fs::write(&path, wanted)?);
    }
    anyhow::ensure!(
        page == wanted,
        "{} is out of date; CCM_UPDATE_REFERENCE=1 refreshes it",
        path.display()
    );
    Ok(())
}

fn tables() -> String {
    let mut text = String::new();
    let situations = [
        (Situation::Takeover, "Ours takes over"),
        (Situation::Check, "Ours compares everything, once an hour"),
        (Situation::Restart, "Ours starts again"),
        (Situation::OptIn, "A Service gets the annotation `annotation-dialect: extended`"),
        (Situation::Rollback, "Upstream takes back"),
        (Situation::Upstream, "For comparison: upstream starts again"),
    ];
    for (situation, title) in situations {
        let _ = write!(text, "\n### {title}\n\n");
        let rows: Vec<_> = ROWS
            .iter()
            .filter(|row| row.situation == situation)
            .collect();
        if rows.is_empty() {
            text.push_str("No changing call.\n");
            continue;
        }
        text.push_str("| kind of Service | call | why, and effect |\n|---|---|---|\n");
        for row in rows {
            let _ = writeln!(text, "| {} | {} | {} |", row.kind, row.action, row.why);
        }
    }
    text.push('\n');
    text
}
