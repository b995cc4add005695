//! The configuration in force, and its replacement by a reload.
//!
//! ```text
//! source read ─ checked ─ allowed by the sandbox? ─ log and listeners opened ─ workers notified
//!      └──────────┴──────────────┴──────────────────────────┴── refused: nothing has changed
//! ```
//!
//! Everything that can fail happens before the first worker is notified, so a reload takes effect
//! as a whole or not at all.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use millrace_config::{self as config, Config};
use millrace_engine::{LogFile, LogSink};
use millrace_proxy::{SharedState, WorkerMessage};
use millrace_sys::Errno;

use crate::cgi::{CgiPrograms, Launcher};
use crate::config_source::ConfigSource;
use crate::engines::Engine;
use crate::inherited_sockets::{InheritedSockets, ListeningSocket};
use crate::listeners::{ListenerChange, Listeners, Sockets};
use crate::privileges::{self, Confinement};
use crate::reload_counters::ReloadCounters;
use crate::systemd::Systemd;
use crate::threads::lock;
use crate::worker_mailboxes::{SocketMessage, WorkerMailboxes};
use crate::{certificates, console, program_error::ProgramError};

/// Time to wait until the workers have applied a configuration. A worker applies it between two
/// turns, so only a worker that hangs takes this long.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the workers are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Messages that must fit into each mailbox besides a configuration: drain and abort.
const RESERVED_MESSAGES: usize = 2;

/// The configuration in force. It is shared by the supervisor, reloads and restarts of workers.
pub(crate) struct ActiveConfig {
    state: Mutex<ActiveState>,
    source: ConfigSource,
    shared: Arc<SharedState>,
    log: LogSink,
    counts: Arc<ReloadCounters>,
    /// Called with each new configuration.
    observers: Mutex<Vec<Observer>>,
    /// The remaining rights of the process.
    confinement: OnceLock<Confinement>,
}

type Observer = Box<dyn Fn(&Arc<Config>) + Send>;

struct ActiveState {
    /// The configuration as read, with port 0 where the kernel chooses. A reload is compared with
    /// it.
    requested: Config,
    config: Arc<Config>,
    listeners: Listeners,
    mailboxes: WorkerMailboxes,
    /// The guard of CGI programs, and their launcher.
    programs: CgiPrograms,
    is_draining: bool,
}

impl ActiveConfig {
    /// Starts the launcher of CGI programs if the first configuration needs it, and opens the
    /// listeners. `inherited` sockets are used first; their
    /// files belong to the predecessor until [`ActiveConfig::take_file_ownership`] is called.
    /// Returns the sockets of each worker.
    ///
    /// # Errors
    /// The first address that cannot be opened, and why.
    pub(crate) fn open(
        mut requested: Config,
        mut config: Config,
        source: ConfigSource,
        inherited: InheritedSockets,
        shared: Arc<SharedState>,
        log: LogSink,
    ) -> Result<(Self, Vec<Sockets>), ProgramError> {
        let mut programs = CgiPrograms::start(&config)?;
        for config in [&mut requested, &mut config] {
            let launcher = programs.connect(config).map_err(ProgramError::System)?;
            programs.set(launcher);
        }
        let mut listeners = Listeners::new(config.workers, inherited);
        let change = listeners.prepare(&mut config.listeners)?;
        let (sockets, _) = listeners.commit(change);
        listeners.set_acme_http(&config);
        listeners.close_unused_inherited().inspect_err(|_| listeners.close_all())?;
        let mailboxes = WorkerMailboxes::default();
        let config = Arc::new(config);
        let is_draining = false;
        let state = ActiveState { requested, config, listeners, mailboxes, programs, is_draining };
        let active_config = Self {
            state: Mutex::new(state),
            source,
            shared,
            log,
            counts: Arc::default(),
            observers: Mutex::default(),
            confinement: OnceLock::new(),
        };
        Ok((active_config, sockets))
    }

