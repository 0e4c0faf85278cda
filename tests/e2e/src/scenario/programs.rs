use std::ffi::OsString;
use std::path::Path;

use super::Scenario;
use crate::ccm::Ccm;

impl Scenario {
    /// Address of this scenario's cloud, for a cloud config.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Directory that is removed with this scenario.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The binary under test.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a program that becomes the binary under test, with these arguments and no others. It
    /// is judged like the processes that [`start`](Self::start) starts.
    pub async fn start_program(
        &self,
        process: &str,
        program: &Path,
        args: Vec<OsString>,
    ) -> anyhow::Result<Ccm> {
        let name = format!("{process}{}", self.processes.lock().len());
        self.processes.lock().push(name.clone());
        Ccm::start(program, self.directory.path(), &name, args).await
    }
}
