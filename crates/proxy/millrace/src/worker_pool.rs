//! The worker threads: start, restart after a panic, end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use iolite::service::FileClient;
use millrace_config::{Config, Service};
use millrace_disk as disk;
use millrace_dns::ResolverConfig;
use millrace_engine::{
    Clock, EngineOptions, EpollWatch, Error, EventWaker, LogSink, MailboxReceiver, PeerMailboxes,
    PollWatch, ReservedRing, SelectWatch, UselectWatch, Watch, mailbox, mailbox_mesh,
};
use millrace_proxy::{Setup, SharedState, Worker};
use millrace_splice::Thresholds;

use crate::acme;
use crate::active_config::ActiveConfig;
use crate::disks::DiskWaker;
use crate::engines::Engine;
use crate::listeners::Sockets;
use crate::panics::{RestartBudget, catch_panic};
use crate::program_error::ProgramError;
use crate::verifier::VerifierThread;
use crate::worker_mailboxes::{SocketMessage, WorkerMailboxes};
use crate::{console, ring_reservation};

/// Capacity of a mailbox in messages. The supervisor sends a message only if it fits. A worker
/// keeps a message that does not fit until its next turn.
const MAILBOX_MESSAGES: usize = 256;
/// Descriptors for other purposes that are opened after the workers got their shares: admin
/// connections, a reopened log.
const DESCRIPTORS_SPARE: u64 = 32;
/// Descriptors of an engine: its poller and its waker.
const DESCRIPTORS_PER_ENGINE: u64 = 2;

/// The running worker threads.
pub(crate) struct WorkerPool {
    /// The threads that have not ended.
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    /// Starts one thread for each element of `sockets`, which has a worker's listeners. The disks
    /// notify the workers through `waker`. With engine uring, `rings` has one ring for each thread.
    ///
    /// # Errors
    /// If a thread or its worker cannot be started.
    pub(crate) fn start(
        active_config: &Arc<ActiveConfig>,
        shared: &Arc<SharedState>,
        (engine, rings, thresholds): (Engine, Vec<ReservedRing>, Thresholds),
        log: &LogSink,
        sockets: Vec<Sockets>,
        waker: &DiskWaker,
    ) -> Result<(Self, WorkerMailboxes), ProgramError> {
        let count = sockets.len();
        let config = active_config.config();
        let common = Arc::new(WorkerContext {
            active_config: Arc::clone(active_config),
            engine,
            shared: Arc::clone(shared),
            names: Arc::new(ResolverConfig::parse(
                &std::fs::read("/etc/hosts").unwrap_or_default(),
                &std::fs::read("/etc/resolv.conf").unwrap_or_default(),
                &[],
            )),
            verifier: VerifierThread::start()?,
            descriptors: descriptors_per_worker(count, &config),
            thresholds,
            listeners_at_start: config.listeners.len(),
            budget_bytes: (config.pool_bytes() / count as u64) as usize,
            log: log.clone(),
            clock: Clock::new(),
            restarts: RestartBudget::default(),
        });
        let (ready, started) = channel();
        let (mut pool, mut mailboxes) = (Self { threads: Vec::new() }, WorkerMailboxes::default());
        let (mut gates, mut rings) = (Vec::new(), rings.into_iter());
        // One more sender: the disks.
        let mut mails = mailbox_mesh(count + 1, MAILBOX_MESSAGES);
        waker.connect(mails.pop().expect("one of them at least"));
        for (index, (listeners, mail)) in sockets.into_iter().zip(mails).enumerate() {
            let (outbox, inbox) = mailbox(MAILBOX_MESSAGES);
            mailboxes.outboxes.push(outbox);
            let (gate, open) = channel();
            gates.push(gate);
            let start = StartBarrier { ready: ready.clone(), open };
            let slot = WorkerSlot { index, context: Arc::clone(&common) };
            let config = Arc::clone(&config);
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            let ring = rings.next();
            let ring = move || ring.expect("each worker has a ring").into_watch();
            let mail = (inbox, mail);
            let work = move || match engine {
                Engine::Epoll => slot.run(EpollWatch::new, config, listeners, mail, start),
                Engine::Uring => slot.run(ring, config, listeners, mail, start),
                Engine::Uselect => slot.run(UselectWatch::new, config, listeners, mail, start),
                Engine::Poll => slot.run(PollWatch::new, config, listeners, mail, start),
                Engine::Select => slot.run(SelectWatch::new, config, listeners, mail, start),
            };
            pool.threads.push(thread.spawn(work).map_err(failed)?);
        }
        drop(ready);
        wait_until_ready(&started, count)?;
        for gate in gates {
            gate.send(()).map_err(|_| failed("it ended"))?;
        }
        Ok((pool, mailboxes))
    }

