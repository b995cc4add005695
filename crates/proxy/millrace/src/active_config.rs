//! What is in force, and how it changes while the process runs.
//!
//! ```text
//! file read ─ checked ─ may this process have it? ─ log and listeners opened ─ workers told
//!     └─────────┴──────────────┴──────────────────────────┴── refused: nothing has changed
//! ```
//!
//! Everything that can fail comes before the first worker hears of it, so a reload is done as a
//! whole or not at all.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use millrace_config::{self as config, Config};
use millrace_engine::{LogFile, LogSink};
use millrace_proxy::{SharedState, WorkerMessage};
use millrace_sys::Errno;

use crate::config_source::ConfigSource;
use crate::engines::Engine;
use crate::inherited_sockets::{InheritedSockets, ListeningSocket};
use crate::listeners::{ListenerChange, Listeners, Sockets};
use crate::privileges::{self, Confinement};
use crate::reload_counters::ReloadCounters;
use crate::systemd::Systemd;
use crate::threads::lock;
use crate::worker_mailboxes::{Post, WorkerMailboxes};
use crate::{console, program_error::ProgramError};

/// How long it is waited for the workers to take a configuration up. They do between two turns, so
/// that only one that hangs is waited for.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether they have.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Letters that a worker's mailbox must have room for beside a configuration: to drain, to stop.
const RESERVED_MESSAGES: usize = 2;

/// What is in force, for the supervisor, for whoever reloads, and for a worker that takes another's
/// place.
pub(crate) struct ActiveConfig {
    state: Mutex<ActiveState>,
    /// `None`: a command line, which cannot be read again.
    source: Option<ConfigSource>,
    shared: Arc<SharedState>,
    log: LogSink,
    counts: Arc<ReloadCounters>,
    /// Told of each configuration that comes into force.
    observers: Mutex<Vec<Observer>>,
    /// What the process has left itself.
    locked: OnceLock<Confinement>,
}

type Observer = Box<dyn Fn(&Arc<Config>) + Send>;

struct ActiveState {
    /// As it was read, with port 0 where the kernel picks: what a new one is compared with.
    requested: Config,
    config: Arc<Config>,
    listeners: Listeners,
    mailboxes: WorkerMailboxes,
    is_draining: bool,
}

impl ActiveConfig {
    /// Opens the listeners of the first configuration, which was read from `source`, but for those
    /// that are `inherited`: their files are not ours before [`Force::own_files`]. Gives each
    /// worker's sockets.
    ///
    /// # Errors
    /// The first address that cannot be listened on, and why.
    pub(crate) fn open(
        asked_for: Config,
        mut config: Config,
        source: Option<ConfigSource>,
        inherited: InheritedSockets,
        shared: Arc<SharedState>,
        log: LogSink,
    ) -> Result<(Self, Vec<Sockets>), ProgramError> {
        let mut listeners = Listeners::new(config.workers, inherited);
        let change = listeners.prepare(&mut config.listeners)?;
        let (sockets, _) = listeners.commit(change);
        listeners.close_unused_inherited().inspect_err(|_| listeners.close_all())?;
        let mailboxes = WorkerMailboxes::default();
        let config = Arc::new(config);
        let state = ActiveState {
            requested: asked_for,
            config,
            listeners,
            mailboxes: mailboxes,
            is_draining: false,
        };
        let active_config = Self {
            state: Mutex::new(state),
            source,
            shared,
            log,
            counts: Arc::default(),
            observers: Mutex::default(),
            locked: OnceLock::new(),
        };
        Ok((active_config, sockets))
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.lock().config.clone()
    }

    /// How reloads went, and go on to go.
    pub(crate) fn reload_counters(&self) -> Arc<ReloadCounters> {
        self.counts.clone()
    }

    /// Gives up what the first configuration does not need, now that its listeners are open; to be
    /// called once, before any thread is started.
    ///
    /// # Errors
    /// As [`privileges::lock_in`].
    pub(crate) fn drop_privileges(
        &self,
        engine: Engine,
        systemd: &Systemd,
    ) -> Result<(), ProgramError> {
        let file = self.source.as_ref().map(|source| source.file.as_path());
        let abstract_sockets = systemd.uses_abstract_socket();
        let locked = privileges::drop_privileges(&self.config(), file, engine, abstract_sockets)?;
        self.locked.set(locked).expect("privileges are given up once");
        Ok(())
    }

    /// What the process has left itself; `None` before [`Force::lock_in`].
    pub(crate) fn confinement(&self) -> Option<&Confinement> {
        self.locked.get()
    }

    /// The way to the workers, which have started.
    pub(crate) fn set_mailboxes(&self, mailboxes: WorkerMailboxes) {
        self.lock().mailboxes = mailboxes;
    }

    /// `follower` is told of each configuration that comes into force from now on, by whoever
    /// reloads: it must not take long.
    pub(crate) fn on_change(&self, follower: impl Fn(&Arc<Config>) + Send + 'static) {
        lock(&self.observers).push(Box::new(follower));
    }

