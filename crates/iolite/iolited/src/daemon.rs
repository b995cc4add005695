//! The daemon: its socket, and a thread for each connected process.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use iolite::service::{DEFAULT_SOCKET, Refusal, Response};
use millrace_sys::Errno;

use crate::budget::Budget;
use crate::cache::Cache;
use crate::limits::{CLIENTS_MAX, DESCRIPTORS_PER_CLIENT, PIECES_MIN, REPORT_AFTER};
use crate::options::DaemonOptions;
use crate::packs::Packs;
use crate::pairs::Pairs;
use crate::pressure::MemoryLevels;
use crate::public::PublicFolders;
use crate::session::{End, Session};
use crate::sizing::{SAMPLE_INTERVAL, Sizing};

/// The daemon while it serves.
pub(crate) struct Daemon {
    path: PathBuf,
}

/// The state that the threads share.
struct Shared {
    listener: OwnedFd,
    cache: Cache,
    packs: Packs,
    pairs: Pairs,
    /// The number of the last connection.
    last_client: AtomicU64,
    /// The threads that wait for a connection.
    idle_threads: AtomicUsize,
    clients_max: usize,
    clients_per_user: usize,
    /// The number of connections of each user.
    clients: Mutex<HashMap<u32, usize>>,
    /// When a closed connection was reported last.
    reported_at: Mutex<Option<Instant>>,
}

impl Daemon {
    /// Listens, and serves on threads of their own.
    ///
    /// # Errors
    /// One line that names the path and the reason.
    pub(crate) fn listen(options: &DaemonOptions) -> Result<Self, String> {
        let path = options.socket.clone();
        if path == Path::new(DEFAULT_SOCKET) {
            create_folder_of(&path);
        }
        let packs = Packs::new(PublicFolders::open(&options.public)?);
        let listener = millrace_sys::listen_packets(&path, 0o666).map_err(|error| {
            let reason = match error {
                Errno::ADDRINUSE => "a process listens there, or it is no socket".to_owned(),
                Errno::NOENT => "the folder does not exist".to_owned(),
                error => error.to_string(),
            };
            format!("cannot listen at {}: {reason}", path.display())
        })?;
        let descriptors = millrace_sys::descriptor_limit();
        let clients_max = (CLIENTS_MAX as u64).min(descriptors / 2 / DESCRIPTORS_PER_CLIENT);
        let pieces_max = descriptors - clients_max * DESCRIPTORS_PER_CLIENT;
        let pieces_max = pieces_max.min(millrace_sys::watched_files_max()).max(PIECES_MIN);
        let levels = MemoryLevels::find();
        let sizing = Sizing::new(levels.read());
        let bytes_max = options.cache_bytes.unwrap_or(sizing.limit());
        let cache = Cache::new(Budget::new(bytes_max, pieces_max), options.user_bytes)
            .map_err(|error| format!("cannot watch memory (inotify): {error}"))?;
        millrace_sys::set_blocking(listener.as_fd()).map_err(|error| error.to_string())?;
        // A connection without a place carries no descriptors: to close one may take as long as its
        // sender has chosen (socket(7), SO_LINGER). Linux before 6.16 cannot prevent that.
        let _ = millrace_sys::set_descriptor_passing(listener.as_fd(), false);
        let shared = Arc::new(Shared {
            listener,
            idle_threads: AtomicUsize::new(0),
            cache,
            packs,
            pairs: Pairs::default(),
            last_client: AtomicU64::new(0),
            clients_max: clients_max as usize,
            clients_per_user: options.clients_per_user,
            clients: Mutex::default(),
            reported_at: Mutex::default(),
        });
        let wrong = |error| format!("cannot start a thread: {error}");
        shared.start_thread().map_err(wrong)?;
        if options.cache_bytes.is_none() {
            shared.start_sizing(levels, sizing).map_err(wrong)?;
        }
        Ok(Self { path })
    }

