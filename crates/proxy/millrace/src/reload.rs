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
use millrace_proxy::{Shared, WorkerMessage};
use millrace_sys::Errno;

use crate::config_source::ConfigSource;
use crate::engines::Engine;
use crate::inherited::{Inherited, Socket};
use crate::listeners::{Change, Listeners, Sockets};
use crate::posts::{Post, Posts};
use crate::privileges::{self, Locked};
use crate::reloads::Counts;
use crate::systemd::Systemd;
use crate::threads::lock;
use crate::{failure::Failure, print};

/// How long it is waited for the workers to take a configuration up. They do between two turns, so
/// that only one that hangs is waited for.
const TAKE_UP: Duration = Duration::from_secs(5);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(1);
/// Letters that a worker's mailbox must have room for beside a configuration: to drain, to stop.
const ROOM_LEFT: usize = 2;

/// What is in force, for the supervisor, for whoever reloads, and for a worker that takes another's
/// place.
pub(crate) struct Force {
    state: Mutex<State>,
    /// `None`: a command line, which cannot be read again.
    source: Option<ConfigSource>,
    shared: Arc<Shared>,
    log: LogSink,
    counts: Arc<Counts>,
    /// Told of each configuration that comes into force.
    followers: Mutex<Vec<Follower>>,
    /// What the process has left itself.
    locked: OnceLock<Locked>,
}

type Follower = Box<dyn Fn(&Arc<Config>) + Send>;

struct State {
    /// As it was read, with port 0 where the kernel picks: what a new one is compared with.
    asked_for: Config,
    config: Arc<Config>,
    listeners: Listeners,
    posts: Posts,
    draining: bool,
}

impl Force {
    /// Opens the listeners of the first configuration, which was read from `source`, but for those
    /// that are `inherited`: their files are not ours before [`Force::own_files`]. Gives each
    /// worker's sockets.
    ///
    /// # Errors
    /// The first address that cannot be listened on, and why.
    pub(crate) fn begin(
        asked_for: Config,
        mut config: Config,
        source: Option<ConfigSource>,
        inherited: Inherited,
        shared: Arc<Shared>,
        log: LogSink,
    ) -> Result<(Self, Vec<Sockets>), Failure> {
        let mut listeners = Listeners::new(config.workers, inherited);
        let change = listeners.change(&mut config.listeners)?;
        let (sockets, _) = listeners.commit(change);
        listeners.drop_inherited().inspect_err(|_| listeners.release())?;
        let posts = Posts::default();
        let config = Arc::new(config);
        let state = State { asked_for, config, listeners, posts, draining: false };
        let force = Self {
            state: Mutex::new(state),
            source,
            shared,
            log,
            counts: Arc::default(),
            followers: Mutex::default(),
            locked: OnceLock::new(),
        };
        Ok((force, sockets))
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.lock().config.clone()
    }

    /// How reloads went, and go on to go.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Gives up what the first configuration does not need, now that its listeners are open; to be
    /// called once, before any thread is started.
    ///
    /// # Errors
    /// As [`privileges::lock_in`].
    pub(crate) fn lock_in(&self, engine: Engine, systemd: &Systemd) -> Result<(), Failure> {
        let file = self.source.as_ref().map(|source| source.file.as_path());
        let abstract_sockets = systemd.hears_by_name();
        let locked = privileges::lock_in(&self.config(), file, engine, abstract_sockets)?;
        self.locked.set(locked).expect("privileges are given up once");
        Ok(())
    }

    /// What the process has left itself; `None` before [`Force::lock_in`].
    pub(crate) fn locked(&self) -> Option<&Locked> {
        self.locked.get()
    }

    /// The way to the workers, which have started.
    pub(crate) fn set_posts(&self, posts: Posts) {
        self.lock().posts = posts;
    }

    /// `follower` is told of each configuration that comes into force from now on, by whoever
    /// reloads: it must not take long.
    pub(crate) fn follow(&self, follower: impl Fn(&Arc<Config>) + Send + 'static) {
        lock(&self.followers).push(Box::new(follower));
    }

