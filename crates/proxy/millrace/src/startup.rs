//! Collects what a process inherits from its service manager and from its predecessor.

use millrace_config::Config;

use crate::inherited_sockets::{InheritedSockets, ListeningSocket, SocketPurpose};
use crate::program_error::ProgramError;
use crate::systemd::{NotifyConfig, Systemd};
use crate::takeover::Takeover;

/// Takes the sockets of the service manager and, for an upgrade, those of the running process.
/// Returns the sockets, the takeover, and the notifier of the service manager.
///
/// # Errors
/// If the descriptors are not usable or the takeover fails.
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
    let mut notify_config = NotifyConfig::from_environment();
    if let (true, Some(takeover)) = (notify_config.notify.is_empty(), &takeover) {
        notify_config = takeover.manager.clone();
    }
    Ok((inherited, takeover, Systemd::new(notify_config)))
}