    /// Removes the threads that have ended. Returns whether none is left.
    pub(crate) fn poll_ended(&mut self) -> bool {
        self.threads.retain(|thread| !thread.is_finished());
        self.threads.is_empty()
    }
}

/// The data that all workers are created with.
struct WorkerContext {
    active_config: Arc<ActiveConfig>,
    engine: Engine,
    shared: Arc<SharedState>,
    names: Arc<ResolverConfig>,
    verifier: VerifierThread,
    /// The share of each worker if it has as many listeners as at the start.
    descriptors: u64,
    thresholds: Thresholds,
    listeners_at_start: usize,
    budget_bytes: usize,
    log: LogSink,
    clock: Clock,
    restarts: RestartBudget,
}

/// The slot of a worker. One thread runs its worker and the replacements after panics.
struct WorkerSlot {
    index: usize,
    context: Arc<WorkerContext>,
}

/// The synchronization of a worker's start.
struct StartBarrier {
    /// Reports whether the worker could be created.
    ready: Sender<Result<(), Error>>,
    /// Opens when all workers were created. No worker accepts before, because a client would be
    /// lost if another worker failed. Closed if one failed.
    open: Receiver<()>,
}

type ActiveWorker<W> = Worker<millrace_engine::ReadinessEngine<W>>;

/// The mailbox of a worker, and the sending ends of the mailboxes of other workers.
type WorkerMail =
    (MailboxReceiver<SocketMessage, EventWaker>, PeerMailboxes<SocketMessage, EventWaker>);

/// The replacement of a panicked worker.
enum Replacement<W: Watch> {
    /// A worker on the same engine.
    Same(ActiveWorker<W>),
    /// A worker on epoll, because the engine could not be created again.
    OnEpoll(ActiveWorker<EpollWatch>),
    /// No worker, because the process drains.
    Ended,
}

impl WorkerSlot {
    /// Runs the thread with an engine over the result of `watch`.
    fn run<W: Watch>(
        self,
        watch: impl FnOnce() -> Result<W, Error>,
        config: Arc<Config>,
        listeners: Sockets,
        mail: WorkerMail,
        start: StartBarrier,
    ) {
        // The sends below fail only if another worker has failed already. The start has failed
        // then.
        let engine =
            watch().and_then(|it| millrace_engine::ReadinessEngine::with_watch(it, self.options()));
        let worker = engine.and_then(|engine| self.create(engine, config, listeners, mail));
        let worker = match worker {
            Ok(worker) => worker,
            Err(error) => {
                let _ = start.ready.send(Err(error));
                return;
            }
        };
        let _ = start.ready.send(Ok(()));
        drop(start.ready);
        if start.open.recv().is_err() {
            return;
        }
        let mut next = self.run_worker(worker);
        while let Some(worker) = next {
            next = self.run_worker(worker);
        }
    }

    /// Runs a worker and its replacements on the same engine until the last one ends. Returns the
    /// replacement on epoll, if there is one.
    fn run_worker<W: Watch>(
        &self,
        mut worker: ActiveWorker<W>,
    ) -> Option<ActiveWorker<EpollWatch>> {
        while catch_panic(|| while worker.run_turn() {}).is_err() {
            match catch_panic(|| self.replace(worker)) {
                Ok(Ok(Replacement::Same(another))) => worker = another,
                Ok(Ok(Replacement::OnEpoll(another))) => return Some(another),
                Ok(Ok(Replacement::Ended)) => return None,
                Ok(Err(why)) => self.end_process(&why),
                Err(_) => self.end_process("it panicked again"),
            }
        }
        if catch_panic(|| drop(worker.finish())).is_err() {
            self.end_process("it panicked at its end");
        }
        None
    }