    /// Reads the file again and has the workers go on under what it says, unless there is an
    /// `obstacle`, in words. It is said on standard error what came of it. Gives the number of the
    /// new snapshot, once every worker has taken it up.
    ///
    /// # Errors
    /// Why it was refused, on one line: nothing has changed then.
    pub(crate) fn reload(&self, obstacle: Option<&str>) -> Result<u64, String> {
        match obstacle.map_or_else(|| self.apply_file(), |obstacle| Err(obstacle.to_owned())) {
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

    fn apply_file(&self) -> Result<u64, String> {
        let Some(source) = &self.source else {
            return Err("no file to reload: the configuration is a command line".to_owned());
        };
        let asked_for = source.read_again().map_err(|error| error.to_string())?;
        let mut state = self.lock();
        config::check_reload(&source.name(), &state.requested, &asked_for)
            .map_err(|error| error.to_string())?;
        if let Some(locked) = self.confinement() {
            locked.check(&asked_for, Some(&source.file))?;
        }
        if !state.mailboxes.has_room(1 + RESERVED_MESSAGES) {
            return Err("a worker does not read its letters".to_owned());
        }
        let mut config = Config {
            number: state.config.number + 1,
            admin: state.config.admin.clone(),
            ..asked_for.clone()
        };
        let log = open_log(&config).map_err(|error| error.to_string())?;
        let change = state.listeners.prepare(&mut config.listeners);
        let change = change.map_err(|error| error.to_string())?;
        if let Err(error) = self.log.set_file(log) {
            change.undo();
            return Err(format!("no thread for the access log: {error}"));
        }
        Ok(state.activate(config, asked_for, change, &lock(&self.observers)))
    }

    /// A worker that hangs takes it up when it goes on; the others are not kept waiting.
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
                return console::log(&format!("not taken up yet by workers {late:?}"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// What a worker needs to take a broken one's place; `None` when nobody is to.
    ///
    /// # Errors
    /// When the process is out of descriptors.
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

    /// Tells every worker to take no more. No reload is done any more.
    pub(crate) fn drain(&self) {
        self.lock().end(|| WorkerMessage::Drain);
    }

    /// Nobody else goes on with what was inherited: its files are removed at the end.
    pub(crate) fn take_file_ownership(&self) {
        self.lock().listeners.set_file_ownership(true);
    }

    /// Each listening socket once more, for a successor.
    ///
    /// # Errors
    /// When a descriptor cannot be had.
    pub(crate) fn duplicate_sockets(&self) -> std::io::Result<Vec<ListeningSocket>> {
        self.lock().listeners.duplicate_sockets()
    }

    /// Tells every worker to leave its listeners, with their files, to a successor. No reload is
    /// done any more.
    pub(crate) fn hand_off(&self) {
        let mut state = self.lock();
        state.listeners.set_file_ownership(false);
        state.end(|| WorkerMessage::HandOff);
    }

    /// As [`Force::cede`], for a process that has not succeeded the one whose listeners it has:
    /// files of those that it opened itself are removed.
    pub(crate) fn abort_takeover(&self) {
        self.lock().end(|| WorkerMessage::HandOff);
    }

    /// Sends every worker a letter that does without an answer, unless one does not read its mail.
    pub(crate) fn try_send_all(&self, message: impl FnMut() -> WorkerMessage<OwnedFd>) {
        let mut state = self.lock();
        if !state.is_draining && state.mailboxes.has_room(1 + RESERVED_MESSAGES) {
            state.mailboxes.send_all(message);
        }
    }

    /// Tells every worker to break off. Nothing can be said to them after it.
    pub(crate) fn abort_workers(&self) {
        self.lock().mailboxes.stop();
    }

    /// Whether the workers were told to break off.
    pub(crate) fn has_aborted_workers(&self) -> bool {
        self.lock().mailboxes.is_stopped()
    }

    /// Closes the listeners of a start that failed.
    pub(crate) fn close_listeners(&self) {
        self.lock().listeners.close_all();
    }

    fn lock(&self) -> MutexGuard<'_, ActiveState> {
        lock(&self.state)
    }
}

impl ActiveState {
    /// Closes the listeners here and has the workers close theirs, by a letter. No reload is done
    /// any more.
    fn end(&mut self, message: fn() -> Post) {
        self.is_draining = true;
        self.listeners.close_all();
        self.mailboxes.send_all(message);
    }

    /// Nothing here fails.
    fn activate(
        &mut self,
        config: Config,
        asked_for: Config,
        change: ListenerChange,
        followers: &[Observer],
    ) -> u64 {
        let opened: Vec<String> = change.opened().map(ToString::to_string).collect();
        let (mut sockets, removed) = self.listeners.commit(change);
        for name in config::lost_names(&self.config, &config) {
            console::log(&format!(
                "no service finds any more what \"{name}\" stored in the cache: its name or its \
                 target rules have changed"
            ));
        }
        let (number, config) = (config.number, Arc::new(config));
        (self.config, self.requested) = (config.clone(), asked_for);
        sockets.reverse();
        self.mailboxes.send_all(|| {
            let sockets = sockets.pop().expect("there are sockets for each worker");
            WorkerMessage::Configure { config: config.clone(), sockets }
        });
        for follower in followers {
            follower(&config);
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

/// Opens the access log that a configuration names.
///
/// # Errors
/// When the machine refuses the file.
pub(crate) fn open_log(config: &Config) -> Result<Option<LogFile>, ProgramError> {
    let Some(log) = &config.access_log else { return Ok(None) };
    let what = format!("cannot open the access log {}", log.path.display());
    LogFile::open(&log.path).map(Some).map_err(|error| ProgramError::system(what, error))
}
