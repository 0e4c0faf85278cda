//! Requests for servers and their ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{k8s::Interner, provider::Op};
use serde::de::DeserializeOwned;

use super::{
    lookup_strategy::{MAX_DEVICES, PortStrategy},
    server::{NetworkAddress, NovaServer},
};
use crate::{
    api::{
        neutron::{Network, Port},
        nova::{Flavor, Server},
    },
    client::{BoundedList, Call, Client, OpenStackError, Request, Rows, UnreadableRow},
};

/// Fields of ports that are requested; a port has many more.
const PORT_FIELDS: [(&str, &str); 5] = [
    ("fields", "id"),
    ("fields", "device_id"),
    ("fields", "status"),
    ("fields", "fixed_ips"),
    ("fields", "trunk_details"),
];

/// Addresses of trunks' sub-ports.
#[derive(Default)]
pub(super) struct SubPortAddresses {
    /// Fixed addresses by port ID. Ports on networks that the project cannot see are missing.
    pub by_port: BTreeMap<String, Vec<NetworkAddress>>,
    /// IDs of ports whose row, or whose network's row, cannot be read. They may have addresses.
    pub unreadable: BTreeSet<String>,
}

/// Sends requests on behalf of one operation.
pub(super) struct Fetch<'a> {
    pub client: &'a Client,
    pub strings: &'a Interner,
    pub op: &'a Op,
}

/// A complete listing of the project's servers.
pub(super) struct Listing {
    pub servers: Vec<NovaServer>,
    /// IDs of servers in cells that do not answer. They exist, but nothing else is known about
    /// them.
    pub unknown_cell_ids: BTreeSet<String>,
    /// Servers whose rows cannot be read. They exist too.
    pub unreadable: Vec<UnreadableRow>,
    /// True if servers of cells that do not answer are missing, because Nova has returned to a release
    /// before microversion 2.69.
    pub lacks_down_cells: bool,
}

impl Listing {
    /// Returns true if a row that cannot be read may be a server with this name.
    pub(super) fn may_hide(&self, name: &str) -> bool {
        self.unreadable.iter().any(|row| row.may_have("name", name))
    }
}

/// Listing of servers up to a number of rows.
pub(super) enum ServerListing {
    /// All servers of the project.
    Complete(Listing),
    /// The project has more than this number of servers.
    TooLong(usize),
}

/// Result of a request for a server by its ID.
pub(super) enum ServerRow {
    /// Nova has no server with the ID.
    NotFound,
    /// The server exists, but its cell does not answer.
    CellDown,
    /// The server with its data.
    Found(NovaServer),
}