    /// Creates a worker for this slot.
    fn create<W: Watch>(
        &self,
        engine: millrace_engine::ReadinessEngine<W>,
        config: Arc<Config>,
        listeners: Sockets,
        (inbox, mail): WorkerMail,
    ) -> Result<ActiveWorker<W>, Error> {
        let WorkerContext { shared, names, verifier, .. } = &*self.context;
        // A listener opened since the start takes two descriptors of the share: one at the worker,
        // one in `listeners`.
        let more = listeners.len().saturating_sub(self.context.listeners_at_start) as u64;
        let setup = Setup {
            config,
            index: self.index,
            listeners,
            inbox,
            mail,
            shared: Arc::clone(shared),
            names: Arc::clone(names),
            verifier: verifier.add_worker(),
            descriptors: self.context.descriptors.saturating_sub(2 * more).max(1),
            thresholds: self.context.thresholds,
        };
        Worker::new(engine, setup)
    }

    /// Creates the replacement of a panicked worker.
    fn replace<W: Watch>(&self, broken: ActiveWorker<W>) -> Result<Replacement<W>, String> {
        let salvage = broken.into_salvage();
        // Reset all connections before any step that may fail: a client must not mistake a response
        // that was cut for a whole one.
        let waker = salvage.engine.abort();
        let (index, connections) = (self.index, salvage.connections);
        let found = self.context.active_config.prepare_replacement(index);
        let Some((config, listeners)) = found.map_err(|error| error.to_string())? else {
            console::log(&format!("worker {index} ended; {connections} connections were reset"));
            return Ok(Replacement::Ended);
        };
        let max = config.limits.worker_restarts;
        if !self.context.restarts.record(max, Instant::now()) {
            return Err(format!("more than {max} panics within a minute (limit worker_restarts)"));
        }
        let (mail, messages) = ((salvage.inbox, salvage.mail), salvage.messages);
        let restarted =
            format!("worker {index} was restarted; {connections} connections were reset");
        let error = match millrace_engine::ReadinessEngine::<W>::with_waker(
            waker.clone(),
            self.options(),
        ) {
            Ok(engine) => {
                let worker =
                    self.create_with_messages(engine, config, listeners, mail, messages)?;
                console::log(&restarted);
                return Ok(Replacement::Same(worker));
            }
            Err(error) => error,
        };
        let engine =
            millrace_engine::ReadinessEngine::<EpollWatch>::with_waker(waker, self.options());
        let engine = engine.map_err(|error| error.to_string())?;
        let worker = self.create_with_messages(engine, config, listeners, mail, messages)?;
        let name = self.context.engine.name();
        let remedy = match (self.context.engine, error) {
            (Engine::Uring, Error::OutOfMemory) => {
                format!("; {}", ring_reservation::MEMLOCK_ADVICE)
            }
            _ => String::new(),
        };
        console::log(&format!(
            "{restarted}; it uses epoll, as engine {name} cannot be created again: {error}{remedy}"
        ));
        Ok(Replacement::OnEpoll(worker))
    }

    /// Like [`WorkerSlot::create`], with the unread messages of the panicked worker.
    fn create_with_messages<W: Watch>(
        &self,
        engine: millrace_engine::ReadinessEngine<W>,
        config: Arc<Config>,
        listeners: Sockets,
        mail: WorkerMail,
        messages: VecDeque<SocketMessage>,
    ) -> Result<ActiveWorker<W>, String> {
        let worker = self.create(engine, config, listeners, mail);
        let mut worker = worker.map_err(|error| error.to_string())?;
        worker.adopt_messages(messages);
        Ok(worker)
    }

    fn options(&self) -> EngineOptions {
        let WorkerContext { budget_bytes, log, clock, .. } = &*self.context;
        EngineOptions { budget_bytes: *budget_bytes, log: Some(log.clone()), clock: *clock }
    }

    /// Ends the process, so that the service manager starts it again.
    fn end_process(&self, why: &str) -> ! {
        console::log(&format!("worker {} cannot be restarted: {why}", self.index));
        std::process::exit(1)
    }
}