    /// Returns the configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.lock().config.clone()
    }

    /// Returns whether a certificate has changed: see [`ConfigSource::files`].
    pub(crate) fn have_files_changed(&self) -> bool {
        self.source.files().have_changed()
    }

    /// Returns the counters of reloads.
    pub(crate) fn reload_counters(&self) -> Arc<ReloadCounters> {
        self.counts.clone()
    }

    /// Drops the rights that the first configuration does not need. Call this once, after its
    /// listeners are open and before any thread is started.
    ///
    /// # Errors
    /// Those of [`privileges::drop_privileges`].
    pub(crate) fn drop_privileges(
        &self,
        engine: Engine,
        systemd: &Systemd,
    ) -> Result<(), ProgramError> {
        let file = self.source.file();
        let abstract_sockets = systemd.uses_abstract_socket();
        let confinement =
            privileges::drop_privileges(&self.config(), file, engine, abstract_sockets)?;
        self.source.files().forget_unreachable();
        self.confinement.set(confinement).expect("privileges are given up once");
        Ok(())
    }

    /// Returns the launcher of CGI programs, if there is one.
    pub(crate) fn launcher(&self) -> Option<Arc<Launcher>> {
        self.lock().programs.launcher().cloned()
    }

    /// Returns the remaining rights; `None` before [`ActiveConfig::drop_privileges`].
    pub(crate) fn confinement(&self) -> Option<&Confinement> {
        self.confinement.get()
    }

    /// Sets the mailboxes of the started workers.
    pub(crate) fn set_mailboxes(&self, mailboxes: WorkerMailboxes) {
        self.lock().mailboxes = mailboxes;
    }

    /// Registers a function that is called with each new configuration, on the reloading thread. It
    /// must not block.
    pub(crate) fn on_change(&self, observer: impl Fn(&Arc<Config>) + Send + 'static) {
        lock(&self.observers).push(Box::new(observer));
    }

    /// Reads the source again, unless there is an `obstacle`, which is the reason for a refusal.
    /// Logs the result. Returns the number of the new configuration when every worker has applied
    /// it.
    ///
    /// # Errors
    /// The reason for a refusal on one line. Nothing has changed then.
    pub(crate) fn reload(&self, obstacle: Option<&str>) -> Result<u64, String> {
        match obstacle.map_or_else(|| self.apply_source(), |obstacle| Err(obstacle.to_owned())) {
            Ok(number) => {
                self.counts.done.fetch_add(1, Ordering::Relaxed);
                self.wait_until_applied(number);
                console::log(&format!("configuration {number} is in force"));
                Ok(number)
            }
            Err(why) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                console::log(&format!("reload refused: {why}"));
                Err(why)
            }
        }
    }

    fn apply_source(&self) -> Result<u64, String> {
        let (mut requested, files) = self.source.read_again().map_err(|error| error.to_string())?;
        let mut state = self.lock();
        certificates::keep_ordered(&mut requested, &state.config);
        config::check_reload(&self.source.name(), &state.requested, &requested)
            .map_err(|error| error.to_string())?;
        let launcher = state.programs.connect(&mut requested)?;
        let is_new = launcher.as_ref().map_or(Ok(false), |launcher| launcher.watch());
        let is_new = is_new.map_err(|error| error.to_string())?;
        if let Some(confinement) = self.confinement() {
            confinement.check(&requested, self.source.file())?;
        }
        if !state.mailboxes.has_room(1 + RESERVED_MESSAGES) {
            return Err("a worker does not read its messages".to_owned());
        }
        let mut config = Config {
            number: state.config.number + 1,
            admin: state.config.admin.clone(),
            ..requested.clone()
        };
        let log = open_log(&config).map_err(|error| error.to_string())?;
        let change = state.listeners.prepare(&mut config.listeners);
        let change = change.map_err(|error| error.to_string())?;
        // This comes last: if the log fails, only empty folders stay.
        let folders = privileges::make_own_state_folders(&requested);
        let log = folders.map_err(|error| error.to_string()).and_then(|()| {
            let failed = |error| format!("cannot start the thread of the access log: {error}");
            self.log.set_file(log).map_err(failed)
        });
        if let Err(error) = log {
            change.undo();
            return Err(error);
        }
        *self.source.files() = files;
        if let Some(launcher) = launcher.as_ref().filter(|_| is_new) {
            console::log(launcher.line());
        }
        state.programs.set(launcher);
        Ok(state.activate(config, requested, change, &lock(&self.observers)))
    }

    /// Reads the ordered certificates again and puts them in force. The rest of the configuration
    /// stays as it is. Returns the number of the new configuration.
    ///
    /// # Errors
    /// The reason for a refusal on one line. Nothing has changed then.
    pub(crate) fn install_certificates(&self) -> Result<u64, String> {
        let mut state = self.lock();
        if state.is_draining {
            return Err("the process is draining".to_owned());
        }
        if !state.mailboxes.has_room(1 + RESERVED_MESSAGES) {
            return Err("a worker does not read its messages".to_owned());
        }
        let mut requested = state.requested.clone();
        certificates::load_ordered(&mut requested);
        let (number, admin) = (state.config.number + 1, state.config.admin.clone());
        let mut config = Config { number, admin, ..requested.clone() };
        let change = state.listeners.prepare(&mut config.listeners);
        let change = change.map_err(|error| error.to_string())?;
        let number = state.activate(config, requested, change, &lock(&self.observers));
        drop(state);
        self.wait_until_applied(number);
        console::log(&format!("configuration {number} is in force"));
        Ok(number)
    }

    /// Waits until the workers have applied the configuration. A worker that hangs applies it
    /// later.
    fn wait_until_applied(&self, number: u64) {
        let start = Instant::now();
        let is_late = |index: &usize| self.shared.counters[*index].config_generation.get() < number;
        let mut late: Vec<usize> = (0..self.shared.counters.len()).collect();
        loop {
            late.retain(is_late);
            if late.is_empty() {
                return;
            }
            if start.elapsed() > APPLY_TIMEOUT {
                return console::log(&format!(
                    "workers {late:?} have not applied the configuration yet"
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the configuration and the sockets for the replacement of a worker; `None` if the
    /// process drains.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub(crate) fn prepare_replacement(
        &self,
        worker: usize,
    ) -> Result<Option<(Arc<Config>, Sockets)>, Errno> {
        let state = self.lock();
        if state.is_draining {
            return Ok(None);
        }
        Ok(Some((state.config.clone(), state.listeners.duplicate_for_worker(worker)?)))
    }

    /// Makes all workers drain. No reload is possible afterwards.
    pub(crate) fn drain(&self) {
        self.lock().end(|| WorkerMessage::Drain);
    }

    /// Takes ownership of the inherited socket files, so that they are removed at the end.
    pub(crate) fn take_file_ownership(&self) {
        self.lock().listeners.set_file_ownership(true);
    }

    /// Duplicates each listening socket for a successor.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub(crate) fn duplicate_sockets(&self) -> std::io::Result<Vec<ListeningSocket>> {
        self.lock().listeners.duplicate_sockets()
    }

    /// Makes all workers stop listening, and leaves the listening sockets and their files to a
    /// successor. No reload is possible afterwards.
    pub(crate) fn hand_off(&self) {
        let mut state = self.lock();
        state.listeners.set_file_ownership(false);
        state.end(|| WorkerMessage::HandOff);
    }

    /// Like [`ActiveConfig::hand_off`], in a new process whose takeover failed. Removes the files
    /// of the sockets that this process opened itself.
    pub(crate) fn abort_takeover(&self) {
        self.lock().end(|| WorkerMessage::HandOff);
    }

    /// Sends every worker a message, or none if a mailbox is nearly full or the process drains.
    pub(crate) fn try_send_all(&self, message: impl FnMut() -> WorkerMessage<OwnedFd>) {
        let mut state = self.lock();
        if !state.is_draining && state.mailboxes.has_room(1 + RESERVED_MESSAGES) {
            state.mailboxes.send_all(message);
        }
    }

    /// Makes all workers abort. No message can be sent afterwards.
    pub(crate) fn abort_workers(&self) {
        self.lock().mailboxes.abort_workers();
    }

    /// Returns whether [`ActiveConfig::abort_workers`] was called.
    pub(crate) fn has_aborted_workers(&self) -> bool {
        self.lock().mailboxes.has_aborted()
    }

    /// Closes the listeners after a failed start.
    pub(crate) fn close_listeners(&self) {
        self.lock().listeners.close_all();
    }

    fn lock(&self) -> MutexGuard<'_, ActiveState> {
        lock(&self.state)
    }
}

impl ActiveState {
    /// Closes the listeners here and sends the workers the message to close theirs. No reload is
    /// possible afterwards.
    fn end(&mut self, message: fn() -> SocketMessage) {
        self.is_draining = true;
        self.listeners.close_all();
        self.mailboxes.send_all(message);
    }

    /// Puts a checked configuration in force. This cannot fail.
    fn activate(
        &mut self,
        config: Config,
        requested: Config,
        change: ListenerChange,
        observers: &[Observer],
    ) -> u64 {
        let opened: Vec<String> = change.opened().map(ToString::to_string).collect();
        let (mut sockets, removed) = self.listeners.commit(change);
        self.listeners.set_acme_http(&config);
        for name in config::lost_names(&self.config, &config) {
            console::log(&format!(
                "the stored responses of service \"{name}\" can no longer be found: its name or its \
                 target rules have changed"
            ));
        }
        let (number, config) = (config.number, Arc::new(config));
        (self.config, self.requested) = (config.clone(), requested);
        sockets.reverse();
        self.mailboxes.send_all(|| {
            let sockets = sockets.pop().expect("there are sockets for each worker");
            WorkerMessage::Configure { config: config.clone(), sockets }
        });
        for observer in observers {
            observer(&config);
        }
        for address in removed {
            console::log(&format!("no longer listening on {address}"));
        }
        for address in opened {
            console::log(&format!("listening on {address}"));
        }
        number
    }
}

/// Opens the access log of a configuration.
///
/// # Errors
/// If the file cannot be opened.
pub(crate) fn open_log(config: &Config) -> Result<Option<LogFile>, ProgramError> {
    let Some(log) = &config.access_log else { return Ok(None) };
    let what = format!("cannot open the access log {}", log.path.display());
    LogFile::open(&log.path).map(Some).map_err(|error| ProgramError::system(what, error))
}
