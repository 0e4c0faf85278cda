//! Captures log output, for tests.

use std::{io, sync::Arc};

use parking_lot::Mutex;

/// Writer that keeps what is written. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    /// Returns everything written so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// Drops everything written so far.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl io::Write for LogCapture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
