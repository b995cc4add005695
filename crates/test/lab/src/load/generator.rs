//! The event loop: begins requests at their planned times and receives responses.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use millrace_sys::{Errno, Events, Poller, Readiness, Timer};

use crate::load::connection::{ConnectionError, LoadConnection, Received};
use crate::load::pattern::Pattern;
use crate::load::plan::{PlannedRequest, RequestPlan};
use crate::load::recorder::Recorder;
use crate::load::report::LoadReport;
use crate::load::response::{ExpectedObject, ReceivedResponse, ResponseError};
use crate::load::settings::{ConnectionReuse, LoadSettings};

/// Runs a plan. Each request begins at its planned time, however many others are under way.
///
/// The number of connections is bounded by the descriptors and ports of this machine. A run that
/// reaches such a bound ends with [`LoadReport::failure`]: its load would depend on the server.
///
/// # Errors
/// The event loop could not be made, or failed.
pub fn run(plan: &mut dyn RequestPlan, settings: &LoadSettings) -> Result<LoadReport, String> {
    let mut generator = Generator::new(plan, settings).map_err(|error| error.to_string())?;
    generator.run().map_err(|error| format!("epoll: {error}"))?;
    let (now, cpu) = (generator.begun.elapsed(), millrace_sys::thread_cpu_time());
    Ok(generator.recorder.finish(now, cpu - generator.cpu_before))
}

struct Generator<'a> {
    plan: &'a mut dyn RequestPlan,
    settings: &'a LoadSettings,
    /// The parts of all requests before and after the number of a file.
    request_start: [String; 2],
    request_end: String,
    poller: Poller,
    timer: Timer,
    slots: Vec<Slot>,
    /// Slots without a connection.
    free: Vec<u32>,
    open_count: usize,
    /// Slots with idle connections, by user.
    idle: HashMap<u32, Vec<u32>>,
    /// Requests that wait for a connection of a pool.
    queue: VecDeque<PlannedRequest>,
    recorder: Recorder,
    pattern: Pattern,
    room: Vec<u8>,
    /// The length of the only object, if the plan does not know it and a response has shown it.
    object_bytes: Option<u64>,
    begun: Instant,
    cpu_before: Duration,
}

/// A place for a connection. Events carry the generation, so those of an earlier connection in the
/// same place are ignored.
#[derive(Default)]
struct Slot {
    connection: Option<LoadConnection>,
    generation: u32,
}

/// The number of the timer's events. No slot has it, because there are fewer descriptors.
const TIMER: u64 = u64::MAX;
/// Events of one wait.
const EVENTS: usize = 256;
/// Planned requests that begin before events are handled again.
const BATCH: usize = 64;
/// The bytes of one receive.
const ROOM_BYTES: usize = 65_536;

impl<'a> Generator<'a> {
    fn new(plan: &'a mut dyn RequestPlan, settings: &'a LoadSettings) -> Result<Self, Errno> {
        let (poller, timer) = (Poller::new()?, Timer::new()?);
        poller.add_listener(timer.as_fd(), TIMER)?;
        let target = &settings.target;
        Ok(Self {
            recorder: Recorder::new(plan.time()),
            plan,
            settings,
            request_start: [target.request_start(None), target.request_start(Some(0))],
            request_end: target.request_end(settings.reuse),
            poller,
            timer,
            slots: Vec::new(),
            free: Vec::new(),
            open_count: 0,
            idle: HashMap::new(),
            queue: VecDeque::new(),
            pattern: Pattern::new(),
            room: vec![0; ROOM_BYTES],
            object_bytes: None,
            begun: Instant::now(),
            cpu_before: millrace_sys::thread_cpu_time(),
        })
    }

    fn run(&mut self) -> Result<(), Errno> {
        let mut events = Events::new(EVENTS);
        let mut next = self.plan.advance();
        let end = self.plan.time() + self.settings.drain;
        while self.recorder.report.failure.is_none() {
            for _ in 0..BATCH {
                let Some(due) = next.filter(|next| next.at <= self.begun.elapsed()) else { break };
                self.recorder.begin(due.at, self.begun.elapsed());
                self.start(due);
                next = self.plan.advance();
            }
            self.serve_queue();
            let is_over = next.is_none() && self.recorder.outstanding() == 0;
            let now = self.begun.elapsed();
            let wake = next.map_or(end, |next| next.at);
            if is_over || (next.is_none() && now >= end) {
                break;
            }
            let wait = wake.saturating_sub(now);
            if !wait.is_zero() {
                self.timer.set_after(wait);
            }
            match self.poller.wait(&mut events, if wait.is_zero() { Some(0) } else { None }) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            for (token, readiness) in events.by_ref() {
                if token != TIMER {
                    self.handle(token, readiness);
                }
            }
        }
        Ok(())
    }

    /// Begins a request on an idle or a new connection, or queues it.
    fn start(&mut self, request: PlannedRequest) {
        if let Some(slot) = self.idle.get_mut(&request.user).and_then(Vec::pop) {
            return self.begin_on(slot, request);
        }
        match self.settings.reuse {
            ConnectionReuse::Pool(_) => self.queue.push_back(request),
            _ => self.start_on_new(request),
        }
    }

    /// Opens connections for requests that wait, up to the bound of the pool.
    fn serve_queue(&mut self) {
        let ConnectionReuse::Pool(connections_max) = self.settings.reuse else { return };
        while self.open_count < connections_max
            && self.recorder.report.failure.is_none()
            && let Some(request) = self.queue.pop_front()
        {
            self.start_on_new(request);
        }
    }

