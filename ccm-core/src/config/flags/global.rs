//! Flags of any Kubernetes program: version, help, logs.

use super::Flag;
use super::Group::Global;
use crate::config::value::FlagTarget::{self, Bool, Choice, Duration, Int, Text, Version};

const fn global(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, Global, target, default, help)
}

const UNBUFFERED: &str = "logs go to one stream, unbuffered";

/// Version, help and logs.
pub(super) static GLOBAL: &[Flag] = &[
    global("help", Bool(|c| &mut c.raw.help), "false", "Print this help and exit.").short('h'),
    global(
        "version",
        Version(|c| &mut c.raw.version),
        "false",
        "`--version` and `--version=raw` print version information and exit; `--version=vX.Y.Z...` sets the reported version.",
    ),
    global(
        "v",
        Int(|c| &mut c.raw.verbosity),
        "0",
        "Number for the log level verbosity: 0 to 3 mean info, 4 and 5 debug, 6 and above trace.",
    )
    .short('v'),
    global(
        "vmodule",
        Text(|c| &mut c.raw.vmodule),
        "",
        "Comma-separated list of `pattern=N` settings for the log verbosity of source files or modules; `*` and `?` match as in file names. Only works for the text log format.",
    ),
    global(
        "log-flush-frequency",
        Duration(|c| &mut c.logging.flush_frequency),
        "5s",
        "Maximum duration between log flushes.",
    )
    .without_effect(UNBUFFERED),
    global(
        "logging-format",
        Choice(|c| &mut c.logging.format),
        "text",
        "The log format: `text` or `json`.",
    ),
    global(
        "log-text-split-stream",
        Bool(|c| &mut c.logging.text.split_stream),
        "false",
        "Write errors to stderr and info messages to stdout. Enable the LoggingAlphaOptions feature gate to use this.",
    )
    .without_effect(UNBUFFERED),
    global(
        "log-text-info-buffer-size",
        Text(|c| &mut c.logging.text.info_buffer_size),
        "0",
        "Size of the buffer for info messages with split streams. Enable the LoggingAlphaOptions feature gate to use this.",
    )
    .without_effect(UNBUFFERED),
    global(
        "log-json-split-stream",
        Bool(|c| &mut c.logging.json.split_stream),
        "false",
        "Write errors to stderr and info messages to stdout. Enable the LoggingAlphaOptions feature gate to use this.",
    )
    .without_effect(UNBUFFERED),
    global(
        "log-json-info-buffer-size",
        Text(|c| &mut c.logging.json.info_buffer_size),
        "0",
        "Size of the buffer for info messages with split streams. Enable the LoggingAlphaOptions feature gate to use this.",
    )
    .without_effect(UNBUFFERED),
];
