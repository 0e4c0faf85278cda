//! The subcommand `explain`: asks the leader why an object is as it is, or finds out alone.

use std::{
    ffi::OsString, future::Future, iter::Peekable, process::ExitCode, sync::Arc, time::Duration,
};

use http::{Request, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Signals,
    report_flags::{self, TIMEOUT},
    until_signalled, write_line,
};
use crate::{
    config::{
        self, Config, Flag, Product, ShadowConfig,
        kubeconfig::{
            ServerVerification,
            connect::{self, HttpVersions},
        },
    },
    error::{BoxError, chain},
    explain::ObjectName,
    manager::Manager,
    provider::CloudProvider,
};

/// The name of the subcommand on the command line.
pub(super) const SUBCOMMAND: &str = "explain";

const OUTPUT: &str = "output";
const ADDRESS: &str = "address";
const CA: &str = "server-certificate-authority";
const SKIP_VERIFICATION: &str = "insecure-skip-server-verification";
const ALONE: &str = "alone";
/// What must follow the name of the subcommand.
const USAGE: &str =
    "explain needs an object: explain node NAME, explain service NAMESPACE/NAME, or explain routes";

/// Adds the flags of the subcommand to those of the product.
pub(super) fn with_flags(mut product: Product) -> Product {
    product.extra_flags.extend([
        Flag::provider(OUTPUT, "text", "Form of the explanation: `text` or `json`."),
        Flag::provider(
            ADDRESS,
            "https://127.0.0.1:10258",
            "Address of the leader's HTTPS server; the default is that of `kubectl port-forward`. The user of --kubeconfig asks.",
        ),
        Flag::provider(
            CA,
            "",
            "File with the CA certificates that verify the certificate of --address. Without it, those of the system do.",
        ),
        Flag::provider_switch(
            SKIP_VERIFICATION,
            "Do not verify the certificate of --address, and still send it the credentials of --kubeconfig. For a port-forward, which the API server authenticates.",
        ),
        Flag::provider_switch(
            ALONE,
            "Do not ask the leader, but compare once as in shadow mode and explain what that shows. This also happens if no leader answers.",
        ),
        report_flags::timeout("2m0s"),
    ]);
    product
}

/// Takes the object from the arguments; `None` if flags follow at once, as with `--help`.
///
/// # Errors
/// Returns how to use the subcommand if the arguments name no object.
pub(super) fn take_object(
    args: &mut Peekable<impl Iterator<Item = OsString>>,
) -> Result<Option<ObjectName>, BoxError> {
    let mut word = || {
        args.next_if(|arg| !arg.as_encoded_bytes().starts_with(b"-"))
            .and_then(|arg| arg.into_string().ok())
    };
    let Some(kind) = word() else {
        return Ok(None);
    };
    let object = match &*kind {
        "routes" => Some(ObjectName::Routes),
        "node" => word().map(ObjectName::Node),
        "service" => word().and_then(|key| {
            let (namespace, name) = key.split_once('/')?;
            Some(ObjectName::Service { namespace: namespace.to_owned(), name: name.to_owned() })
        }),
        _ => None,
    };
    match object {
        Some(object) => Ok(Some(object)),
        None => Err(USAGE.into()),
    }
}

/// Returns the flag that the subcommand has unless it is given: to ask the leader, it is enough to be
/// its program.
pub(super) fn default_provider(product: &Product) -> Option<OsString> {
    let provider = product.providers.first()?;
    Some(format!("--cloud-provider={provider}").into())
}

/// The parsed flags of the subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExplainArgs {
    json: bool,
    /// The address of the leader; `None` to explain alone.
    address: Option<Uri>,
    ca_file: Option<String>,
    verification: ServerVerification,
    timeout: Duration,
}

impl ExplainArgs {
    fn read(config: &Config) -> Result<Self, String> {
        let json = match report_flags::value(config, OUTPUT) {
            "json" => true,
            "text" => false,
            other => return Err(format!("--{OUTPUT} {other:?} must be \"text\" or \"json\"")),
        };
        let mut address = None;
        if report_flags::value(config, ALONE) != "true" {
            address = Some(read_address(report_flags::value(config, ADDRESS))?);
        }
        let ca_file = report_flags::value(config, CA);
        let skips = report_flags::value(config, SKIP_VERIFICATION) == "true";
        if skips && !ca_file.is_empty() {
            return Err(format!("--{SKIP_VERIFICATION} and --{CA} exclude each other"));
        }
        Ok(Self {
            json,
            address,
            ca_file: (!ca_file.is_empty()).then(|| ca_file.to_owned()),
            verification: if skips {
                ServerVerification::Skip
            } else {
                ServerVerification::Verify
            },
            timeout: report_flags::read_timeout(config)?,
        })
    }
}