    fn start_on_new(&mut self, request: PlannedRequest) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let count = self.recorder.report.connections as usize;
        let source = self.settings.sources.get(count % self.settings.sources.len().max(1));
        self.recorder.report.connections += 1;
        let token = u64::from(self.slots[slot as usize].generation) << 32 | u64::from(slot);
        let address = self.settings.target.address;
        let opened =
            LoadConnection::open(source.copied(), address, request.user, &self.poller, token);
        match opened {
            Ok(connection) => {
                self.slots[slot as usize].connection = Some(connection);
                self.open_count += 1;
                self.begin_on(slot, request);
            }
            Err(error) => {
                self.free.push(slot);
                let kind = ConnectionError::Connect(error);
                self.recorder.fail(false, kind.to_string(), self.begun.elapsed());
                if is_bound_of_machine(error) {
                    let open = self.open_count;
                    self.recorder.report.failure =
                        Some(format!("with {open} open connections, connect: {error}"));
                }
            }
        }
    }

    /// Begins a request on a connection that serves none.
    fn begin_on(&mut self, slot: u32, request: PlannedRequest) {
        let bytes = self.plan.object_bytes(request.file);
        let expected = ExpectedObject { file: request.file, bytes };
        let number = request.file.map(|file| file.to_string()).unwrap_or_default();
        let start = &self.request_start[usize::from(request.file.is_some())];
        let parts = [start.as_bytes(), number.as_bytes(), self.request_end.as_bytes()];
        let connection = self.slots[slot as usize].connection.as_mut();
        let connection = connection.expect("the slot has a connection");
        connection.begin(request, expected, parts);
        let sent = connection.send();
        self.count_sent(slot, sent);
    }

    fn count_sent(&mut self, slot: u32, sent: Result<bool, ConnectionError>) {
        match sent {
            Ok(is_sent) => self.recorder.report.sent += u64::from(is_sent),
            Err(error) => self.fail(slot, &error),
        }
    }

    /// Handles the readiness of a connection.
    fn handle(&mut self, token: u64, readiness: Readiness) {
        let (slot, generation) = (token as u32, (token >> 32) as u32);
        if self.slots[slot as usize].generation != generation {
            return;
        }
        if readiness.is_writable()
            && let Some(connection) = &mut self.slots[slot as usize].connection
        {
            let sent = connection.finish_connect().and_then(|()| connection.send());
            self.count_sent(slot, sent);
        }
        if !readiness.is_readable() {
            return;
        }
        while self.slots[slot as usize].generation == generation
            && let Some(connection) = &mut self.slots[slot as usize].connection
        {
            match connection.receive(&self.pattern, &mut self.room) {
                Ok(Received::Nothing) => return,
                Ok(Received::Bytes { response, is_all }) => {
                    if let Some(response) = response {
                        self.complete(slot, response);
                    }
                    if is_all && !readiness.must_drain() {
                        return;
                    }
                }
                Ok(Received::End(response)) => {
                    match response {
                        Some(response) => self.complete(slot, response),
                        None => self.close(slot),
                    }
                    return;
                }
                Err(error) => self.fail(slot, &error),
            }
        }
    }

    fn complete(&mut self, slot: u32, mut response: ReceivedResponse) {
        let connection = self.slots[slot as usize].connection.as_mut();
        let connection = connection.expect("a connection has received the response");
        let request = connection.request.take().expect("idle connections have no responses");
        let user = connection.user;
        let has_length = self.plan.object_bytes(request.file).is_some();
        if !has_length && response.status == 200 {
            let bytes = *self.object_bytes.get_or_insert(response.body_bytes);
            response.is_wrong |= bytes != response.body_bytes;
        }
        self.recorder.complete(request.at, &response, self.begun.elapsed());
        let idle_max = match self.settings.reuse {
            ConnectionReuse::Http10 | ConnectionReuse::Close => 0,
            ConnectionReuse::PerUser(count) | ConnectionReuse::Pool(count) => count,
        };
        if !response.is_persistent || idle_max == 0 {
            return self.close(slot);
        }
        if let Some(request) = self.queue.pop_front() {
            return self.begin_on(slot, request);
        }
        let idle = self.idle.entry(user).or_default();
        if idle.len() < idle_max { idle.push(slot) } else { self.close(slot) }
    }

    fn fail(&mut self, slot: u32, error: &ConnectionError) {
        let connection = self.slots[slot as usize].connection.as_ref();
        let is_idle = connection.is_some_and(|connection| connection.request.is_none());
        let is_cut = match error {
            ConnectionError::Response(error) => *error == ResponseError::Cut,
            _ => connection.is_some_and(LoadConnection::has_part_of_response),
        };
        match is_idle {
            false => self.recorder.fail(is_cut, error.to_string(), self.begun.elapsed()),
            // A server may close an idle connection in any way. Bytes without a request are wrong.
            true if matches!(error, ConnectionError::Receive(_)) => {}
            true => self.recorder.count_error(error.to_string()),
        }
        self.close(slot);
    }

    /// Closes a connection.
    fn close(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        let connection = place.connection.take().expect("it was open until now");
        place.generation = place.generation.wrapping_add(1);
        self.free.push(slot);
        self.open_count -= 1;
        if let Some(idle) = self.idle.get_mut(&connection.user) {
            idle.retain(|&other| other != slot);
        }
    }
}

/// Returns whether this machine has no room for another connection.
fn is_bound_of_machine(error: Errno) -> bool {
    // ENOSPC: epoll has no room. EADDRNOTAVAIL: all ports of the source addresses are in use.
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::NOSPC, Errno::ADDRNOTAVAIL]
        .contains(&error)
}
