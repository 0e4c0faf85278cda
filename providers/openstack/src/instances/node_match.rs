//! Finds the server of a Node without provider ID in a complete listing. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use ccm_core::provider::{CloudError, ErrorKind};

use super::{
    fetch::Listing,
    server::{NovaServer, ServerLookup},
};
use crate::client::UnreadableRow;

/// Field of a server with its host name.
const HOST_NAME: &str = "OS-EXT-SRV-ATTR:hostname";

type Servers<'a> = HashMap<&'a str, Vec<&'a Arc<NovaServer>>>;

/// The servers of a complete listing, by what Nodes may be called.
pub(super) struct NodeMatcher<'a> {
    by_name: Servers<'a>,
    by_host_name: Servers<'a>,
    by_id: &'a HashMap<Arc<str>, Arc<NovaServer>>,
    /// Servers of which only the ID is known, because their cell does not answer.
    unknown: &'a BTreeSet<String>,
    /// Servers whose rows cannot be read.
    unreadable: &'a [UnreadableRow],
    /// True if servers of cells that do not answer are missing.
    lacks_down_cells: bool,
}

impl<'a> NodeMatcher<'a> {
    pub(super) fn new(
        listing: &'a Listing,
        servers: &'a HashMap<Arc<str>, Arc<NovaServer>>,
    ) -> Self {
        let mut by_name = Servers::new();
        let mut by_host_name = Servers::new();
        for server in servers.values() {
            by_name.entry(&server.name).or_default().push(server);
            if let Some(host_name) = &server.host_name {
                by_host_name.entry(host_name).or_default().push(server);
            }
        }
        Self {
            by_name,
            by_host_name,
            by_id: servers,
            unknown: &listing.unknown_cell_ids,
            unreadable: &listing.unreadable,
            lacks_down_cells: listing.lacks_down_cells,
        }
    }

    /// Finds the server of a Node: by the server's name, or else by its ID, or else by its host name.
    ///
    /// # Errors
    /// Returns an error if several servers match, if a row that cannot be read may be the server, or if
    /// none matches while a cell does not answer and may hold one, or while Nova no longer shows
    /// whether there is such a cell.
    pub(super) fn find(&self, name: &str, system_uuid: Option<&str>) -> ServerLookup {
        let mut unreadable = self.unreadable.iter();
        if unreadable.clone().any(|row| row.may_have("name", name)) {
            return Err(unreadable_error(name));
        }
        if let Some(found) = self.by_name.get(name) {
            return single_match("called", name, found);
        }
        if let Some(id) = system_uuid {
            if self.unknown.contains(id) {
                return Err(cell_down_error(id));
            }
            if let Some(server) = self.by_id.get(id) {
                return Ok(Some(server.clone()));
            }
            if unreadable.clone().any(|row| row.may_have("id", id)) {
                return Err(unreadable_error(name));
            }
        }
        if unreadable.any(|row| row.shows(HOST_NAME) && row.may_have(HOST_NAME, name)) {
            return Err(unreadable_error(name));
        }
        if let Some(found) = self.by_host_name.get(name) {
            return single_match("with the host name", name, found);
        }
        if !self.unknown.is_empty() {
            return Err(CloudError::transient(format!(
                "no server is called {name:?}, but a cell of Nova does not answer and may hold one"
            )));
        }
        if self.lacks_down_cells {
            return Err(CloudError::transient(format!(
                "no server is called {name:?}, but Nova has returned to a release before microversion 2.69, whose \
                 lists lack the servers of cells that do not answer; restart this process if it stays there"
            )));
        }
        Ok(None)
    }
}

/// Returns the only server of a list, or an error if there are several. `relation` says how they are
/// related to the name.
pub(super) fn single_match(relation: &str, name: &str, found: &[&Arc<NovaServer>]) -> ServerLookup {
    match found {
        [server] => Ok(Some((*server).clone())),
        [] => Ok(None),
        many => {
            let ids: Vec<&str> = many.iter().map(|server| &*server.id).collect();
            let message =
                format!("{} servers are {relation} {name:?}: {}", many.len(), ids.join(", "));
            Err(CloudError::new(ErrorKind::Conflict, message))
        }
    }
}

pub(super) fn cell_down_error(id: &str) -> CloudError {
    CloudError::transient(format!("server {id} is in a cell of Nova that does not answer"))
}

pub(super) fn unreadable_error(name: &str) -> CloudError {
    CloudError::transient(format!(
        "Nova lists a server that cannot be read, and it may be the one of {name:?}"
    ))
}