/// Parses `--address`. Only HTTPS is accepted, because credentials are sent.
fn read_address(text: &str) -> Result<Uri, String> {
    match text.parse::<Uri>() {
        Ok(uri) if uri.scheme_str() == Some("https") && uri.host().is_some() => Ok(uri),
        _ => Err(format!("--{ADDRESS} {text:?} must be like https://127.0.0.1:10258")),
    }
}

/// The end of a question to the leader.
#[derive(Debug)]
enum LeaderAnswer {
    Explained(String),
    /// Nobody who leads has answered, for this reason.
    NoLeader(String),
}

/// Runs the subcommand and prints the explanation.
pub(super) async fn run<B, F>(
    product: Product,
    config: Config,
    object: Option<ObjectName>,
    build: B,
) -> Result<ExitCode, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let args = ExplainArgs::read(&config)?;
    let object = object.ok_or(USAGE)?;
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    let work = explain(product, config, &args, object, build, &stop);
    let text = until_signalled(work, &stop, &mut signals).await??;
    write_line(&mut std::io::stdout(), &text);
    Ok(ExitCode::SUCCESS)
}

/// Asks the leader, and explains alone if there is none.
async fn explain<B, F>(
    product: Product,
    config: Config,
    args: &ExplainArgs,
    object: ObjectName,
    build: B,
    stop: &CancellationToken,
) -> Result<String, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let limit = Instant::now() + args.timeout;
    if let Some(address) = &args.address {
        let question = ask_leader(&product, &config, args, address, &object);
        match tokio::time::timeout_at(limit, question).await {
            Ok(Ok(LeaderAnswer::Explained(text))) => return Ok(text),
            Ok(Ok(LeaderAnswer::NoLeader(reason))) => {
                let line = format!("no leader answers at {address}: {reason}; explaining alone");
                write_line(&mut std::io::stderr(), &line);
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(format!("{address} did not answer within --{TIMEOUT}").into()),
        }
    }
    Box::pin(explain_alone(product, config, args, object, build, limit, stop)).await
}

/// Asks the manager at an address.
async fn ask_leader(
    product: &Product,
    config: &Config,
    args: &ExplainArgs,
    address: &Uri,
    object: &ObjectName,
) -> Result<LeaderAnswer, BoxError> {
    // Build a client with the user of the kubeconfig.
    let user = config::kubeconfig::load(&config.kube_client, product, SUBCOMMAND).await?;
    let mut ca_bundle = None;
    if let Some(file) = &args.ca_file {
        let content = std::fs::read(file).map_err(|error| format!("--{CA} {file}: {error}"))?;
        ca_bundle = Some(content);
    }
    let server = user
        .for_server(address.clone(), ca_bundle.as_deref(), args.verification)
        .map_err(|reason| format!("--{CA}: {reason}"))?;
    let client = connect::client(&server, HttpVersions::Any)?;
    // Send the request.
    let format = if args.json { "json" } else { "text" };
    let request = Request::get(format!("{}?format={format}", object.path())).body(Body::empty())?;
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(error) => return Ok(LeaderAnswer::NoLeader(chain(&error))),
    };
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    read_answer(status, &String::from_utf8_lossy(&body))
}

/// Decides what a response means.
///
/// # Errors
/// Returns the answer if the manager does not explain the object to this user.
fn read_answer(status: StatusCode, body: &str) -> Result<LeaderAnswer, BoxError> {
    let text = body.trim_end();
    match status {
        StatusCode::OK => Ok(LeaderAnswer::Explained(text.to_owned())),
        StatusCode::SERVICE_UNAVAILABLE => Ok(LeaderAnswer::NoLeader(text.to_owned())),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(format!(
            "{status}: {text}; the user of --kubeconfig needs a ClusterRole with nonResourceURLs [\"/explain/*\"] and verb get"
        )
        .into()),
        _ => Err(format!("{status}: {text}").into()),
    }
}

