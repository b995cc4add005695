//! Threads of the control plane and their locks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::program_error::ProgramError;

/// Starts a thread. If its handle is dropped, the thread runs until the process ends.
///
/// # Errors
/// If the kernel refuses the thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ProgramError> {
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    thread.map_err(|error| ProgramError::System(format!("cannot start thread {name}: {error}")))
}

/// Locks a mutex and ignores poisoning: no thread leaves data inconsistent under a lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