impl Fetch<'_> {
    /// Lists the servers of the project, unless it has more than `max_rows`.
    ///
    /// The page has no `limit`: with one, Nova leaves out the servers of cells that do not answer, and
    /// the list would seem to prove that they were deleted.
    pub(super) async fn list_up_to(
        &self,
        max_rows: usize,
    ) -> Result<ServerListing, OpenStackError> {
        let request = Request::new(Call::ServerList, &["servers", "detail"]);
        let listing = self.client.get_up_to(self.op, &request, max_rows).await?;
        Ok(match listing {
            BoundedList::Complete(rows) => ServerListing::Complete(self.read_rows(rows).await?),
            BoundedList::TooLong(rows) => ServerListing::TooLong(rows.count()),
        })
    }

    /// Lists every server of the project, however many there are.
    pub(super) async fn list_servers(&self) -> Result<Listing, OpenStackError> {
        self.list_filtered(&[]).await
    }

    /// Lists the servers with exactly this name. Servers in cells that do not answer are missing.
    pub(super) async fn list_by_name(&self, name: &str) -> Result<Listing, OpenStackError> {
        let pattern = format!("^{}$", regex::escape(name));
        let mut found = self.list_filtered(&[("name", pattern.as_str())]).await?;
        // Nova lets its database compare names, which may ignore case.
        found.servers.retain(|server| &*server.name == name);
        Ok(found)
    }

    async fn list_filtered(&self, query: &[(&str, &str)]) -> Result<Listing, OpenStackError> {
        let request = Request::new(Call::ServerList, &["servers", "detail"]).query(query);
        self.read_rows(self.client.get_rows(self.op, &request).await?)
            .await
    }

    async fn read_rows(&self, list: Rows<Server>) -> Result<Listing, OpenStackError> {
        let mut servers = Vec::with_capacity(list.rows.len());
        let mut unknown_cell_ids = BTreeSet::new();
        for row in list.rows {
            let id = row.id.clone();
            match NovaServer::from_nova(row, self.strings) {
                Some(server) => servers.push(server),
                None => {
                    unknown_cell_ids.insert(id);
                }
            }
        }
        // Any page may have been answered in an older microversion, so it is looked at last.
        let lacks_down_cells = self.client.session().has_lost_down_cells().await?;
        Ok(Listing {
            servers,
            unknown_cell_ids,
            unreadable: list.unreadable,
            lacks_down_cells,
        })
    }

    /// Requests a server by its ID.
    pub(super) async fn get_server(&self, id: &str) -> Result<ServerRow, OpenStackError> {
        let path = ["servers", id];
        let request = Request::new(Call::ServerGet, &path);
        match self.client.get::<Server>(self.op, &request).await {
            Ok(server) => match NovaServer::from_nova(server, self.strings) {
                Some(server) => Ok(ServerRow::Found(server)),
                None => Ok(ServerRow::CellDown),
            },
            Err(error) if error.is_not_found() => Ok(ServerRow::NotFound),
            Err(error) => Err(error),
        }
    }

    /// Lists the ports of servers. Ports of other servers may be among them, and so may be rows that
    /// cannot be read: a server without the addresses of one of them would lose these.
    pub(super) async fn list_ports(
        &self,
        servers: &[Arc<str>],
        strategy: PortStrategy,
    ) -> Result<Rows<Port>, OpenStackError> {
        if strategy == PortStrategy::ListAll {
            let request = Request::new(Call::PortList, &["ports"]).query(&PORT_FIELDS);
            return self.client.get_rows(self.op, &request).await;
        }
        let mut ports = Rows { rows: Vec::new(), unreadable: Vec::new() };
        for chunk in servers.chunks(MAX_DEVICES) {
            let mut query = Vec::from(PORT_FIELDS);
            query.extend(chunk.iter().map(|id| ("device_id", &**id)));
            let request = Request::new(Call::PortList, &["ports"]).query(&query);
            let Rows { rows, unreadable } = self.client.get_rows(self.op, &request).await?;
            ports.rows.extend(rows);
            ports.unreadable.extend(unreadable);
        }
        Ok(ports)
    }

    /// Finds the fixed addresses of trunks' sub-ports.
    pub(super) async fn find_sub_port_addresses(
        &self,
        ids: &BTreeSet<&str>,
    ) -> Result<SubPortAddresses, OpenStackError> {
        if ids.is_empty() {
            return Ok(SubPortAddresses::default());
        }
        let ports: Rows<Port> = self.list_by_id(Call::PortList, "ports", ids).await?;
        let mut addresses = SubPortAddresses::default();
        for id in ids {
            let is_read = ports.rows.iter().any(|port| port.id == **id);
            if !is_read && ports.unreadable.iter().any(|row| row.may_have("id", id)) {
                addresses.unreadable.insert((*id).to_owned());
            }
        }
        let network_ids = ports
            .rows
            .iter()
            .map(|port| port.network_id.as_str())
            .collect();
        let networks: Rows<Network> = self
            .list_by_id(Call::NetworkList, "networks", &network_ids)
            .await?;
        let network_names: BTreeMap<_, _> = networks
            .rows
            .into_iter()
            .map(|network| (network.id, self.strings.intern(&network.name)))
            .collect();
        for port in ports.rows {
            let Some(network) = network_names.get(&port.network_id) else {
                // Addresses on a network that the project cannot see are left out, as in upstream.
                if networks
                    .unreadable
                    .iter()
                    .any(|row| row.may_have("id", &port.network_id))
                {
                    addresses.unreadable.insert(port.id);
                }
                continue;
            };
            let on_port = port.fixed_ips.iter().map(|ip| NetworkAddress {
                network: network.clone(),
                address: ip.ip_address.to_string().into(),
                floating: false,
            });
            addresses.by_port.insert(port.id, on_port.collect());
        }
        Ok(addresses)
    }

    /// Lists objects with these IDs, some at a time.
    async fn list_by_id<T: DeserializeOwned>(
        &self,
        call: Call,
        collection: &'static str,
        ids: &BTreeSet<&str>,
    ) -> Result<Rows<T>, OpenStackError> {
        let ids: Vec<_> = ids.iter().map(|id| ("id", *id)).collect();
        let mut found = Rows { rows: Vec::new(), unreadable: Vec::new() };
        let path = [collection];
        for chunk in ids.chunks(MAX_DEVICES) {
            let request = Request::new(call, &path).query(chunk);
            let Rows { rows, unreadable } = self.client.get_rows(self.op, &request).await?;
            found.rows.extend(rows);
            found.unreadable.extend(unreadable);
        }
        Ok(found)
    }

    /// Requests the name of a flavor. Returns `None` if it does not exist or is hidden.
    pub(super) async fn get_flavor_name(
        &self,
        id: &str,
    ) -> Result<Option<Arc<str>>, OpenStackError> {
        match self
            .client
            .get::<Flavor>(self.op, &Request::new(Call::FlavorGet, &["flavors", id]))
            .await
        {
            Ok(flavor) => Ok(Some(self.strings.intern(&flavor.name))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
