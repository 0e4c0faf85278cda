//! Feature gates of the API client, set by environment variables as in client-go:
//! `KUBE_FEATURE_<Name>=true|false`.

use super::boolean::parse_bool;

const PREFIX: &str = "KUBE_FEATURE_";
const WATCH_LIST: &str = "WatchListClient";
/// Gates of client-go 1.37 that have no effect on this client, with their defaults.
const GATES_WITHOUT_EFFECT: [(&str, bool); 9] = [
    ("AtomicFIFO", true),
    ("ClientsAllowCARotation", true),
    ("ClientsAllowCBOR", false),
    ("ClientsAllowTLSCacheGC", true),
    ("ClientsPreferCBOR", false),
    ("InOrderInformers", true),
    ("InOrderInformersBatchProcess", true),
    ("InformerResourceVersion", true),
    ("UnlockWhileProcessingFIFO", true),
];

/// Feature gates that change the behaviour of the API client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFeatureGates {
    /// `WatchListClient`: whether lists are streamed if the server supports that. On by default
    /// since 1.35.
    pub watch_list: bool,
}

impl Default for ClientFeatureGates {
    fn default() -> Self {
        Self { watch_list: true }
    }
}

impl ClientFeatureGates {
    /// Sets the gates from environment variables, and returns warnings. As in client-go, an invalid
    /// value changes nothing and adds a warning. Other variables are ignored.
    pub(crate) fn read_environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Vec<String> {
        let mut gates: Vec<_> = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?.to_owned(), value)))
            .collect();
        gates.sort();
        gates
            .iter()
            .filter_map(|(name, text)| self.set(name, text))
            .collect()
    }

    /// Sets one gate, unless it is not a gate of client-go. Returns a warning if that has no
    /// effect.
    fn set(&mut self, name: &str, text: &str) -> Option<String> {
        let without_effect = GATES_WITHOUT_EFFECT.iter().find(|(gate, _)| *gate == name);
        if name != WATCH_LIST && without_effect.is_none() {
            return None;
        }
        let value = match parse_bool(text) {
            Ok(value) => value,
            Err(reason) => return Some(format!("{PREFIX}{name}={text} has no effect: {reason}")),
        };
        match without_effect {
            None => {
                self.watch_list = value;
                None
            }
            Some((_, default)) if *default == value => None,
            Some(_) => Some(format!("{PREFIX}{name}={text} has no effect in this program")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_sets_gates_of_the_client() {
        for (variables, watch_list, warned) in [
            (&[][..], true, &[][..]),
            (&[("KUBE_FEATURE_WatchListClient", "false")], false, &[]),
            (&[("KUBE_FEATURE_WatchListClient", "1")], true, &[]),
            (
                &[("KUBE_FEATURE_WatchListClient", "off")],
                true,
                &["WatchListClient=off", "must be true or false"],
            ),
            (
                &[("KUBE_FEATURE_ClientsAllowCBOR", "true")],
                true,
                &["ClientsAllowCBOR=true", "no effect"],
            ),
            (&[("KUBE_FEATURE_ClientsAllowCBOR", "false")], true, &[]),
            (
                &[("KUBE_FEATURE_InformerResourceVersion", "maybe")],
                true,
                &["InformerResourceVersion=maybe"],
            ),
            (&[("KUBE_FEATURE_Nope", "maybe"), ("WatchListClient", "false")], true, &[]),
        ] {
            let mut gates = ClientFeatureGates::default();
            let environment = variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let warnings = gates.read_environment(environment);
            assert_eq!(gates.watch_list, watch_list, "{variables:?}");
            assert_eq!(warnings.len(), usize::from(!warned.is_empty()), "{variables:?}");
            assert!(warned.iter().all(|word| warnings[0].contains(word)), "{warnings:?}");
        }
    }
}
