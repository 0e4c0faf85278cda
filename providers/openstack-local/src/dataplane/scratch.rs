//! A buffer per thread, for what is read and written on in one go.

use std::cell::Cell;

/// How much it holds: any datagram, and of a stream enough that system calls are few.
const SIZE: usize = 64 * 1024;

thread_local! {
    /// Connections own memory only for what their other side would not take, so that thousands of idle ones cost little
    /// more than their sockets.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lends the thread's buffer. Its content is whatever the last user left.
pub(super) fn with<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    // Taken rather than borrowed: a use within a use would get a buffer of its own.
    let mut buffer = SCRATCH.take();
    if buffer.is_empty() {
        buffer = vec![0; SIZE];
    }
    let result = use_it(&mut buffer);
    SCRATCH.set(buffer);
    result
}
