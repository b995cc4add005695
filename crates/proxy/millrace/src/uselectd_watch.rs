//! Logs the end of uselectd. The workers notice it themselves and continue with epoll.

use crate::console;
use crate::engines::Engine;
use crate::program_error::ProgramError;
use crate::threads::spawn;

/// Starts the thread if the engine uses uselectd. Call this after the process has registered with
/// it. The thread runs until the process ends.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start_for(engine: Engine) -> Result<(), ProgramError> {
    if engine != Engine::Uselect {
        return Ok(());
    }
    let started = spawn("uselectd", || {
        millrace_engine::wait_for_daemon_end();
        console::log(
            "uselectd has ended: engine uselect continues with epoll and keeps all connections; to use \
             uselectd again, start it and restart or upgrade millrace",
        );
    });
    started.map(drop)
}
