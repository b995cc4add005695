//! The worker threads: how they are started, told things, and awaited.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use millrace_event::{
    Clock, EngineOptions, EpollWatch, EventWaker, Inbox, LogSink, Mail, Outbox, UringWatch, Watch,
    mailbox, mesh,
};
use millrace_proxy::config::Config;
use millrace_proxy::names::Sources;
use millrace_proxy::{Letter, Setup, Shared, Worker};

use crate::engines::Engine;
use crate::failure::Failure;
use crate::listeners::Sockets;

type Post = Letter<OwnedFd>;

/// Letters that a mailbox holds. The supervisor sends one for each reload, and none that would not
/// fit; workers keep what does not fit until their next turn.
const MAILBOX_LETTERS: usize = 256;
/// Descriptors that are neither a client's nor an origin's and are opened after the workers were
/// given their shares: the admin address's connections, a reopened log.
const DESCRIPTORS_SPARE: u64 = 32;
/// What a worker's engine has open for itself: its poller and its waker.
const DESCRIPTORS_PER_ENGINE: u64 = 2;

/// The way to the workers.
#[derive(Default)]
pub(crate) struct Posts {
    /// One a worker; empty once nothing more will be said.
    outboxes: Vec<Outbox<Post, EventWaker>>,
}

impl Posts {
    /// Sends every worker a letter, in their order.
    ///
    /// # Panics
    /// When a mailbox is full: [`Posts::have_room`] is asked before.
    pub(crate) fn tell(&mut self, mut letter: impl FnMut() -> Post) {
        for outbox in &mut self.outboxes {
            assert!(outbox.send(letter()).is_ok(), "a mailbox holds all that is ever sent to it");
            outbox.flush();
        }
    }

    /// Whether every worker can be sent so many letters.
    pub(crate) fn have_room(&self, letters: usize) -> bool {
        self.outboxes.iter().all(|outbox| outbox.room() >= letters)
    }

    /// Tells every worker to break off. Nothing can be said after it.
    pub(crate) fn stop(&mut self) {
        self.tell(|| Letter::Stop);
        self.outboxes.clear();
    }

    /// Whether the workers were told to break off.
    pub(crate) fn were_stopped(&self) -> bool {
        self.outboxes.is_empty()
    }
}

/// The running worker threads.
pub(crate) struct Crew {
    /// Those that have not ended.
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts a thread for each of `sockets`: a worker's listeners, by their numbers.
    ///
    /// # Errors
    /// When a thread cannot be started, or its worker cannot.
    pub(crate) fn start(
        config: &Arc<Config>,
        shared: &Arc<Shared>,
        engine: Engine,
        log: &LogSink,
        sockets: Vec<Sockets>,
    ) -> Result<(Self, Posts), Failure> {
        let count = sockets.len();
        let descriptors = descriptors_of_a_worker(count);
        let names = Sources::parse(
            &std::fs::read("/etc/hosts").unwrap_or_default(),
            &std::fs::read("/etc/resolv.conf").unwrap_or_default(),
            &[],
        );
        let clock = Clock::new();
        let (ready, started) = channel();
        let (mut crew, mut posts) = (Self { threads: Vec::new() }, Posts::default());
        let mails = mesh(count, MAILBOX_LETTERS);
        for (index, (listeners, mail)) in sockets.into_iter().zip(mails).enumerate() {
            let (outbox, inbox) = mailbox(MAILBOX_LETTERS);
            posts.outboxes.push(outbox);
            let seat = Seat {
                index,
                config: Arc::clone(config),
                shared: Arc::clone(shared),
                listeners,
                inbox,
                mail,
                names: names.clone(),
                descriptors,
                engine,
                options: EngineOptions {
                    budget_bytes: (config.memory_bytes / count as u64) as usize,
                    log: Some(log.clone()),
                    clock,
                },
                ready: ready.clone(),
            };
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            crew.threads.push(thread.spawn(|| seat.work()).map_err(failed)?);
        }
        drop(ready);
        wait_until_ready(&started, count)?;
        Ok((crew, posts))
    }

    /// Whether every worker has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.threads.retain(|thread| !thread.is_finished());
        self.threads.is_empty()
    }
}

/// What a worker's thread takes with it.
struct Seat {
    index: usize,
    config: Arc<Config>,
    shared: Arc<Shared>,
    listeners: Sockets,
    inbox: Inbox<Post, EventWaker>,
    mail: Mail<Post, EventWaker>,
    names: Sources,
    descriptors: u64,
    engine: Engine,
    options: EngineOptions,
    ready: Sender<Result<(), millrace_event::Error>>,
}

impl Seat {
    /// The life of a worker's thread.
    fn work(self) {
        match self.engine {
            Engine::Epoll => self.work_over::<EpollWatch>(),
            Engine::Uring => self.work_over::<UringWatch>(),
        }
    }

    fn work_over<W: Watch>(self) {
        // The supervisor waits for the word of every worker, so it is there to hear it.
        let worker = millrace_event::Sockets::<W>::new(self.options).and_then(|engine| {
            let setup = Setup {
                config: self.config,
                index: self.index,
                listeners: self.listeners,
                inbox: self.inbox,
                mail: self.mail,
                shared: self.shared,
                names: self.names.into(),
                descriptors: self.descriptors,
            };
            Worker::new(engine, setup)
        });
        match worker {
            Ok(mut worker) => {
                let _ = self.ready.send(Ok(()));
                drop(self.ready);
                while worker.turn() {}
                drop(worker.finish());
            }
            Err(error) => {
                let _ = self.ready.send(Err(error));
            }
        }
    }
}

fn wait_until_ready(
    started: &Receiver<Result<(), millrace_event::Error>>,
    count: usize,
) -> Result<(), Failure> {
    for _ in 0..count {
        match started.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(error)),
            Err(_) => return Err(failed("it ended")),
        }
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Machine(format!("cannot start a worker: {error}"))
}

/// Descriptors that one of `workers` may open, after what the process has open already.
fn descriptors_of_a_worker(workers: usize) -> u64 {
    let workers = workers as u64;
    let open = millrace_sys::descriptor_count().unwrap_or(0) as u64;
    let taken = open + DESCRIPTORS_SPARE + workers * DESCRIPTORS_PER_ENGINE;
    (millrace_sys::descriptor_limit().saturating_sub(taken) / workers).max(1)
}
