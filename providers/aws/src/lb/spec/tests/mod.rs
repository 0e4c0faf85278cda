//! Tests of reading Services, a file per subject. Codes above them are those of the catalogue of
//! cases.

mod attributes;
mod classic;
mod dialects;
mod health;
mod listeners;
mod ownership;
mod placement;
mod properties;
mod security;
mod table;
mod tags;

use std::{num::NonZeroU16, sync::Arc};

use ccm_core::{
    k8s::{LbIngress, Protocol, ServicePort, TrafficPolicy},
    provider::FieldError,
};

use super::*;
use crate::lb::{model::DesiredListener, spec::annotations::PREFIX};

/// A Service in the making, and the configuration under which it is read.
#[derive(Clone, Debug)]
struct Case {
    service: ServiceView,
    settings: Settings,
}

/// A Service of type `nlb` without ports, of which all annotations are read.
fn bare() -> Case {
    let mut service = ServiceView::named("default", "web");
    service.uid = "0f1e2d3c-0000-1111-2222-333344445555".into();
    let settings = Settings {
        annotation_dialect: AnnotationDialect::Extended,
        ..Settings::default()
    };
    Case { service, settings }.says("type", "nlb")
}

/// A Service of type `nlb` with TCP port 80 on node port 30080.
fn nlb() -> Case {
    bare().tcp(80)
}

/// The same, claimed from the AWS load balancer controller by its class.
fn claimed() -> Case {
    let mut case = nlb().without("type");
    case.service.class = Some("service.k8s.aws/nlb".into());
    case.set(|settings| settings.classes = vec!["service.k8s.aws/nlb".into()])
}

impl Case {
    /// Annotates; a name without `/` is one of ours.
    fn says(mut self, name: &str, value: &str) -> Self {
        let key = if name.contains('/') {
            name.to_owned()
        } else {
            format!("{PREFIX}{name}")
        };
        self.service.annotations.insert(key.into(), value.into());
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.service.annotations.remove(&*format!("{PREFIX}{name}"));
        self
    }

    fn tcp(self, port: u16) -> Self {
        self.port(&format!("p{port}"), Protocol::Tcp, port, 30000 + port)
    }

    fn udp(self, port: u16) -> Self {
        self.port(&format!("u{port}"), Protocol::Udp, port, 30000 + port)
    }

    /// Adds a port; no node port for 0.
    fn port(self, name: &str, protocol: Protocol, port: u16, node_port: u16) -> Self {
        let port = ServicePort {
            name: name.into(),
            protocol,
            port: NonZeroU16::new(port).unwrap(),
            node_port: NonZeroU16::new(node_port),
            target_port: Arc::from(port.to_string()),
            app_protocol: None,
        };
        self.spec(|service| {
            service.ports = service
                .ports
                .iter()
                .cloned()
                .chain([port.clone()])
                .collect();
        })
    }

    fn target_port(self, target: &str) -> Self {
        self.spec(|service| {
            service
                .ports
                .iter_mut()
                .for_each(|port| port.target_port = target.into());
        })
    }

    fn local(self, port: u16) -> Self {
        self.spec(|service| {
            service.external_traffic_policy = TrafficPolicy::Local;
            service.health_check_node_port = NonZeroU16::new(port);
        })
    }

    fn host(self, name: &str) -> Self {
        self.spec(|service| {
            service
                .status
                .ingress
                .push(LbIngress { hostname: Some(name.into()), ..LbIngress::default() });
        })
    }

    fn spec(mut self, change: impl FnOnce(&mut ServiceView)) -> Self {
        change(&mut self.service);
        self
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// The same, read as upstream reads it.
    fn upstream(self) -> Self {
        self.set(|settings| settings.annotation_dialect = AnnotationDialect::Upstream)
    }

    fn read(&self) -> ParsedService {
        parse(&self.service, &self.settings, &Cluster::new("c1", false))
    }

    /// Returns what is wanted, which nothing is wrong with.
    fn wanted(&self) -> DesiredLoadBalancer {
        match self.read().spec {
            ServiceSpec::Nlb(wanted) => *wanted,
            other => panic!("{:?}: {other:?}", self.service.annotations),
        }
    }

    fn listeners(&self) -> Vec<DesiredListener> {
        self.wanted().listeners
    }

    /// Returns the only listener.
    fn listener(&self) -> DesiredListener {
        let mut listeners = self.listeners();
        assert_eq!(listeners.len(), 1, "{listeners:?}");
        listeners.remove(0)
    }

    /// Returns the messages of all mistakes.
    fn mistakes(&self) -> Vec<String> {
        self.refused()
            .iter()
            .map(|mistake| mistake.message.to_string())
            .collect()
    }

    fn refused(&self) -> Vec<FieldError> {
        match self.read().spec {
            ServiceSpec::Invalid(mistakes) => mistakes,
            other => panic!("{:?}: {other:?}", self.service.annotations),
        }
    }

    /// Returns reasons and notes of all remarks.
    fn remarks(&self) -> Vec<(&'static str, String)> {
        self.read()
            .notices
            .iter()
            .map(|remark| (remark.reason, remark.note.to_string()))
            .collect()
    }
}

/// Returns pairs of texts.
fn pairs<'a>(
    of: impl IntoIterator<Item = (&'a Box<str>, &'a Box<str>)>,
) -> Vec<(&'a str, &'a str)> {
    of.into_iter()
        .map(|(key, value)| (&**key, &**value))
        .collect()
}
