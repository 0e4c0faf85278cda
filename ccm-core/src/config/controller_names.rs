//! Names of controllers, and which of them `--controllers` selects.

use super::ConfigError;

/// A controller on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Canonical name: lower-case letters and dashes, ending in `-controller`.
    pub name: &'static str,
    /// Older names of the same controller.
    pub aliases: &'static [&'static str],
    /// The name of its API client, which is also the name of its ServiceAccount.
    pub client_name: &'static str,
    /// True if `*` selects it.
    pub enabled_by_default: bool,
}

/// Initialises nodes and updates their addresses.
pub const CLOUD_NODE: &str = "cloud-node-controller";
/// Taints nodes that are shut down and deletes those whose instance no longer exists.
pub const CLOUD_NODE_LIFECYCLE: &str = "cloud-node-lifecycle-controller";
/// Manages load balancers for Services.
pub const SERVICE_LB: &str = "service-lb-controller";
/// Manages routes to pod networks.
pub const NODE_ROUTE: &str = "node-route-controller";
/// Allocates pod networks to nodes. Off unless named.
pub const NODE_IPAM: &str = "node-ipam-controller";

/// Returns the controllers that every cloud-controller-manager has.
pub fn standard() -> Vec<ControllerInfo> {
    vec![
        enabled_by_default(CLOUD_NODE, &["cloud-node"], "node-controller"),
        enabled_by_default(CLOUD_NODE_LIFECYCLE, &["cloud-node-lifecycle"], "node-controller"),
        enabled_by_default(SERVICE_LB, &["service"], "service-controller"),
        enabled_by_default(NODE_ROUTE, &["route"], "route-controller"),
        node_ipam(),
    ]
}

fn enabled_by_default(
    name: &'static str,
    aliases: &'static [&'static str],
    client_name: &'static str,
) -> ControllerInfo {
    ControllerInfo { name, aliases, client_name, enabled_by_default: true }
}

/// The node-IPAM controller. `*` does not select it: manifests set `--allocate-node-cidrs=true` for
/// other reasons while kube-controller-manager allocates, and two allocators corrupt pod CIDRs.
fn node_ipam() -> ControllerInfo {
    ControllerInfo {
        name: NODE_IPAM,
        aliases: &["nodeipam"],
        client_name: "node-controller",
        enabled_by_default: false,
    }
}

/// Selection of controllers: the entries of `--controllers` with their aliases resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControllerSelection {
    entries: Vec<String>,
    enabled: Vec<&'static str>,
}

impl ControllerSelection {
    /// Resolves aliases in `entries`, also after a `-`, and decides for each known controller
    /// whether it runs.
    ///
    /// # Errors
    ///
    /// One for each entry that names no known controller.
    pub(super) fn new(
        entries: &[String],
        known: &[ControllerInfo],
    ) -> Result<Self, Vec<ConfigError>> {
        let entries: Vec<String> = entries.iter().map(|entry| resolve(entry, known)).collect();
        let unknown: Vec<ConfigError> = entries
            .iter()
            .filter(|entry| *entry != "*")
            .map(|entry| entry.strip_prefix('-').unwrap_or(entry))
            .filter(|name| !known.iter().any(|info| info.name == *name))
            .map(|name| ConfigError::UnknownController {
                name: name.to_owned(),
                known: known.iter().map(|info| info.name).collect(),
            })
            .collect();
        if !unknown.is_empty() {
            return Err(unknown);
        }
        let enabled = known
            .iter()
            .filter(|info| is_enabled(&entries, info.name, info.enabled_by_default))
            .map(|info| info.name)
            .collect();
        Ok(Self { entries, enabled })
    }

    /// Returns true if the controller with this canonical name runs.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.enabled.contains(&name)
    }

    /// Returns the canonical names of the controllers that run.
    pub fn enabled(&self) -> &[&'static str] {
        &self.enabled
    }

    /// Returns the entries of the flag, with canonical names.
    pub fn entries(&self) -> &[String] {
        &self.entries
    }
}

fn resolve(entry: &str, known: &[ControllerInfo]) -> String {
    let (minus, name) = match entry.strip_prefix('-') {
        Some(name) => ("-", name),
        None => ("", entry),
    };
    let canonical = known
        .iter()
        .find(|info| info.aliases.contains(&name))
        .map_or(name, |info| info.name);
    format!("{minus}{canonical}")
}

