//! Feature gates of the API client, set by environment variables as in client-go: `KUBE_FEATURE_<Name>=true|false`.

use super::Config;
use crate::config::boolean::parse_bool;

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
    /// `WatchListClient`: whether lists are streamed if the server supports that. On by default since 1.35.
    pub watch_list: bool,
}

impl Default for ClientFeatureGates {
    fn default() -> Self {
        Self { watch_list: true }
    }
}

impl Config {
    /// Reads the gates from environment variables. As in client-go, an invalid value changes nothing and adds a
    /// warning. Other variables are ignored.
    pub fn read_client_gates(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        let mut variables: Vec<_> = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?.to_owned(), value)))
            .collect();
        variables.sort();
        for (name, text) in variables {
            let idle = GATES_WITHOUT_EFFECT.iter().find(|(idle, _)| *idle == name);
            let value = match parse_bool(&text) {
                _ if name != WATCH_LIST && idle.is_none() => continue,
                Err(reason) => {
                    self.warnings.push(format!("{PREFIX}{name}={text} has no effect: {reason}"));
                    continue;
                }
                Ok(value) => value,
            };
            match idle {
                None => self.client_gates.watch_list = value,
                Some((_, default)) if *default == value => {}
                Some(_) => self.warnings.push(format!("{PREFIX}{name}={text} has no effect in this program")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;

    #[test]
    fn the_environment_sets_gates_of_the_client() {
        let product = Product::new("ccm", "v1.0.0", &["mock"]);
        for (variables, watch_list, warned) in [
            (&[][..], true, &[][..]),
            (&[("KUBE_FEATURE_WatchListClient", "false")], false, &[]),
            (&[("KUBE_FEATURE_WatchListClient", "1")], true, &[]),
            (&[("KUBE_FEATURE_WatchListClient", "off")], true, &["WatchListClient=off", "must be true or false"]),
            (&[("KUBE_FEATURE_ClientsAllowCBOR", "true")], true, &["ClientsAllowCBOR=true", "no effect"]),
            (&[("KUBE_FEATURE_ClientsAllowCBOR", "false")], true, &[]),
            (&[("KUBE_FEATURE_InformerResourceVersion", "maybe")], true, &["InformerResourceVersion=maybe"]),
            (&[("KUBE_FEATURE_Nope", "maybe"), ("WatchListClient", "false")], true, &[]),
        ] {
            let Ok(Invocation::Run(mut config)) = parse(&product, ["--cloud-provider=mock"]) else { panic!() };
            config.read_client_gates(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            assert_eq!(config.client_gates.watch_list, watch_list, "{variables:?}");
            assert_eq!(config.warnings().len(), usize::from(!warned.is_empty()), "{variables:?}");
            assert!(warned.iter().all(|word| config.warnings()[0].contains(word)), "{:?}", config.warnings());
        }
    }
}