    /// Reads the file again and has the workers go on under what it says, unless there is an
    /// `obstacle`, in words. It is said on standard error what came of it. Gives the number of the
    /// new snapshot, once every worker has taken it up.
    ///
    /// # Errors
    /// Why it was refused, on one line: nothing has changed then.
    pub(crate) fn reload(&self, obstacle: Option<&str>) -> Result<u64, String> {
        match obstacle.map_or_else(|| self.change(), |obstacle| Err(obstacle.to_owned())) {
            Ok(number) => {
                self.counts.done.fetch_add(1, Ordering::Relaxed);
                self.wait_until_taken_up(number);
                print::error(&format!("configuration {number} is in force"));
                Ok(number)
            }
            Err(why) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                print::error(&format!("reload refused: {why}"));
                Err(why)
            }
        }
    }

    fn change(&self) -> Result<u64, String> {
        let Some(source) = &self.source else {
            return Err("no file to reload: the configuration is a command line".to_owned());
        };
        let asked_for = source.read_again().map_err(|error| error.to_string())?;
        let mut state = self.lock();
        config::check_reload(&source.name(), &state.asked_for, &asked_for)
            .map_err(|error| error.to_string())?;
        if let Some(locked) = self.locked() {
            locked.admits(&asked_for, Some(&source.file))?;
        }
        if !state.posts.have_room(1 + ROOM_LEFT) {
            return Err("a worker does not read its letters".to_owned());
        }
        let mut config = Config {
            number: state.config.number + 1,
            admin: state.config.admin.clone(),
            ..asked_for.clone()
        };
        let log = open_log(&config).map_err(|failure| failure.to_string())?;
        let change = state.listeners.change(&mut config.listeners);
        let change = change.map_err(|failure| failure.to_string())?;
        if let Err(error) = self.log.turn_to(log) {
            change.undo();
            return Err(format!("no thread for the access log: {error}"));
        }
        Ok(state.put_in_force(config, asked_for, change, &lock(&self.followers)))
    }

    /// A worker that hangs takes it up when it goes on; the others are not kept waiting.
    fn wait_until_taken_up(&self, number: u64) {
        let begun = Instant::now();
        let is_late = |index: &usize| self.shared.counters[*index].snapshot.get() < number;
        let mut late: Vec<usize> = (0..self.shared.counters.len()).collect();
        loop {
            late.retain(is_late);
            if late.is_empty() {
                return;
            }
            if begun.elapsed() > TAKE_UP {
                return print::error(&format!("not taken up yet by workers {late:?}"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What a worker needs to take a broken one's place; `None` when nobody is to.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub(crate) fn of_worker(&self, worker: usize) -> Result<Option<(Arc<Config>, Sockets)>, Errno> {
        let state = self.lock();
        if state.draining {
            return Ok(None);
        }
        Ok(Some((state.config.clone(), state.listeners.of_worker(worker)?)))
    }

    /// Tells every worker to take no more. No reload is done any more.
    pub(crate) fn drain(&self) {
        self.lock().end(|| WorkerMessage::Drain);
    }

    /// Nobody else goes on with what was inherited: its files are removed at the end.
    pub(crate) fn own_files(&self) {
        self.lock().listeners.set_owned(true);
    }

    /// Each listening socket once more, for a successor.
    ///
    /// # Errors
    /// When a descriptor cannot be had.
    pub(crate) fn copies(&self) -> std::io::Result<Vec<Socket>> {
        self.lock().listeners.copies()
    }

    /// Tells every worker to leave its listeners, with their files, to a successor. No reload is
    /// done any more.
    pub(crate) fn cede(&self) {
        let mut state = self.lock();
        state.listeners.set_owned(false);
        state.end(|| WorkerMessage::HandOff);
    }

    /// As [`Force::cede`], for a process that has not succeeded the one whose listeners it has:
    /// files of those that it opened itself are removed.
    pub(crate) fn abandon(&self) {
        self.lock().end(|| WorkerMessage::HandOff);
    }

    /// Sends every worker a letter that does without an answer, unless one does not read its mail.
    pub(crate) fn remind(&self, letter: impl FnMut() -> WorkerMessage<OwnedFd>) {
        let mut state = self.lock();
        if !state.draining && state.posts.have_room(1 + ROOM_LEFT) {
            state.posts.tell(letter);
        }
    }

    /// Tells every worker to break off. Nothing can be said to them after it.
    pub(crate) fn stop(&self) {
        self.lock().posts.stop();
    }

    /// Whether the workers were told to break off.
    pub(crate) fn was_stopped(&self) -> bool {
        self.lock().posts.were_stopped()
    }

    /// Closes the listeners of a start that failed.
    pub(crate) fn give_up(&self) {
        self.lock().listeners.release();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Closes the listeners here and has the workers close theirs, by a letter. No reload is done
    /// any more.
    fn end(&mut self, letter: fn() -> Post) {
        self.draining = true;
        self.listeners.release();
        self.posts.tell(letter);
    }

    /// Nothing here fails.
    fn put_in_force(
        &mut self,
        config: Config,
        asked_for: Config,
        change: Change,
        followers: &[Follower],
    ) -> u64 {
        let opened: Vec<String> = change.opened().map(ToString::to_string).collect();
        let (mut sockets, removed) = self.listeners.commit(change);
        for name in config::lost_names(&self.config, &config) {
            print::error(&format!(
                "no service finds any more what \"{name}\" stored in the cache: its name or its \
                 target rules have changed"
            ));
        }
        let (number, config) = (config.number, Arc::new(config));
        (self.config, self.asked_for) = (config.clone(), asked_for);
        sockets.reverse();
        self.posts.tell(|| {
            let sockets = sockets.pop().expect("there are sockets for each worker");
            WorkerMessage::Configure { config: config.clone(), sockets }
        });
        for follower in followers {
            follower(&config);
        }
        for address in removed {
            print::error(&format!("no longer listening on {address}"));
        }
        for address in opened {
            print::error(&format!("listening on {address}"));
        }
        number
    }
}

/// Opens the access log that a configuration names.
///
/// # Errors
/// When the machine refuses the file.
pub(crate) fn open_log(config: &Config) -> Result<Option<LogFile>, Failure> {
    let Some(log) = &config.access_log else { return Ok(None) };
    let what = format!("cannot open the access log {}", log.path.display());
    LogFile::open(&log.path).map(Some).map_err(|error| Failure::machine(what, error))
}
