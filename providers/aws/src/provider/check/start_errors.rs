//! Findings about errors for which the provider cannot be created.

use ccm_core::{
    error::{BoxError, chain},
    provider::NotBuilt,
};

use super::{AwsFinding, are_credentials_invalid};
use crate::environment::EnvironmentError;

/// Adds the finding to an error of the cloud config or of flags.
pub(crate) fn config_invalid(file: &str, error: BoxError) -> NotBuilt {
    NotBuilt::new(AwsFinding::ConfigInvalid.about(file, chain(&*error)), error)
}

/// Adds the finding to an error of the connection to AWS.
pub(crate) fn connection_failed(error: BoxError) -> NotBuilt {
    let object = "region and endpoints of the cloud config";
    NotBuilt::new(AwsFinding::ConnectionFailed.about(object, chain(&*error)), error)
}

/// Adds the finding to an error of discovering the environment.
pub(crate) fn not_built(error: EnvironmentError) -> NotBuilt {
    let (kind, object) = match &error {
        EnvironmentError::NoMetadata { key, .. } | EnvironmentError::NotInMetadata { key, .. } => {
            (AwsFinding::MetadataMissing, (*key).to_owned())
        }
        EnvironmentError::Zone(_) => (AwsFinding::MetadataMissing, "Region".to_owned()),
        EnvironmentError::Describe { source, .. } if are_credentials_invalid(source) => {
            let object = "instance profile, IRSA or environment";
            (AwsFinding::CredentialsInvalid, object.to_owned())
        }
        EnvironmentError::Describe { id, .. } | EnvironmentError::NoInstance(id) => {
            (AwsFinding::OwnInstanceUnknown, format!("instance {id}"))
        }
        EnvironmentError::Tags { id, .. } => {
            (AwsFinding::ClusterTagsContradict, format!("instance {id}"))
        }
    };
    NotBuilt::new(kind.about(object, chain(&error)), error)
}