    /// Removes the socket. Clients notice the end when the process ends.
    pub(crate) fn close(&self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Shared {
    /// Starts a thread that serves one connection after the other.
    fn start_thread(self: &Arc<Self>) -> std::io::Result<()> {
        self.idle_threads.fetch_add(1, Ordering::Relaxed);
        let shared = self.clone();
        let serve = move || while shared.serve_next() {};
        let started = thread::Builder::new().stack_size(STACK_BYTES).spawn(serve);
        if started.is_err() {
            self.idle_threads.fetch_sub(1, Ordering::Relaxed);
        }
        started.map(drop)
    }

    /// Starts a thread that adapts the memory of the cache to that of the system.
    fn start_sizing(self: Arc<Self>, levels: MemoryLevels, sizing: Sizing) -> std::io::Result<()> {
        let adapt = move || {
            let (cache, mut sizing) = (&self.cache, sizing);
            loop {
                cache.await_entries();
                thread::sleep(SAMPLE_INTERVAL);
                sizing.update(levels.read(), cache.bytes(), || cache.evictable_bytes());
                cache.resize(sizing.limit());
            }
        };
        thread::Builder::new().stack_size(STACK_BYTES).spawn(adapt).map(drop)
    }

    /// Waits for a process to connect, and serves it until it leaves. Returns whether this thread
    /// is needed for another one.
    fn serve_next(self: &Arc<Self>) -> bool {
        let Ok(socket) = millrace_sys::await_connection(self.listener.as_fd()) else {
            // The kernel has no descriptor or memory for a connection.
            thread::sleep(PAUSE);
            return true;
        };
        if self.idle_threads.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Without another thread, processes wait until one leaves.
            let _ = self.start_thread();
        }
        self.serve(socket);
        let idle = self.idle_threads.fetch_add(1, Ordering::Relaxed);
        let is_needed = idle < IDLE_THREADS_MAX;
        if !is_needed {
            self.idle_threads.fetch_sub(1, Ordering::Relaxed);
        }
        is_needed
    }

    fn serve(self: &Arc<Self>, socket: OwnedFd) {
        let Ok(credentials) = millrace_sys::peer_credentials(socket.as_fd()) else { return };
        let Some(place) = ClientPlace::take(self, credentials.user_id) else {
            return refuse(&socket);
        };
        let _ = millrace_sys::set_descriptor_passing(socket.as_fd(), true);
        let client = self.last_client.fetch_add(1, Ordering::Relaxed) + 1;
        let Self { cache, packs, pairs, .. } = &**self;
        let session = Session { cache, packs, pairs, client, socket, user: place.user };
        if let End::NoRequest = session.run() {
            self.report_closed(place.user);
        }
    }

    /// Writes a message about a closed connection, unless one was written just before.
    fn report_closed(&self, user: u32) {
        let mut reported_at = self.reported_at.lock().expect("no holder of this lock panics");
        if reported_at.is_none_or(|at| at.elapsed() >= REPORT_AFTER) {
            *reported_at = Some(Instant::now());
            // The daemon goes on if nothing reads its standard error.
            let _ = writeln!(
                std::io::stderr(),
                "iolited: closed a connection of user {user}: it sent no request of iolite"
            );
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.clients.lock().expect("no holder of this lock panics")
    }
}

/// The place of one connection among those of its user.
struct ClientPlace {
    shared: Arc<Shared>,
    user: u32,
}

impl ClientPlace {
    fn take(shared: &Arc<Shared>, user: u32) -> Option<Self> {
        let mut clients = shared.clients();
        let all: usize = clients.values().sum();
        let own = clients.entry(user).or_default();
        if all >= shared.clients_max || *own >= shared.clients_per_user {
            return None;
        }
        *own += 1;
        Some(Self { shared: shared.clone(), user })
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut clients = self.shared.clients();
        let own = clients.get_mut(&self.user).expect("it has this place");
        *own -= 1;
        if *own == 0 {
            clients.remove(&self.user);
        }
    }
}

/// Creates the folder of a socket, which all users may enter. A failure shows when the daemon
/// listens there.
fn create_folder_of(path: &Path) {
    let folder = path.parent().unwrap_or(path);
    if std::fs::create_dir(folder).is_ok() {
        let _ = std::fs::set_permissions(folder, Permissions::from_mode(0o755));
    }
}

/// Sends the reason before the connection is closed.
fn refuse(socket: &OwnedFd) {
    let mut packet = Vec::new();
    Response::Refused(Refusal::Clients).write(&mut packet);
    // A client that does not get it reads its files itself, too.
    let _ = millrace_sys::send_packet(socket.as_fd(), &[&packet], &[]);
}

/// Threads that wait for connections.
const IDLE_THREADS_MAX: usize = 8;
/// The pause when the kernel has no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Nothing on these threads recurses.
const STACK_BYTES: usize = 256 * 1024;
