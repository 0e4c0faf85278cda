//! The file of `--tracing-config-file`, in the format of kube-apiserver and the kubelet.

use std::path::Path;

use serde::Deserialize;

use crate::config::yaml_file::{self, FileError};

const GROUP: &str = "apiserver.config.k8s.io";
const KIND: &str = "TracingConfiguration";
/// Default address of a collector for OTLP over gRPC.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const MILLION: i64 = 1_000_000;

/// Where spans are sent, and how many are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesConfig {
    /// `host:port` of a collector that accepts OTLP over gRPC without TLS.
    pub endpoint: String,
    /// How many of a million traces are recorded.
    pub sampling_rate_per_million: u32,
}

impl TracesConfig {
    /// Reads the file.
    ///
    /// # Errors
    /// Names the file, and each invalid field.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        yaml_file::load("tracing-config-file", path, Self::parse)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Vec<String>> {
        yaml_file::decode::<File>(text)?.check()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i64>,
}

impl File {
    fn check(self) -> Result<TracesConfig, Vec<String>> {
        let mut problems = Vec::new();
        let version = self
            .api_version
            .strip_prefix(GROUP)
            .and_then(|rest| rest.strip_prefix('/'));
        if !matches!(version, Some("v1" | "v1beta1")) {
            problems.push(format!(
                "apiVersion: {:?} is neither {GROUP}/v1 nor {GROUP}/v1beta1",
                self.api_version
            ));
        }
        if self.kind != KIND {
            problems.push(format!("kind: {:?} is not {KIND:?}", self.kind));
        }
        let endpoint = endpoint(self.endpoint.as_deref()).unwrap_or_else(|problem| {
            problems.push(problem);
            String::new()
        });
        let rate = self.sampling_rate_per_million.unwrap_or(0);
        if !(0..=MILLION).contains(&rate) {
            problems.push(format!("samplingRatePerMillion: {rate} is not between 0 and {MILLION}"));
        }
        if problems.is_empty() {
            Ok(TracesConfig {
                endpoint,
                sampling_rate_per_million: u32::try_from(rate).unwrap_or(0),
            })
        } else {
            Err(problems)
        }
    }
}

/// Parses a gRPC target: `host:port`, with or without the scheme `dns`.
fn endpoint(text: Option<&str>) -> Result<String, String> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(DEFAULT_ENDPOINT.to_owned());
    };
    let target = match text.split_once("://") {
        None => text.strip_prefix("dns:").unwrap_or(text),
        // `dns:///host` and `dns://resolver/host`; the resolver is ignored, and the system's is
        // used.
        Some(("dns", rest)) => rest.rsplit('/').next().unwrap_or(rest),
        Some((scheme @ ("unix" | "unix-abstract"), _)) => {
            return Err(format!(
                "endpoint: {text:?}: the scheme {scheme} is not supported here, only host:port is"
            ));
        }
        Some((scheme, _)) => {
            return Err(format!(
                "endpoint: {text:?}: there is no scheme {scheme:?}; write host:port, or dns:///host:port"
            ));
        }
    };
    match target.parse::<http::uri::Authority>() {
        Ok(authority) if authority.port_u16().is_some() && !authority.as_str().contains('@') => {
            Ok(authority.to_string())
        }
        _ => Err(format!("endpoint: {text:?} is not of the form host:port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";

    #[test]
    fn the_file_of_kube_apiserver_is_read() {
        for (text, endpoint, rate) in [
            (HEAD.to_owned(), "localhost:4317", 0),
            (HEAD.replace("/v1", "/v1beta1"), "localhost:4317", 0),
            (
                format!("{HEAD}endpoint: collector.obs:4317\nsamplingRatePerMillion: 1000000\n"),
                "collector.obs:4317",
                1_000_000,
            ),
            (
                format!("{HEAD}endpoint: dns:///collector:4317\nsamplingRatePerMillion: 5\n"),
                "collector:4317",
                5,
            ),
            (format!("{HEAD}endpoint: dns:10.0.0.1:4317\n"), "10.0.0.1:4317", 0),
            (format!("{HEAD}endpoint: '[::1]:4317'\n"), "[::1]:4317", 0),
            (
                r#"{"apiVersion":"apiserver.config.k8s.io/v1","kind":"TracingConfiguration"}"#
                    .to_owned(),
                "localhost:4317",
                0,
            ),
        ] {
            let expected = TracesConfig {
                endpoint: endpoint.to_owned(),
                sampling_rate_per_million: rate,
            };
            assert_eq!(TracesConfig::parse(&text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn mistakes_name_their_field() {
        for (text, said) in [
            (String::new(), "is empty"),
            ("kind: TracingConfiguration".to_owned(), "apiVersion: \"\" is neither"),
            (
                HEAD.replace("Tracing", "Logging"),
                "kind: \"LoggingConfiguration\" is not \"TracingConfiguration\"",
            ),
            (
                format!("{HEAD}samplingRatePerMillion: -1\n"),
                "samplingRatePerMillion: -1 is not between",
            ),
            (
                format!("{HEAD}samplingRatePerMillion: 1000001\n"),
                "samplingRatePerMillion: 1000001 is not between",
            ),
            (format!("{HEAD}samplingRatePerMillion: all\n"), "line 3"),
            (format!("{HEAD}samplingRate: 1\n"), "samplingRate"),
            (format!("{HEAD}endpoint: a:1\nendpoint: b:1\n"), "duplicate"),
            (format!("{HEAD}endpoint: http://localhost:4317\n"), "there is no scheme \"http\""),
            (format!("{HEAD}endpoint: unix:///run/otel\n"), "the scheme unix is not supported"),
            (
                format!("{HEAD}endpoint: collector\n"),
                "endpoint: \"collector\" is not of the form host:port",
            ),
            (format!("{HEAD}endpoint: user@collector:4317\n"), "is not of the form host:port"),
        ] {
            let problems = TracesConfig::parse(&text).unwrap_err();
            assert!(problems.len() == 1 && problems[0].contains(said), "{text}: {problems:?}");
        }
        let all = "apiVersion: v1\nkind: x\nendpoint: y\nsamplingRatePerMillion: -3\n";
        assert_eq!(TracesConfig::parse(all).unwrap_err().len(), 4, "all mistakes together");
        let error = TracesConfig::load(Path::new("/nonexistent/traces.yaml"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("--tracing-config-file=/nonexistent/traces.yaml: "), "{error}");
    }
}
