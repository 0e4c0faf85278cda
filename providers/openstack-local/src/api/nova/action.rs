use serde::{Deserialize, Serialize};

/// An action on a server, such as `{"os-start": null}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerAction {
    /// Starts one that is `SHUTOFF`.
    #[serde(rename = "os-start")]
    Start(()),
    /// Stops one that runs.
    #[serde(rename = "os-stop")]
    Stop(()),
    /// Restarts it.
    #[serde(rename = "reboot")]
    Reboot(Reboot),
    /// Freezes it in memory.
    #[serde(rename = "pause")]
    Pause(()),
    /// Thaws it.
    #[serde(rename = "unpause")]
    Unpause(()),
    /// Writes it to disk.
    #[serde(rename = "suspend")]
    Suspend(()),
    /// Reads it from disk.
    #[serde(rename = "resume")]
    Resume(()),
    /// Puts it away.
    #[serde(rename = "shelve")]
    Shelve(()),
    /// Takes it out again.
    #[serde(rename = "unshelve")]
    Unshelve(Option<serde_json::Value>),
    /// Deletes one at once, even if soft-deleted.
    #[serde(rename = "forceDelete")]
    ForceDelete(()),
    /// Brings a soft-deleted one back.
    #[serde(rename = "restore")]
    Restore(()),
    /// Guards it against changes.
    #[serde(rename = "lock")]
    Lock(Option<serde_json::Value>),
    /// Undoes that.
    #[serde(rename = "unlock")]
    Unlock(()),
    /// Adds a security group to its ports.
    #[serde(rename = "addSecurityGroup")]
    AddSecurityGroup(GroupByName),
    /// Takes one off its ports.
    #[serde(rename = "removeSecurityGroup")]
    RemoveSecurityGroup(GroupByName),
    /// For administrators: sets the state.
    #[serde(rename = "os-resetState")]
    ResetState(ResetState),
}

/// A reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reboot {
    /// Type of the reboot.
    #[serde(rename = "type")]
    pub kind: RebootType,
}

/// Type of a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RebootType {
    /// By the operating system.
    Soft,
    /// By the hypervisor, like a power button.
    Hard,
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupByName {
    /// Name or identifier.
    pub name: String,
}

/// A state to set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetState {
    /// `active` or `error`.
    pub state: String,
}
