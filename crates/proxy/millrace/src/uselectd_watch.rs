//! What becomes of engine uselect when uselectd ends: the workers find it by themselves and ask the
//! kernel from then on, and here the operator is told.

use crate::console;
use crate::program_error::ProgramError;
use crate::threads::spawn;

/// Starts the thread that says it, which the process ends under. To be called where the process is
/// registered.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start() -> Result<(), ProgramError> {
    let started = spawn("uselectd", || {
        millrace_engine::wait_for_daemon_exit();
        console::log(
            "uselectd has ended: engine uselect goes on by epoll, with every connection; to use \
             uselectd again, start it and restart or upgrade",
        );
    });
    started.map(drop)
}