/// Builds the provider, compares once as in shadow mode, and explains what that shows.
async fn explain_alone<B, F>(
    product: Product,
    mut config: Config,
    args: &ExplainArgs,
    object: ObjectName,
    build: B,
    limit: Instant,
    stop: &CancellationToken,
) -> Result<String, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    // A difference is explained although it may not last.
    config.shadow = ShadowConfig { once: true, ..ShadowConfig::default() };
    let build = tokio::time::timeout_at(limit, build(config.clone()));
    let provider = match stop.run_until_cancelled(build).await {
        Some(Ok(provider)) => provider?,
        Some(Err(_)) => {
            return Err(format!("the cloud provider could not be built within --{TIMEOUT}").into());
        }
        None => return Err("stopped before the cloud provider was built".into()),
    };
    let manager = Manager::from_config(product, config, provider).await?;
    let explanation = Box::pin(manager.explain_alone(object, limit, stop.clone())).await?;
    if args.json {
        return Ok(serde_json::to_string_pretty(&explanation)?);
    }
    Ok(explanation.text()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Invocation};

    fn read(args: &[&str]) -> Result<ExplainArgs, String> {
        let product = with_flags(Product::new("ccm-test", "v0.0", &["test"]));
        let args = ["--cloud-provider=test"].iter().chain(args);
        match config::parse(&product, args).unwrap() {
            Invocation::Run(config) => ExplainArgs::read(&config),
            other => unreachable!("{other:?}"),
        }
    }

    fn object(args: &[&str]) -> Result<Option<ObjectName>, String> {
        let mut args = args.iter().map(OsString::from).peekable();
        let object = take_object(&mut args).map_err(|error| error.to_string())?;
        let rest: Vec<_> = args.collect();
        assert!(
            rest.iter()
                .all(|arg| arg.as_encoded_bytes().starts_with(b"-")),
            "{rest:?}"
        );
        Ok(object)
    }

    #[test]
    fn the_object_comes_before_the_flags() {
        let node = ObjectName::Node("a".to_owned());
        assert_eq!(object(&["node", "a", "--output=json"]), Ok(Some(node)));
        let service = ObjectName::Service { namespace: "shop".to_owned(), name: "web".to_owned() };
        assert_eq!(object(&["service", "shop/web"]), Ok(Some(service.clone())));
        assert_eq!(object(&["routes"]), Ok(Some(ObjectName::Routes)));
        assert_eq!(object(&["--help"]), Ok(None));
        for wrong in [&["node"][..], &["service", "web"], &["pod", "a"], &["node", "--help"]] {
            assert_eq!(object(wrong), Err(USAGE.to_owned()), "{wrong:?}");
        }
        assert_eq!(service.path(), "/explain/services/shop/web");
        assert_eq!(ObjectName::Node("../a".to_owned()).path(), "/explain/nodes/..%2Fa");
    }

    #[test]
    fn flags_are_checked() {
        let defaults = read(&[]).unwrap();
        assert_eq!(defaults.address, Some(Uri::from_static("https://127.0.0.1:10258")));
        assert_eq!(defaults.verification, ServerVerification::Verify);
        assert_eq!(read(&["--alone"]).unwrap().address, None);
        let skip = "--insecure-skip-server-verification";
        assert_eq!(read(&[skip]).unwrap().verification, ServerVerification::Skip);
        for (args, part) in [
            (&["--output=yaml"][..], "--output"),
            (&["--address=http://127.0.0.1:10258"], "--address"),
            (&["--address=leader"], "--address"),
            (&["--timeout=0s"], "--timeout"),
            (&[skip, "--server-certificate-authority=ca.crt"], "exclude"),
        ] {
            let error = read(args).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_a_process_that_does_not_lead_is_no_leader() {
        let explained = read_answer(StatusCode::OK, "Node a\n").unwrap();
        assert!(matches!(explained, LeaderAnswer::Explained(text) if text == "Node a"));
        let standby = read_answer(StatusCode::SERVICE_UNAVAILABLE, "does not lead\n").unwrap();
        assert!(matches!(standby, LeaderAnswer::NoLeader(reason) if reason == "does not lead"));
        for status in [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN] {
            let error = read_answer(status, "no\n").unwrap_err().to_string();
            assert!(error.contains("nonResourceURLs"), "{error}");
        }
        let error = read_answer(StatusCode::NOT_FOUND, "no such object\n").unwrap_err();
        assert_eq!(error.to_string(), "404 Not Found: no such object");
    }
}
