//! What a process begins with: what the service manager passed, and what the process has that it
//! succeeds.

use millrace_config::Config;

use crate::inherited_sockets::{InheritedSockets, ListeningSocket, SocketPurpose};
use crate::program_error::ProgramError;
use crate::systemd::{NotifyConfig, Systemd};
use crate::takeover::Takeover;

/// Takes what the service manager passed and, for an upgrade, what the running process has. Returns
/// the sockets, the takeover that some of them came from, and the notifier of the service manager.
///
/// # Errors
/// When that cannot be had or used.
pub(crate) fn collect_inherited(
    config: &Config,
    upgrade: bool,
) -> Result<(InheritedSockets, Option<Takeover>, Systemd), ProgramError> {
    let mut inherited = InheritedSockets::new(config);
    let passed = millrace_sys::take_passed_descriptors();
    let passed =
        passed.map_err(|error| ProgramError::system("LISTEN_FDS", std::io::Error::from(error)))?;
    for (fd, name) in passed {
        let from = format!("a socket of the service manager, {name:?}");
        inherited.add(SocketPurpose::Any, ListeningSocket { fd, borrowed: true }, &from)?;
    }
    let takeover = upgrade.then(|| Takeover::begin(config, &mut inherited)).transpose()?;
    let mut given = NotifyConfig::from_environment();
    if let (true, Some(takeover)) = (given.notify.is_empty(), &takeover) {
        given = takeover.manager.clone();
    }
    Ok((inherited, takeover, Systemd::new(given)))
}
