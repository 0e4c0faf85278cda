//! Logging as configured by `--logging-format`, `-v` and `--vmodule`.
//!
//! Kubernetes programs count verbosity upwards, tracing has five levels. Levels that each verbosity
//! shows:
//!
//! | `-v` | this program | libraries it uses (HTTP, TLS, API client) |
//! |---|---|---|
//! | 0–3 | error, warn, info | error, warn; nothing of the API client, because its failures are logged by this program |
//! | 4, 5 | and debug | and info |
//! | 6, 7 | and trace | and debug |
//! | 8 and above | everything | everything |
//!
//! The messages in which the clients of the API server and of AWS report unusable responses are
//! never shown: they contain the whole response, including tokens. Such errors are logged, without
//! credentials, where they are handled.
//!
//! `--vmodule=pattern=N,...` sets the verbosity of single modules. A pattern without `::` or `/` is
//! compared with the last part of the module's path (the file's name), any other one with the whole
//! path (`ccm_core::controllers::node::*`). `*` and `?` match as in file names. The first pattern
//! that matches applies.
//!
//! JSON lines have the keys of Go's JSON logger ([`json`](super::json)).

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Dispatch, Level, Metadata};
use tracing_subscriber::Layer as _;
use tracing_subscriber::fmt::{MakeWriter, format::JsonFields};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};

use super::{json::JsonLines, traces::SpanLayer};
use crate::config::{Format, LoggingConfig, ModuleVerbosity};

/// Crates whose messages are shown one level less detailed than this program's.
const LIBRARIES: &[&str] = &[
    "aws_",
    "axum",
    "h2",
    "hyper",
    "hyper_util",
    "kube",
    "kube_client",
    "mio",
    "reqwest",
    "rustls",
    "tokio",
    "tokio_util",
    "tonic",
    "tower",
    "tower_http",
    "want",
];

/// Logs whole responses of the API server, including those with tokens and those that repeat
/// requests.
const REPEATS: &str = "kube_client::client";

/// Log responses of AWS and of the services that provide its credentials. Includes all modules
/// below these.
const CRATES_LOGGING_RESPONSES: [&str; 2] =
    ["aws_config", "aws_smithy_runtime::client::orchestrator"];

/// The verbosity of the process, which can be changed at runtime. Clones share it.
#[derive(Debug, Clone)]
pub struct Verbosity(Arc<AtomicU32>);

impl Verbosity {
    /// Returns the current verbosity.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the verbosity, as `-v` would have set it. Verbosities of single modules from
    /// `--vmodule` stay. Must be called where the dispatcher that was made with it is the default
    /// one, which is everywhere once it is the global one.
    pub fn set(&self, verbosity: u32) {
        self.0.store(verbosity, Ordering::Relaxed);
        // Each log statement caches whether it is enabled.
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Creates the dispatcher of all log messages, which writes them to `writer` as `config` says, and
/// the handle that changes its verbosity later.
///
/// Changes no global state: a binary passes the dispatcher to
/// [`tracing::dispatcher::set_global_default`], a test to [`tracing::dispatcher::with_default`].
/// Writes happen in the caller's thread, before the logging call returns.
pub fn dispatch<W>(config: &LoggingConfig, writer: W) -> (Dispatch, Verbosity)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    dispatch_with(config, writer, None)
}

/// Like [`dispatch`], with an additional layer that receives spans.
pub fn dispatch_with<W>(
    config: &LoggingConfig,
    writer: W,
    spans: Option<SpanLayer>,
) -> (Dispatch, Verbosity)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let verbosity = Verbosity(Arc::new(AtomicU32::new(config.verbosity)));
    let rules = LogFilter {
        verbosity: verbosity.clone(),
        modules: config.modules.clone(),
        format: config.format,
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false);
    let log = match config.format {
        Format::Text => layer.with_filter(rules).boxed(),
        Format::Json => layer
            .fmt_fields(JsonFields::new())
            .event_format(JsonLines::new())
            .with_filter(rules)
            .boxed(),
    };
    let layers: Vec<_> = spans.into_iter().chain([log]).collect();
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(layers));
    (dispatch, verbosity)
}

