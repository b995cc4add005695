//! The worker threads: how they are started, told things, and awaited.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use millrace_config::Config;
use millrace_disk as disk;
use millrace_dns::Sources;
use millrace_engine::{
    Clock, EngineOptions, EpollWatch, Error, EventWaker, LogSink, MailboxReceiver, PeerMailboxes,
    PollWatch, ReservedRing, SelectWatch, UselectWatch, Watch, mailbox, mailbox_mesh,
};
use millrace_proxy::{Setup, SharedState, Worker};
use millrace_splice::Thresholds;

use crate::active_config::ActiveConfig;
use crate::disks::DiskWaker;
use crate::engines::Engine;
use crate::listeners::Sockets;
use crate::panics::{RestartBudget, catch_panic};
use crate::program_error::ProgramError;
use crate::verifier::VerifierThread;
use crate::worker_mailboxes::{Post, WorkerMailboxes};
use crate::{console, ring_reservation};

/// Letters that a mailbox holds. The supervisor sends one for each reload, and none that would not
/// fit; workers keep what does not fit until their next turn.
const MAILBOX_MESSAGES: usize = 256;
/// Descriptors that are neither a client's nor an origin's and are opened after the workers were
/// given their shares: the admin address's connections, a reopened log.
const DESCRIPTORS_SPARE: u64 = 32;
/// What a worker's engine has open for itself: its poller and its waker.
const DESCRIPTORS_PER_ENGINE: u64 = 2;

/// The running worker threads.
pub(crate) struct WorkerPool {
    /// Those that have not ended.
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    /// Starts a thread for each of `sockets`: a worker's listeners, by their numbers. The disks
    /// reach the workers by `bell`. If the engine is uring, `rings` has one for each thread.
    ///
    /// # Errors
    /// When a thread cannot be started, or its worker cannot.
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
            names: Arc::new(Sources::parse(
                &std::fs::read("/etc/hosts").unwrap_or_default(),
                &std::fs::read("/etc/resolv.conf").unwrap_or_default(),
                &[],
            )),
            verifier: VerifierThread::start()?,
            descriptors: descriptors_per_worker(count, disk_files(&config)),
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
        // The disks are one more.
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
            let boxes = (inbox, mail);
            let work = move || match engine {
                Engine::Epoll => slot.run(EpollWatch::new, config, listeners, boxes, start),
                Engine::Uring => slot.run(ring, config, listeners, boxes, start),
                Engine::Uselect => slot.run(UselectWatch::new, config, listeners, boxes, start),
                Engine::Poll => slot.run(PollWatch::new, config, listeners, boxes, start),
                Engine::Select => slot.run(SelectWatch::new, config, listeners, boxes, start),
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

    /// Whether every worker has ended.
    pub(crate) fn poll_ended(&mut self) -> bool {
        self.threads.retain(|thread| !thread.is_finished());
        self.threads.is_empty()
    }
}

/// What all workers are made with.
struct WorkerContext {
    active_config: Arc<ActiveConfig>,
    engine: Engine,
    shared: Arc<SharedState>,
    names: Arc<Sources>,
    verifier: VerifierThread,
    /// Each worker's share when it has as many listeners as at the start.
    descriptors: u64,
    thresholds: Thresholds,
    listeners_at_start: usize,
    budget_bytes: usize,
    log: LogSink,
    clock: Clock,
    restarts: RestartBudget,
}

/// A worker's thread: whatever worker has this slot.
struct WorkerSlot {
    index: usize,
    context: Arc<WorkerContext>,
}

/// How a worker begins.
struct StartBarrier {
    /// Says that it could.
    ready: Sender<Result<(), Error>>,
    /// Says that all of them could. Before that none takes a client in, who would be lost if
    /// another could not; closed if one could not.
    open: Receiver<()>,
}

type ActiveWorker<W> = Worker<millrace_engine::ReadinessEngine<W>>;

/// The inbox of a worker and its mail to the other workers.
type WorkerMail = (MailboxReceiver<Post, EventWaker>, PeerMailboxes<Post, EventWaker>);

/// The replacement of a panicked worker.
enum Replacement<W: Watch> {
    /// A worker on the same engine.
    Same(ActiveWorker<W>),
    /// A worker on epoll: the engine could not be created again.
    OnEpoll(ActiveWorker<EpollWatch>),
    /// No worker: the process drains.
    Ended,
}

impl WorkerSlot {
    /// The life of the thread, on the engine over what `watch` makes.
    fn run<W: Watch>(
        self,
        watch: impl FnOnce() -> Result<W, Error>,
        config: Arc<Config>,
        listeners: Sockets,
        boxes: WorkerMail,
        start: StartBarrier,
    ) {
        // The supervisor waits for the word of every worker, so it is there to hear it.
        let engine =
            watch().and_then(|it| millrace_engine::ReadinessEngine::with_watch(it, self.options()));
        let worker = engine.and_then(|engine| self.create(engine, config, listeners, boxes));
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
        // Those that were opened since the start take from the share: the worker's and our copy.
        let more = listeners.len().saturating_sub(self.context.listeners_at_start) as u64;
        let setup = Setup {
            config,
            index: self.index,
            listeners,
            inbox,
            mail,
            shared: Arc::clone(shared),
            names: Arc::clone(names),
            desk: verifier.desk(),
            descriptors: self.context.descriptors.saturating_sub(2 * more).max(1),
            thresholds: self.context.thresholds,
        };
        Worker::new(engine, setup)
    }

