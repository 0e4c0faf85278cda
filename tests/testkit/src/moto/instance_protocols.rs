//! Protocols to instances of classic listeners. moto keeps one protocol for a listener, that to its
//! clients, so that a listener for TLS or HTTPS would differ from what it was made with.

use std::collections::BTreeMap;

use super::{
    fault_proxy::Recorded,
    query_api::{CLASSIC, elements},
};

/// Protocols by port of the instances: a node port, which belongs to one Service.
#[derive(Debug, Default)]
pub(super) struct InstanceProtocols(BTreeMap<String, String>);

impl InstanceProtocols {
    /// Remembers the protocols of the listeners that a request creates.
    pub(super) fn record(&mut self, request: &Recorded) {
        if request.version != CLASSIC.version {
            return;
        }
        for (name, protocol) in &request.parameters {
            let Some(listener) = name.strip_suffix(".InstanceProtocol") else {
                continue;
            };
            if let Some(port) = request.parameter(&format!("{listener}.InstancePort")) {
                self.0.insert(port.to_owned(), protocol.to_uppercase());
            }
        }
    }

    /// Returns moto's description of classic load balancers with the protocols that were asked for.
    pub(super) fn correct(&self, description: &str) -> String {
        let mut listeners = description.split("<Listener>");
        let before = listeners.next().unwrap_or_default().to_owned();
        listeners.fold(before, |text, listener| {
            let listener = self.corrected(listener).unwrap_or(listener.to_owned());
            text + "<Listener>" + &listener
        })
    }

    fn corrected(&self, listener: &str) -> Option<String> {
        let port = elements(listener, "InstancePort").first().copied()?;
        let shown = elements(listener, "InstanceProtocol").first().copied()?;
        let protocol = self.0.get(port)?;
        let element = |protocol: &str| format!("<InstanceProtocol>{protocol}<");
        Some(listener.replacen(&element(shown), &element(protocol), 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_keep_the_protocol_that_they_were_made_with() {
        let parameter =
            |name: &str, value: &str| (format!("Listeners.member.1.{name}"), value.to_owned());
        let mut protocols = InstanceProtocols::default();
        protocols.record(&Recorded {
            service: "elasticloadbalancing".into(),
            version: CLASSIC.version.into(),
            action: "CreateLoadBalancer".into(),
            parameters: vec![
                parameter("InstancePort", "30443"),
                parameter("InstanceProtocol", "tcp"),
            ],
            status: None,
        });
        let listener = |port: &str, protocol: &str| {
            format!(
                "<member><Listener><InstanceProtocol>{protocol}</InstanceProtocol><InstancePort>{port}</InstancePort>\
                 </Listener></member>"
            )
        };
        let shown = format!("<a>{}{}</a>", listener("30443", "SSL"), listener("30080", "HTTP"));
        let wanted = format!("<a>{}{}</a>", listener("30443", "TCP"), listener("30080", "HTTP"));
        assert_eq!(protocols.correct(&shown), wanted);
    }
}
