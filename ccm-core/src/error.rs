//! Text of errors and panics, for logs and events.

use std::{any::Any, borrow::Cow, error::Error, fmt::Write, panic::AssertUnwindSafe};

use futures::FutureExt;
use kube::client::AuthError;

use crate::redact::redact_credentials;

/// Any error that can be sent to another thread, such as that of a provider's constructor.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Returns an error and its causes in one line, for logs and events.
///
/// Redacts credentials that servers repeat in their messages, and the output of a kubeconfig's exec
/// plug-in.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = Some(error);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if let Some(redacted) = redacted_exec_error(cause) {
            if text.contains(&cause_text) {
                // An outer error already printed this cause.
                text = text.replace(&cause_text, &redacted);
            } else {
                // Writing to a String cannot fail.
                let _ = write!(text, ": {redacted}");
            }
            // The causes below this one contain the secrets too.
            break;
        }
        // Errors of some libraries already print their cause.
        if !text.ends_with(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        next = cause.source();
    }
    match redact_credentials(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(redacted) => redacted,
    }
}

/// Returns a replacement for the text of an error that contains an exec plug-in's command line and
/// environment, or the credentials that it printed. Returns `None` for every other error.
fn redacted_exec_error(error: &(dyn Error + 'static)) -> Option<String> {
    match error.downcast_ref::<AuthError>()? {
        AuthError::AuthExecRun { out, .. } => {
            Some(format!("the exec plug-in of the kubeconfig failed: {}", out.status))
        }
        AuthError::AuthExecParse(_) => {
            Some("the exec plug-in of the kubeconfig printed no ExecCredential".to_owned())
        }
        _ => None,
    }
}

/// Returns the message of a panic from its payload, which `catch_unwind` and joined tasks return.
pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// Returns the message of a panic for logs and events. Redacts text that looks like credentials,
/// because libraries may panic with a request in their message.
pub(crate) fn redacted_panic(payload: &(dyn Any + Send)) -> Cow<'_, str> {
    redact_credentials(panic_text(payload))
}

/// Runs `work` and catches a panic in it, so that the panic does not end the task.
///
/// The caller must check that state shared with `work` is still consistent after a panic.
///
/// # Errors
/// Returns the message of the panic, redacted as by [`redacted_panic`].
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|panic| redacted_panic(&*panic).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no client")]
    struct Outer(#[source] kube::Error);

    #[test]
    fn what_a_plug_in_printed_is_not_said() {
        let status = std::os::unix::process::ExitStatusExt::from_raw(3 << 8);
        let out = std::process::Output {
            status,
            stdout: b"s3cret".to_vec(),
            stderr: b"s3cret".to_vec(),
        };
        let run = AuthError::AuthExecRun {
            cmd: "KEY=s3cret /bin/plugin s3cret".to_owned(),
            out: Box::new(out),
        };
        let failed = "the exec plug-in of the kubeconfig failed: exit status: 3";
        assert_eq!(chain(&run), failed);
        assert_eq!(
            chain(&Outer(kube::Error::Auth(run))),
            format!("no client: auth error: {failed}")
        );
        let boxed = AuthError::AuthExecParse(Box::new(
            serde_saphyr::from_str::<u8>("[s3cret, s3cret").expect_err("this is no number"),
        ));
        let said = "ServiceError: the exec plug-in of the kubeconfig printed no ExecCredential";
        assert_eq!(chain(&kube::Error::Service(Box::new(boxed))), said);
        // Others are told as they are.
        let start = AuthError::AuthExecStart(std::io::ErrorKind::NotFound.into());
        assert_eq!(chain(&start), "unable to run auth exec: entity not found");
    }

    #[test]
    fn credentials_in_a_panic_are_hidden() {
        let payload: Box<dyn Any + Send> =
            Box::new("refused [authorization: Bearer abcDEF0123456789]".to_owned());
        assert_eq!(redacted_panic(&*payload), "refused [authorization: Bearer …]");
        assert_eq!(redacted_panic(&"plain"), "plain");
        assert_eq!(redacted_panic(&1_u8), "no message");
    }
}
