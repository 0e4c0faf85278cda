//! A buffer per thread, for bytes that are read and written at once.

use std::cell::Cell;

/// Its size: enough for any datagram, and for few system calls on streams.
const SIZE: usize = 64 * 1024;

thread_local! {
    /// Connections own memory only for what their other side did not accept, so that thousands of
    /// idle ones cost little more than their sockets.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lends the thread's buffer, whose content is undefined.
pub(super) fn with<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    // Taken rather than borrowed: a nested use gets a buffer of its own.
    let mut buffer = SCRATCH.take();
    if buffer.is_empty() {
        buffer = vec![0; SIZE];
    }
    let result = use_it(&mut buffer);
    SCRATCH.set(buffer);
    result
}
