//! The initial state of a new cloud.

use crate::api::Secret;

use super::{
    Assignment, Domain, Endpoint, Project, Region, Role, Service, Target, User, secret::Hashed,
};
use crate::state::CloudState;

/// ID of the domain that a new cloud has.
pub(crate) const DOMAIN: &str = "default";
/// The administrator, and their project.
pub(crate) const ADMIN: &str = "admin";
/// A user with no special permissions, and their project.
pub(crate) const MEMBER: &str = "demo";

/// Services: kind, name, path.
const SERVICES: [(&str, &str, &str); 6] = [
    ("identity", "keystone", "/identity"),
    ("compute", "nova", "/compute"),
    ("network", "neutron", "/network"),
    ("image", "glance", "/image"),
    ("load-balancer", "octavia", "/load-balancer"),
    ("key-manager", "barbican", "/key-manager"),
];

/// Passwords of the users of a new cloud.
#[derive(Clone, Debug)]
pub(crate) struct Passwords {
    pub(crate) admin: Secret,
    pub(crate) member: Secret,
    /// True when they were generated at random.
    pub(crate) random: bool,
}

impl Passwords {
    fn hash(&self, password: &Secret) -> Hashed {
        if self.random {
            Hashed::of_random(password)
        } else {
            Hashed::new(password)
        }
    }
}

/// Returns a new ID like Keystone's.
pub(super) fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Returns whether the cloud is new.
pub(crate) fn is_new(state: &CloudState) -> bool {
    state.keystone.domains.get(DOMAIN).is_none()
}

/// Sets the passwords of the users that a new cloud has.
pub(crate) fn set_passwords(state: &mut CloudState, passwords: &Passwords) {
    for (name, password) in [(ADMIN, &passwords.admin), (MEMBER, &passwords.member)] {
        let users = state.keystone.users.iter();
        let user = users
            .filter(|user| user.domain_id == DOMAIN && user.name == name)
            .map(|user| user.id.clone())
            .next();
        if let Some(id) = user {
            state
                .keystone
                .users
                .update(&id, |user| user.password = Some(passwords.hash(password)));
        }
    }
}

// length: the content of a new cloud, row by row
/// Fills a new cloud: a domain, two projects with a user each, and the catalog.
pub(crate) fn seed(state: &mut CloudState, region: &str, passwords: &Passwords) {
    crate::nova::flavors::seed(state);
    // First, the domain, and the projects with their users and roles.
    let tables = &mut state.keystone;
    let description = String::new;
    tables.domains.put(Domain {
        id: DOMAIN.to_owned(),
        name: "Default".to_owned(),
        description: "The default domain".to_owned(),
        enabled: true,
    });
    let role = |name: &str| Role { id: new_id(), name: name.to_owned() };
    let roles = [role("admin"), role("member"), role("reader")];
    for (name, password) in [(ADMIN, &passwords.admin), (MEMBER, &passwords.member)] {
        let project_id = new_id();
        let user_id = new_id();
        tables.projects.put(Project {
            id: project_id.clone(),
            name: name.to_owned(),
            domain_id: DOMAIN.to_owned(),
            description: description(),
            enabled: true,
            tags: Vec::new(),
        });
        tables.users.put(User {
            id: user_id.clone(),
            name: name.to_owned(),
            domain_id: DOMAIN.to_owned(),
            description: description(),
            enabled: true,
            default_project_id: None,
            password: Some(passwords.hash(password)),
        });
        // The administrator has the lesser roles, too, as after Keystone's own bootstrap.
        let given = if name == ADMIN {
            &roles[..]
        } else {
            &roles[1..]
        };
        for role in given {
            tables.assignments.put(Assignment::new(
                &user_id,
                &role.id,
                Target::Project(project_id.clone()),
            ));
        }
        if name == ADMIN {
            tables
                .assignments
                .put(Assignment::new(&user_id, &roles[0].id, Target::System));
            tables.assignments.put(Assignment::new(
                &user_id,
                &roles[0].id,
                Target::Domain(DOMAIN.to_owned()),
            ));
        }
    }
    for role in roles {
        tables.roles.put(role);
    }
    // Then the catalog.
    tables
        .regions
        .put(Region { id: region.to_owned(), description: description() });
    for (kind, name, path) in SERVICES {
        let service_id = new_id();
        for interface in ["public", "internal", "admin"] {
            tables.endpoints.put(Endpoint {
                id: new_id(),
                service_id: service_id.clone(),
                interface: interface.to_owned(),
                region_id: region.to_owned(),
                path: path.to_owned(),
            });
        }
        let kind = kind.to_owned();
        let name = name.to_owned();
        tables.services.put(Service {
            id: service_id,
            kind,
            name,
            description: description(),
            enabled: true,
        });
    }
}
