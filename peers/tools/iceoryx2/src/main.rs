//! Measures how fast two processes pass buffers with iceoryx2.
//!
//! Usage: `pbiceoryx2 BYTES COUNT ONE_WORD|ALL`. It prints the time of one buffer, and the CPU time
//! of both processes for it, in microseconds. The CPU time includes that of the start, about 10 ms.
//!
//! A producer, which is this program again, loans a buffer of BYTES, writes one byte of each page
//! or all bytes, and sends it. The consumer receives it, checks these bytes, and releases it. At
//! most [`DEPTH`] buffers are under way, since the producer has no more. Before the clock begins,
//! each of these passes once, so that both processes have mapped all memory.
//!
//! No side spins or sleeps: one that finds no buffer waits by epoll(7) in a wait set until the
//! other notifies. Each side notifies for each buffer, but iceoryx2 makes a system call only if the
//! other side took the last notification, and it takes one only when it finds no buffer.

use std::error::Error;
use std::mem::MaybeUninit;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::{LoanError, subscriber::Subscriber};
use iceoryx2::prelude::*;
use iceoryx2::sample_mut_uninit::SampleMutUninit;
use iceoryx2::service::port_factory::publish_subscribe;
use iceoryx2::waitset::WaitSetRunResult;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

const PAGE: usize = 4096;
/// Buffers under way at a time.
const DEPTH: usize = 8;
/// After this time without a notification, a side looks whether the other one still runs.
const TIMEOUT: Duration = Duration::from_millis(100);
/// The names of the events: buffers were sent, and buffers were released.
const EVENTS: [&str; 2] = ["sent", "released"];

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Buffer = SampleMutUninit<ipc::Service, [MaybeUninit<u8>], ()>;
type Buffers = publish_subscribe::PortFactory<ipc::Service, [u8], ()>;

#[derive(Clone, Copy)]
struct Case {
    bytes: usize,
    count: usize,
    all_bytes: bool,
}

fn main() -> Result<()> {
    set_log_level(LogLevel::Error);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["produce", consumer, case @ ..] => produce(consumer.parse()?, parse(case)?),
        case => measure(parse(case)?, &arguments),
    }
}

fn parse(arguments: &[&str]) -> Result<Case> {
    let [bytes, count, which @ ("ONE_WORD" | "ALL")] = arguments else {
        return Err("usage: pbiceoryx2 BYTES COUNT ONE_WORD|ALL".into());
    };
    let case = Case { bytes: bytes.parse()?, count: count.parse()?, all_bytes: *which == "ALL" };
    if case.bytes == 0 || case.count == 0 {
        return Err("BYTES and COUNT must be at least 1".into());
    }
    Ok(case)
}

fn measure(case: Case, arguments: &[String]) -> Result<()> {
    let consumer = std::process::id();
    let domain = Domain { consumer };
    let node = domain.node()?;
    let subscriber = buffers(&node)?.subscriber_builder().create()?;
    let [sent, released] = EVENTS;
    let (listener, notifier) = (listener(&node, sent)?, notifier(&node, released)?);
    let mut child = Producer(
        Command::new(std::env::current_exe()?)
            .args(["produce", &consumer.to_string()])
            .args(arguments)
            .spawn()?,
    );
    let time = consume(&subscriber, &listener, &notifier, &mut child, case)?;
    if !child.0.wait()?.success() {
        return Err("the producer failed".into());
    }
    let mut cpu = 0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        cpu += (usage.user_time() + usage.system_time()).num_microseconds();
    }
    let count = case.count as f64;
    println!("{:.3} {:.3}", time.as_secs_f64() * 1e6 / count, cpu as f64 / count);
    Ok(())
}

fn consume(
    subscriber: &Subscriber<ipc::Service, [u8], ()>,
    listener: &Listener<ipc::Service>,
    notifier: &Notifier<ipc::Service>,
    child: &mut Producer,
    case: Case,
) -> Result<Duration> {
    let set = WaitSetBuilder::new().create()?;
    let _attached = set.attach_notification(listener)?;
    let mut begin = Instant::now();
    for number in 0..DEPTH + case.count {
        let receive = || Ok(subscriber.receive()?);
        let sample = wait_for(receive, listener, &set, || Ok(child.0.try_wait()?.is_none()))?;
        check(sample.payload(), case, number)?;
        drop(sample);
        notifier.notify()?;
        if number + 1 == DEPTH {
            begin = Instant::now();
        }
    }
    Ok(begin.elapsed())
}