/// The first entry that names the controller decides; if none does, `*` selects it if it is enabled
/// by default.
pub(super) fn is_enabled(entries: &[String], name: &str, enabled_by_default: bool) -> bool {
    for entry in entries {
        if entry == name {
            return true;
        }
        if entry.strip_prefix('-') == Some(name) {
            return false;
        }
    }
    enabled_by_default && entries.iter().any(|entry| entry == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colours() -> Vec<ControllerInfo> {
        let info = |name, aliases, enabled_by_default| ControllerInfo {
            name,
            aliases,
            client_name: name,
            enabled_by_default,
        };
        vec![
            info("red", &["crimson"], true),
            info("green", &[], true),
            info("blue", &["ultramarine"], false),
            info("pink", &[], true),
        ]
    }

    fn select(entries: &str) -> Result<ControllerSelection, Vec<ConfigError>> {
        let entries: Vec<String> = entries
            .split(',')
            .filter(|e| !e.is_empty())
            .map(str::to_owned)
            .collect();
        ControllerSelection::new(&entries, &colours())
    }

    #[test]
    fn first_entry_for_a_name_decides_and_star_selects_the_default() {
        for (entries, enabled) in [
            ("*", vec!["red", "green", "pink"]),
            ("", vec![]),
            ("red", vec!["red"]),
            ("crimson", vec!["red"]),
            ("-red", vec![]),
            ("*,-red", vec!["green", "pink"]),
            ("-red,*", vec!["green", "pink"]),
            ("red,-red", vec!["red"]),
            ("-red,red", vec![]),
            ("*,blue", vec!["red", "green", "blue", "pink"]),
            ("ultramarine,-crimson", vec!["blue"]),
            ("*,-crimson,ultramarine", vec!["green", "blue", "pink"]),
        ] {
            assert_eq!(select(entries).unwrap().enabled(), enabled, "{entries}");
        }
    }

    #[test]
    fn aliases_are_translated_and_the_minus_kept() {
        let selection = select("green,-crimson,ultramarine,-pink").unwrap();
        assert_eq!(selection.entries(), ["green", "-red", "blue", "-pink"]);
        let list =
            ["service-lb-controller", "-service", "route", "-cloud-node-lifecycle-controller"]
                .map(str::to_owned);
        let selection = ControllerSelection::new(&list, &standard()).unwrap();
        assert_eq!(
            selection.entries(),
            [
                "service-lb-controller",
                "-service-lb-controller",
                "node-route-controller",
                "-cloud-node-lifecycle-controller"
            ]
        );
        assert_eq!(selection.enabled(), [SERVICE_LB, NODE_ROUTE]);
    }

    #[test]
    fn the_star_does_not_select_node_ipam_but_either_of_its_names_does() {
        for (entries, enabled) in [
            (&["*"][..], false),
            (&["*", "nodeipam"], true),
            (&["node-ipam-controller"], true),
            (&["-nodeipam", "node-ipam-controller"], false),
        ] {
            let entries: Vec<String> = entries.iter().map(|&entry| entry.to_owned()).collect();
            let selection = ControllerSelection::new(&entries, &standard()).unwrap();
            assert_eq!(selection.is_enabled(NODE_IPAM), enabled, "{entries:?}");
        }
    }

    #[test]
    fn every_unknown_name_is_reported() {
        assert!(select("-*").is_err());
        let errors = select("red,grey,-violet").unwrap_err();
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 2);
        assert!(text[0].contains("\"grey\" is not in the list of known controllers"), "{text:?}");
        assert!(text[1].contains("\"violet\" is not in the list of known controllers"), "{text:?}");
    }

    #[test]
    fn names_are_lower_case_and_end_in_controller() {
        let known = standard();
        for info in &known {
            assert!(info.name.ends_with("-controller"), "{}", info.name);
            assert!(
                info.name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c == '-'),
                "{}",
                info.name
            );
            assert!(
                info.aliases
                    .iter()
                    .all(|alias| !known.iter().any(|other| other.name == *alias))
            );
        }
    }
}
