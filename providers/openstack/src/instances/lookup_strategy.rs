//! Chooses how to query servers and ports: by lists of the project, or one by one. Pure.
//!
//! The rows that the cloud has to read decide. A list of a project with many other servers takes
//! longer than a few requests for single servers, although it is one request.

/// Maximum number of servers that are requested one by one because a complete listing lacks them.
/// Only the answer to such a request proves that a server is deleted. But if a listing lacks many
/// servers, it is more likely the listing of another project.
pub const MAX_CONFIRMATIONS: usize = 20;
/// Maximum number of servers that are requested one by one in any case, because a response for one
/// is small and complete.
const MAX_SINGLE_REQUESTS: usize = 3;
/// Number of rows of a list that take as long as one request for a single server.
const ROWS_PER_REQUEST: usize = 20;
/// Number of rows up to which a list is always worth its request.
const SHORT_LIST: usize = 500;
/// Maximum number of servers in one query for ports. 50 UUIDs make a URL of 2.5 kB, well below the
/// limits of web servers.
pub const MAX_DEVICES: usize = 50;
/// Number of servers or ports up to which a list of all ports is worth its request: a thousand nodes
/// then take one list and not twenty queries.
const SHORT_PORT_LIST: usize = 1000;
/// Number of ports for each server up to which a list of all ports is worth its request.
const PORTS_PER_SERVER: usize = 4;

/// What earlier lists of a project showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListHistory {
    /// Number of rows in the last list: all of them, or as many as were read. `None` if there was no
    /// list yet.
    pub rows: Option<usize>,
    /// True while lists are avoided, because one was not answered in time.
    pub is_slow: bool,
}

/// Strategy to look up servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupStrategy {
    /// Request each server with a request of its own.
    Each,
    /// List the servers of the project, up to this many rows.
    List(usize),
}

/// Chooses the strategy by which the cloud reads the fewest rows. `queries` is the number of servers
/// to look up.
pub fn choose_strategy(queries: usize, history: ListHistory) -> LookupStrategy {
    let max_rows = (queries * ROWS_PER_REQUEST).max(SHORT_LIST);
    let is_too_long = history.rows.is_some_and(|rows| rows > max_rows);
    if queries <= MAX_SINGLE_REQUESTS || history.is_slow || is_too_long {
        LookupStrategy::Each
    } else {
        LookupStrategy::List(max_rows)
    }
}

/// Strategy to look up the ports of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortStrategy {
    /// Request the ports of [`MAX_DEVICES`] servers at a time.
    ByServers,
    /// List all ports of the project.
    ListAll,
}

/// Chooses the strategy to look up the ports of this many servers. `servers` is what lists of
/// servers showed, and `ports` what lists of ports did. `sees_all_projects` is true for credentials
/// with which a list has the ports of other projects too.
pub fn choose_port_strategy(
    queries: usize,
    servers: ListHistory,
    ports: ListHistory,
    sees_all_projects: bool,
) -> PortStrategy {
    let has_many_others = servers
        .rows
        .is_some_and(|rows| rows > (2 * queries).max(SHORT_PORT_LIST));
    let max_ports = (PORTS_PER_SERVER * queries).max(SHORT_PORT_LIST);
    let has_many_ports = ports.rows.is_some_and(|rows| rows > max_ports);
    if queries <= MAX_DEVICES
        || sees_all_projects
        || ports.is_slow
        || has_many_others
        || has_many_ports
    {
        PortStrategy::ByServers
    } else {
        PortStrategy::ListAll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: usize) -> ListHistory {
        ListHistory { rows: Some(rows), is_slow: false }
    }

    const UNKNOWN: ListHistory = ListHistory { rows: None, is_slow: false };
    const SLOW: ListHistory = ListHistory { rows: Some(10), is_slow: true };

    #[test]
    fn the_strategy_with_the_fewest_rows_is_chosen() {
        let cases = [
            (1, UNKNOWN, LookupStrategy::Each),
            (3, rows(10), LookupStrategy::Each),
            (4, UNKNOWN, LookupStrategy::List(500)),
            (4, rows(500), LookupStrategy::List(500)),
            (4, rows(501), LookupStrategy::Each),
            (100, rows(2_000), LookupStrategy::List(2_000)),
            (100, rows(20_000), LookupStrategy::Each),
            (1_000, rows(20_000), LookupStrategy::List(20_000)),
            (1_000, SLOW, LookupStrategy::Each),
        ];
        for (queries, history, expected) in cases {
            assert_eq!(choose_strategy(queries, history), expected, "{queries} of {history:?}");
        }
    }

    #[test]
    fn ports_are_listed_only_where_most_of_them_are_needed() {
        use PortStrategy::{ByServers, ListAll};
        let cases = [
            (50, UNKNOWN, UNKNOWN, false, ByServers),
            (51, UNKNOWN, UNKNOWN, false, ListAll),
            (600, rows(1_000), UNKNOWN, false, ListAll),
            (600, rows(5_000), UNKNOWN, false, ByServers),
            (600, rows(600), rows(2_400), false, ListAll),
            (600, rows(600), rows(9_000), false, ByServers),
            (600, rows(600), SLOW, false, ByServers),
            (600, rows(600), rows(600), true, ByServers),
        ];
        for (queries, servers, ports, sees_all, expected) in cases {
            assert_eq!(
                choose_port_strategy(queries, servers, ports, sees_all),
                expected,
                "{queries} {servers:?} {ports:?} {sees_all}"
            );
        }
    }
}
