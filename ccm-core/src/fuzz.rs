//! What fuzz targets reach into: pure parts of the framework that are nobody's interface. Only with
//! feature `fuzz`.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::FutureExt as _;
use ipnet::IpNet;

use crate::{
    config::{Config, ControllerInfo, InvalidBlocks, leader_migration::LeaderMigration},
    controllers::{
        node::{
            apply::{address_patch, operations},
            plan::plan_initialization,
        },
        node_ipam::{apply as ipam, cidr_set::CidrSet},
        node_lifecycle::apply as lifecycle,
        service::patches,
    },
    error::chain,
    k8s::{LbStatus, NodeView, ServiceView},
    provider::InstanceMetadata,
    runtime::{
        api::Patch,
        encoding::{CachedObject, Decoder, Encoding},
        reflector::watch_stream::WatchStream,
    },
    telemetry::traces::TracesConfig,
};

/// The two writes of an initialisation, as they are now: the addresses, and all else.
#[derive(Clone, Debug, PartialEq)]
pub struct Initialization {
    /// Patch of the status, which goes first; `None` when the addresses are right.
    pub addresses: Option<Patch>,
    /// Patch of everything else.
    pub rest: Patch,
    /// The labels that it sets.
    pub labels: BTreeMap<String, String>,
    /// True if it changes nothing.
    pub is_empty: bool,
}

/// Plans and builds the writes of an initialisation.
///
/// # Errors
/// The node cannot be initialised; why.
pub fn initialization(node: &NodeView, meta: &InstanceMetadata) -> Result<Initialization, String> {
    let plan = plan_initialization(node, meta).map_err(|error| chain(&error))?;
    Ok(Initialization {
        is_empty: plan.addresses.is_none() && plan.change.is_empty(),
        addresses: plan
            .addresses
            .map(|addresses| address_patch(node, &addresses, None)),
        rest: Patch::Json(operations(node, &plan.change)),
        labels: plan.change.labels,
    })
}

/// Builds the write that adds the shutdown taint, or removes it.
pub fn shutdown_taint(node: &NodeView, wanted: bool) -> Patch {
    Patch::Json(if wanted {
        lifecycle::shutdown_taint_addition(node)
    } else {
        lifecycle::shutdown_taint_removal(node)
    })
}

/// Builds the write that gives a node its pod networks.
pub fn pod_networks(node: &NodeView, networks: &[IpNet]) -> Patch {
    Patch::Json(ipam::operations(node, networks))
}

/// Builds the write that adds the finalizer of load balancers.
pub fn finalizer(service: &ServiceView) -> Patch {
    patches::finalizer_patch(service)
}

/// Builds the write that shows status and annotations; `None` when they are shown.
pub fn status_patch(
    service: &ServiceView,
    status: Option<&LbStatus>,
    annotations: &BTreeMap<Box<str>, Option<Box<str>>>,
) -> Option<Patch> {
    patches::status_patch(service, status, annotations)
}

/// Builds the write that takes what is ours off a Service; `None` when nothing is there.
pub fn release(service: &ServiceView, stale: &[Box<str>]) -> Option<Patch> {
    let operations = patches::release_operations(service, stale);
    (!operations.is_empty()).then_some(Patch::Json(operations))
}

/// The blocks of one cluster CIDR.
#[derive(Clone, Debug)]
pub struct CidrBlocks(CidrSet);

impl CidrBlocks {
    /// Cuts a network into blocks with prefixes of `mask` bits, all free.
    ///
    /// # Errors
    /// It cannot be cut so.
    pub fn new(cluster: IpNet, mask: u8) -> Result<Self, InvalidBlocks> {
        CidrSet::new(cluster, mask).map(Self)
    }

    /// Takes the next free block; `None` when there is none.
    pub fn allocate(&mut self) -> Option<IpNet> {
        let index = self.0.take_next_free()?.index;
        self.0.occupy(index..index + 1);
        Some(self.0.block(index))
    }

    /// Takes what a network touches; returns how many blocks of it were free, `None` when it lies
    /// outside.
    pub fn occupy(&mut self, net: &IpNet) -> Option<u64> {
        let blocks = self.0.blocks_of(net)?;
        Some(self.0.occupy(blocks))
    }

    /// Frees what a network touches; returns how many blocks of it were taken, `None` when it lies
    /// outside.
    pub fn release(&mut self, net: &IpNet) -> Option<u64> {
        let blocks = self.0.blocks_of(net)?;
        Some(self.0.release(blocks))
    }

    /// Returns how many blocks there are, and how many of them are taken.
    pub fn counts(&self) -> (u64, u64) {
        (self.0.len(), self.0.taken())
    }
}

/// A page of a list as it is read.
#[derive(Debug)]
pub struct Page<T> {
    /// Objects.
    pub items: Vec<T>,
    /// How many items could not be read.
    pub malformed: usize,
}

/// Reads a page of a list.
///
/// # Errors
/// It is none.
pub fn page<T: CachedObject>(
    decoder: &Decoder<T>,
    encoding: Encoding,
    body: &Bytes,
) -> Result<Page<T>, String> {
    let page = decoder
        .page(encoding, body)
        .map_err(|error| chain(&error))?;
    Ok(Page { items: page.items, malformed: page.malformed.len() })
}

/// Reads an event of a watch and writes down what it was.
///
/// # Errors
/// It is none.
pub fn event<T: CachedObject + std::fmt::Debug>(
    decoder: &Decoder<T>,
    encoding: Encoding,
    frame: &Bytes,
) -> Result<String, String> {
    decoder
        .event(encoding, frame)
        .map(|event| format!("{event:?}"))
        .map_err(|error| chain(&error))
}

/// Splits the body of a watch, which arrives in these pieces, into events; and the error that ended
/// it, if one did.
pub fn frames<'a>(
    encoding: Encoding,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Bytes>, Option<String>) {
    let mut frames = WatchStream::new(encoding, kube::client::Body::from(Vec::new()));
    let mut seen = Vec::new();
    for piece in pieces {
        frames.push(piece);
        // The body is at its end, so that there is never anything to wait for.
        while let Some(next) = frames.next().now_or_never() {
            match next {
                Ok(Some(frame)) => seen.push(frame),
                Ok(None) => break,
                Err(error) => return (seen, Some(chain(&error))),
            }
        }
    }
    (seen, None)
}

/// Reads the text of a leader-migration file.
///
/// # Errors
/// All problems.
pub fn leader_migration(
    text: &str,
    known: &[ControllerInfo],
) -> Result<LeaderMigration, Vec<String>> {
    LeaderMigration::parse(text, known)
}

/// Reads the text of a tracing file.
///
/// # Errors
/// All problems.
pub fn traces(text: &str) -> Result<TracesConfig, Vec<String>> {
    TracesConfig::parse(text)
}

/// Returns what `/configz` shows of a configuration.
pub fn configz(config: &Config, known: &[ControllerInfo]) -> serde_json::Value {
    config.configz(known)
}