fn wait_until_ready(
    started: &Receiver<Result<(), Error>>,
    count: usize,
) -> Result<(), ProgramError> {
    for _ in 0..count {
        started.recv().map_err(|_| failed("it ended"))?.map_err(failed)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> ProgramError {
    ProgramError::System(format!("cannot start a worker: {error}"))
}

/// Returns the number of files that the configured disks have open when they are full.
pub(crate) fn disk_files(config: &Config) -> u64 {
    let disks = config.cache.iter().flat_map(|cache| &cache.disks);
    disks.map(|disk| disk::limits::files(disk.bytes)).sum()
}

/// Returns the number of files of served folders that the process keeps open.
pub(crate) fn served_files(config: &Config) -> u64 {
    let mut routes = config.services.iter().flat_map(Service::routes);
    if routes.any(|route| route.folder.is_some()) { config.limits.open_files } else { 0 }
}

/// Returns the number of memory files of iolited that the process keeps open.
pub(crate) fn shared_files(config: &Config) -> u64 {
    if config.iolited.is_some() { FileClient::KEPT_DESCRIPTORS_MAX } else { 0 }
}

/// Returns the number of descriptors that each of `workers` may open. Those that are open now, and
/// those for files of disks and iolited, served files and connections of acme-http, are subtracted
/// first. A reserved ring is subtracted twice: as an open descriptor and in
/// [`DESCRIPTORS_PER_ENGINE`]. So with engine uring each worker has one descriptor less than it
/// could have.
pub(crate) fn descriptors_per_worker(workers: usize, config: &Config) -> u64 {
    let open = millrace_sys::descriptor_count().unwrap_or(0) as u64;
    let limit = millrace_sys::descriptor_limit();
    let files = disk_files(config) + served_files(config) + shared_files(config);
    share(left(limit, open, workers as u64, config), workers as u64, files)
}

/// Returns the number of descriptors that are left for workers and files.
fn left(limit: u64, open: u64, workers: u64, config: &Config) -> u64 {
    let http = acme::http_descriptors_max(config, limit);
    limit.saturating_sub(open + DESCRIPTORS_SPARE + workers * DESCRIPTORS_PER_ENGINE + http)
}

/// Returns each worker's share of `left` descriptors. If there are few, clients come before files:
/// a disk that cannot open a file pauses, and the responses come from the origin. A served file
/// that cannot be opened gets a 503 response.
fn share(left: u64, workers: u64, files: u64) -> u64 {
    ((left - files.min(left / 2)) / workers).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_files_reduce_the_share_of_the_workers() {
        assert_eq!(share(10_000, 2, 0), 5000);
        assert_eq!(share(10_000, 2, 2000), 4000);
        assert_eq!(share(1000, 2, 2000), 250);
        assert_eq!(share(0, 2, 2000), 1);
        assert_eq!(disk::limits::files(100 << 30), 1025);
    }

    #[test]
    fn served_files_count_if_a_route_has_a_folder() {
        let count =
            |words: &str| served_files(&millrace_config::from_arguments(words.split(' ')).unwrap());
        assert_eq!(count("boost --origin=http://a"), 0);
        assert_eq!(count("serve /srv"), 2048);
        assert_eq!(count("serve /srv --limit open_files=100"), 100);
    }

    #[test]
    fn files_of_iolited_count_if_it_is_used() {
        let count =
            |words: &str| shared_files(&millrace_config::from_arguments(words.split(' ')).unwrap());
        assert_eq!(count("serve /srv"), 0);
        assert_eq!(count("serve /srv --iolited=/run/iolited/iolited.sock"), 1024);
    }

    #[test]
    fn connections_of_acme_http_reduce_the_share_of_the_workers() {
        let left = |words: &str| {
            let words = format!(
                "boost --origin=http://a --listen=tls://[::1]:1 --acme=a@b --server-name=a {words}"
            );
            let config = millrace_config::from_arguments(words.split_whitespace()).unwrap();
            left(400, 20, 2, &config)
        };
        assert_eq!(left("--acme-http=off"), 400 - 20 - 32 - 4);
        assert_eq!(left("--acme-http=[::1]:80"), 400 - 20 - 32 - 4 - 50);
    }
}
