//! Threads beside the workers, and the locks that they share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::program_error::ProgramError;

/// Starts a thread; without its handle it ends with the process.
///
/// # Errors
/// If the kernel refuses the thread.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ProgramError> {
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    thread.map_err(|error| ProgramError::System(format!("cannot start thread {name}: {error}")))
}

/// Locks a mutex, also one whose last owner panicked: no thread leaves anything half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