/// Filter of log messages.
struct LogFilter {
    verbosity: Verbosity,
    modules: Vec<ModuleVerbosity>,
    format: Format,
}

impl LogFilter {
    fn allow(&self, metadata: &Metadata<'_>) -> bool {
        // In text, the current spans precede each message. They are only shown at verbosities for
        // debugging.
        let level = match self.format {
            Format::Text if metadata.is_span() => Level::DEBUG.max(*metadata.level()),
            _ => *metadata.level(),
        };
        level <= self.level(metadata.module_path().unwrap_or_else(|| metadata.target()))
    }

    fn level(&self, module: &str) -> LevelFilter {
        if logs_response_bodies(module) {
            return LevelFilter::OFF;
        }
        let verbosity = self.verbosity.get();
        match self.modules.iter().find(|rule| rule.matches(module)) {
            Some(rule) => own_level(rule.verbosity),
            // Logs each failed request at level error; this program logs it again where it is
            // handled.
            None if module.starts_with("kube_client") && verbosity <= 3 => LevelFilter::OFF,
            None if is_library(module) => library_level(verbosity),
            None => own_level(verbosity),
        }
    }

    /// Returns the most detailed level of any module, so that tracing can skip all others early.
    fn max_level(&self) -> LevelFilter {
        let verbosity = self
            .modules
            .iter()
            .map(|rule| rule.verbosity)
            .max()
            .unwrap_or(0)
            .max(self.verbosity.get());
        own_level(verbosity)
    }
}

impl<S> Filter<S> for LogFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.allow(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.allow(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.max_level())
    }
}

impl ModuleVerbosity {
    fn matches(&self, module: &str) -> bool {
        let subject = if self.pattern.contains("::") {
            module
        } else {
            module.rsplit("::").next().unwrap_or(module)
        };
        glob(&self.pattern, subject)
    }
}

fn own_level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn library_level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::WARN,
        4..=5 => LevelFilter::INFO,
        6..=7 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Returns true if a module logs responses that may contain credentials.