    /// Creates the replacement of a panicked worker.
    fn replace<W: Watch>(&self, broken: ActiveWorker<W>) -> Result<Replacement<W>, String> {
        let remains = broken.into_salvage();
        // Before all that may fail: whatever follows, no client takes what it got for the whole.
        let waker = remains.engine.abort();
        let (index, connections) = (self.index, remains.connections);
        let found = self.context.active_config.prepare_replacement(index);
        let Some((config, listeners)) = found.map_err(|error| error.to_string())? else {
            console::log(&format!("worker {index} ended; {connections} connections were reset"));
            return Ok(Replacement::Ended);
        };
        let max = config.limits.worker_restarts;
        if !self.context.restarts.record(max, Instant::now()) {
            return Err(format!("more than {max} panics within a minute (limit worker_restarts)"));
        }
        let (boxes, letters) = ((remains.inbox, remains.mail), remains.messages);
        let restarted =
            format!("worker {index} was restarted; {connections} connections were reset");
        let error = match millrace_engine::ReadinessEngine::<W>::with_waker(
            waker.clone(),
            self.options(),
        ) {
            Ok(engine) => {
                let worker = self.create_again(engine, config, listeners, boxes, letters)?;
                console::log(&restarted);
                return Ok(Replacement::Same(worker));
            }
            Err(error) => error,
        };
        let engine =
            millrace_engine::ReadinessEngine::<EpollWatch>::with_waker(waker, self.options());
        let engine = engine.map_err(|error| error.to_string())?;
        let worker = self.create_again(engine, config, listeners, boxes, letters)?;
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

    /// Like [`WorkerSlot::create`], with the messages that the panicked worker had not read.
    fn create_again<W: Watch>(
        &self,
        engine: millrace_engine::ReadinessEngine<W>,
        config: Arc<Config>,
        listeners: Sockets,
        boxes: WorkerMail,
        letters: VecDeque<Post>,
    ) -> Result<ActiveWorker<W>, String> {
        let worker = self.create(engine, config, listeners, boxes);
        let mut worker = worker.map_err(|error| error.to_string())?;
        worker.adopt_messages(letters);
        Ok(worker)
    }

    fn options(&self) -> EngineOptions {
        let WorkerContext { budget_bytes, log, clock, .. } = &*self.context;
        EngineOptions { budget_bytes: *budget_bytes, log: Some(log.clone()), clock: *clock }
    }

    /// Whoever supervises the process starts another.
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

/// Files that the disks of a configuration have open once they are full.
pub(crate) fn disk_files(config: &Config) -> u64 {
    let disks = config.cache.iter().flat_map(|cache| &cache.disks);
    disks.map(|disk| disk::limits::files(disk.bytes)).sum()
}

/// Descriptors that one of `workers` may open, after what the process has open already, and `files`
/// will be. Rings that are reserved already count twice, which costs each worker one descriptor.
pub(crate) fn descriptors_per_worker(workers: usize, files: u64) -> u64 {
    let workers = workers as u64;
    let open = millrace_sys::descriptor_count().unwrap_or(0) as u64;
    let taken = open + DESCRIPTORS_SPARE + workers * DESCRIPTORS_PER_ENGINE;
    share(millrace_sys::descriptor_limit().saturating_sub(taken), workers, files)
}

/// What each of `workers` gets of what is left. Where that is little, clients come before files: a
/// disk that cannot open one makes a pause, and the origin is asked.
fn share(left: u64, workers: u64, files: u64) -> u64 {
    ((left - files.min(left / 2)) / workers).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_disks_are_none_of_the_workers() {
        assert_eq!(share(10_000, 2, 0), 5000);
        assert_eq!(share(10_000, 2, 2000), 4000);
        assert_eq!(share(1000, 2, 2000), 250);
        assert_eq!(share(0, 2, 2000), 1);
        assert_eq!(disk::limits::files(100 << 30), 1025);
    }
}