fn produce(consumer: u32, case: Case) -> Result<()> {
    let domain = Domain { consumer };
    let node = domain.node()?;
    let [sent, released] = EVENTS;
    let (listener, notifier) = (listener(&node, released)?, notifier(&node, sent)?);
    let set = WaitSetBuilder::new().create()?;
    let _attached = set.attach_notification(&listener)?;
    let publisher = buffers(&node)?
        .publisher_builder()
        .initial_max_slice_len(case.bytes)
        .max_loaned_samples(DEPTH)
        .override_sample_preallocation(|_| DEPTH)
        .create()?;
    let next =
        || wait_for(|| loan(&publisher, case), &listener, &set, || Ok(domain.consumer_runs()));
    let all = || (0..DEPTH).map(|_| next()).collect::<Result<Vec<_>>>();
    let mut loaned = all()?.into_iter();
    for number in 0..DEPTH + case.count {
        let mut buffer = loaned.next().map_or_else(next, Ok)?;
        fill(buffer.payload_mut(), case, number);
        // SAFETY: the bytes that were not written are those of a file, so they have a value.
        unsafe { buffer.assume_init() }.send()?;
        notifier.notify()?;
    }
    // The memory goes with this process, so the consumer releases all first.
    all()?;
    Ok(())
}

/// Returns a buffer, or `None` if all of them are under way.
fn loan(publisher: &Publisher<ipc::Service, [u8], ()>, case: Case) -> Result<Option<Buffer>> {
    match publisher.loan_slice_uninit(case.bytes) {
        Ok(buffer) => Ok(Some(buffer)),
        Err(LoanError::OutOfMemory) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes one byte of each page, or all bytes.
fn fill(bytes: &mut [MaybeUninit<u8>], case: Case, number: usize) {
    let value = MaybeUninit::new(number as u8);
    if case.all_bytes {
        bytes.fill(value);
    } else {
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = value);
    }
}

fn check(bytes: &[u8], case: Case, number: usize) -> Result<()> {
    let is_right = if case.all_bytes {
        bytes.iter().fold(0_u8, |all, byte| all | (byte ^ number as u8)) == 0
    } else {
        bytes.iter().step_by(PAGE).all(|byte| *byte == number as u8)
    };
    if is_right && bytes.len() == case.bytes {
        return Ok(());
    }
    Err(format!("buffer {number} is wrong").into())
}

/// Attempts until there is a result, and waits for a notification between.
///
/// A listener can take a notification together with its datagram, which the next notifications then
/// lack. So no side waits in the set before `try_wait` found no notification.
fn wait_for<T>(
    mut attempt: impl FnMut() -> Result<Option<T>>,
    listener: &Listener<ipc::Service>,
    set: &WaitSet<ipc::Service>,
    mut other_runs: impl FnMut() -> Result<bool>,
) -> Result<T> {
    loop {
        if let Some(result) = attempt()? {
            return Ok(result);
        }
        if listener.try_wait(|_| {})? > 0 {
            continue;
        }
        match set.wait_and_process_once_with_timeout(|_| CallbackProgression::Stop, TIMEOUT)? {
            WaitSetRunResult::StopRequest | WaitSetRunResult::Interrupt => {}
            WaitSetRunResult::AllEventsHandled if other_runs()? => {}
            WaitSetRunResult::AllEventsHandled => return Err("the other process ended".into()),
            WaitSetRunResult::TerminationRequest => return Err("a signal came".into()),
        }
    }
}

fn buffers(node: &Node<ipc::Service>) -> Result<Buffers> {
    let service = node
        .service_builder(&"buffers".try_into()?)
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(1)
        .subscriber_max_buffer_size(DEPTH)
        .subscriber_max_borrowed_samples(1);
    Ok(service.open_or_create()?)
}

fn listener(node: &Node<ipc::Service>, event: &str) -> Result<Listener<ipc::Service>> {
    let service = node.service_builder(&event.try_into()?).event().open_or_create()?;
    Ok(service.listener_builder().create()?)
}

fn notifier(node: &Node<ipc::Service>, event: &str) -> Result<Notifier<ipc::Service>> {
    let service = node.service_builder(&event.try_into()?).event().open_or_create()?;
    Ok(service.notifier_builder().create()?)
}

/// The producer, which does not outlive the measurement.
struct Producer(Child);

impl Drop for Producer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The files of one measurement. The consumer removes them in the end, or else the producer.
struct Domain {
    /// The process ID.
    consumer: u32,
}

impl Domain {
    fn directory(&self) -> String {
        format!("/tmp/pbiceoryx2_{}", self.consumer)
    }

    /// The beginning of the names of all files.
    fn prefix(&self) -> String {
        format!("pbiceoryx2_{}_", self.consumer)
    }

    fn node(&self) -> Result<Node<ipc::Service>> {
        let mut config = Config::default();
        config.global.set_root_path(&Path::new(self.directory().as_bytes())?);
        config.global.prefix = FileName::new(self.prefix().as_bytes())?;
        Ok(NodeBuilder::new().config(&config).create()?)
    }

    /// Whether this process is the producer, and the consumer still runs.
    fn consumer_runs(&self) -> bool {
        std::os::unix::process::parent_id() == self.consumer
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.consumer_runs() {
            return;
        }
        let _ = std::fs::remove_dir_all(self.directory());
        for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&self.prefix()) {
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}