fn logs_response_bodies(module: &str) -> bool {
    module == REPEATS
        || CRATES_LOGGING_RESPONSES.iter().any(|name| {
            module
                .strip_prefix(*name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        })
}

fn is_library(module: &str) -> bool {
    let krate = module.split("::").next().unwrap_or(module);
    LIBRARIES.iter().any(|name| {
        if name.ends_with('_') {
            krate.starts_with(name)
        } else {
            krate == *name
        }
    })
}

/// Returns true if `text` matches `pattern`, in which `*` matches any text and `?` one character.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let mut p = 0;
    let mut t = 0;
    // Position of the last `*`, and of the end of the text that it matches so far: the only place
    // to backtrack to.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((star_p, star_t)) => {
                    star = Some((star_p, star_t + 1));
                    p = star_p + 1;
                    t = star_t + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_vmodule;
    use crate::telemetry::log_capture::LogCapture;

    fn say() {
        tracing::trace!("a trace");
        tracing::debug!("a detail");
        tracing::info!(node = "n1", "a change");
        tracing::error!("a failure");
    }

    fn rules(verbosity: u32, modules: Vec<ModuleVerbosity>) -> LogFilter {
        LogFilter {
            verbosity: Verbosity(Arc::new(AtomicU32::new(verbosity))),
            modules,
            format: Format::Text,
        }
    }

    fn logged(config: &LoggingConfig) -> String {
        let buffer = LogCapture::default();
        let writer = buffer.clone();
        tracing::dispatcher::with_default(&dispatch(config, move || writer.clone()).0, say);
        buffer.text()
    }

    #[test]
    fn verbosity_selects_levels() {
        for (verbosity, own, library) in [
            (0, LevelFilter::INFO, LevelFilter::WARN),
            (3, LevelFilter::INFO, LevelFilter::WARN),
            (4, LevelFilter::DEBUG, LevelFilter::INFO),
            (5, LevelFilter::DEBUG, LevelFilter::INFO),
            (6, LevelFilter::TRACE, LevelFilter::DEBUG),
            (10, LevelFilter::TRACE, LevelFilter::TRACE),
        ] {
            let rules = rules(verbosity, Vec::new());
            assert_eq!(rules.level("ccm_core::controllers::node"), own, "{verbosity}");
            assert_eq!(rules.level("hyper::client"), library, "{verbosity}");
            assert_eq!(rules.level("aws_smithy_http"), library, "{verbosity}");
            let api_client = if verbosity <= 3 {
                LevelFilter::OFF
            } else {
                library
            };
            assert_eq!(rules.level("kube_client::client::builder"), api_client, "{verbosity}");
            for module in [
                "kube_client::client",
                "aws_config",
                "aws_config::web_identity_token",
                "aws_smithy_runtime::client::orchestrator",
                "aws_smithy_runtime::client::orchestrator::http",
            ] {
                assert_eq!(rules.level(module), LevelFilter::OFF, "{module} {verbosity}");
            }
        }
    }

    #[test]
    fn first_module_pattern_decides() {
        let modules = parse_vmodule("no*e=4,ccm_core/controllers/*=6,hyper::*=8,lea?er=0").unwrap();
        let rules = rules(2, modules);
        for (module, level) in [
            ("ccm_core::controllers::node", LevelFilter::DEBUG),
            ("ccm_core::controllers::route", LevelFilter::TRACE),
            ("ccm_core::runtime", LevelFilter::INFO),
            ("ccm_core::leader", LevelFilter::INFO),
            ("hyper::client", LevelFilter::TRACE),
            ("rustls::conn", LevelFilter::WARN),
        ] {
            assert_eq!(rules.level(module), level, "{module}");
        }
        assert_eq!(rules.max_level(), LevelFilter::TRACE);
    }

    #[test]
    fn bad_patterns_are_refused() {
        assert_eq!(parse_vmodule(""), Ok(Vec::new()));
        for text in ["node", "node=", "=3", "node=x", "node=-1", "a=1,b"] {
            assert!(parse_vmodule(text).is_err(), "{text}");
        }
    }

    #[test]
    fn globs_match_as_file_names_do() {
        for (pattern, text, matches) in [
            ("", "", true),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("*ab*ab", "abxabab", true),
            ("?", "é", true),
            ("?", "", false),
            ("a", "ab", false),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn text_shows_what_verbosity_allows() {
        let text = logged(&LoggingConfig::default());
        assert!(
            text.contains("a change") && text.contains("node=\"n1\"") && text.contains("a failure"),
            "{text}"
        );
        assert!(!text.contains("a detail") && !text.contains("a trace"), "{text}");
        let text = logged(&LoggingConfig { verbosity: 4, ..LoggingConfig::default() });
        assert!(text.contains("a detail") && !text.contains("a trace"), "{text}");
        let modules = parse_vmodule("tests=6").unwrap();
        let text = logged(&LoggingConfig { modules, ..LoggingConfig::default() });
        assert!(text.contains("a trace"), "{text}");
    }

    #[test]
    fn the_work_at_hand_is_shown_in_text_from_verbosity_4_on() {
        let shown = |verbosity| {
            let buffer = LogCapture::default();
            let writer = buffer.clone();
            let config = LoggingConfig { verbosity, ..LoggingConfig::default() };
            tracing::dispatcher::with_default(&dispatch(&config, move || writer.clone()).0, || {
                tracing::info_span!("reconcile", object = "n1").in_scope(say);
            });
            let text = buffer.text();
            assert!(text.contains("a change"), "{text}");
            text.contains("reconcile{object=\"n1\"}")
        };
        assert_eq!((shown(0), shown(4)), (false, true));
    }

    #[test]
    fn verbosity_changes_while_it_runs() {
        let buffer = LogCapture::default();
        let writer = buffer.clone();
        let (dispatch, verbosity) = dispatch(&LoggingConfig::default(), move || writer.clone());
        for (set, detail, trace) in
            [(0, false, false), (4, true, false), (6, true, true), (2, false, false)]
        {
            buffer.clear();
            tracing::dispatcher::with_default(&dispatch, || {
                verbosity.set(set);
                say();
            });
            assert_eq!(verbosity.get(), set);
            let text = buffer.text();
            assert_eq!(
                (text.contains("a detail"), text.contains("a trace")),
                (detail, trace),
                "{set}: {text}"
            );
        }
    }
}
