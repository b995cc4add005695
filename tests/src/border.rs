//! Limits the counts of callgrind to the worker's own instructions, without those of the simulator.
//!
//! Callgrind toggles collection when it enters or leaves a function of [`SWITCHES`]. So [`turn`]
//! switches collection on, and each engine method switches it off until it returns. None of these
//! functions may be inlined.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{
    Address, Budget, Buffer, Completion, Engine, Error, Fd, FileRead, Instant, SharedBytes,
    ShutdownHow, Token,
};
use millrace_proxy::Worker;
use millrace_sim::{SimDetached, SimEngine, SimWaker};

/// The functions whose entries and exits toggle collection, as callgrind patterns.
pub const SWITCHES: [&str; 2] = [
    "millrace_tests::border::turn",
    "<millrace_tests::border::Border as millrace_engine::engine::Engine>::*",
];

/// A simulated engine whose methods are never inlined into the worker.
pub struct Border(pub SimEngine);

/// Runs a turn of the worker, with collection on.
#[inline(never)]
pub fn turn(worker: &mut Worker<Border>) -> bool {
    worker.run_turn()
}

impl Engine for Border {
    type DetachedFd = SimDetached;
    type Waker = SimWaker;

    #[inline(never)]
    fn now(&self) -> Instant {
        self.0.now()
    }

    #[inline(never)]
    fn read_clock(&self) -> Instant {
        self.0.read_clock()
    }

    #[inline(never)]
    fn time_of_day(&self) -> Duration {
        self.0.time_of_day()
    }

    #[inline(never)]
    fn random(&mut self) -> u64 {
        self.0.random()
    }

    #[inline(never)]
    fn budget(&self) -> &Budget {
        self.0.budget()
    }

    #[inline(never)]
    fn waker(&self) -> SimWaker {
        self.0.waker()
    }

    #[inline(never)]
    fn submit_and_wait(&mut self, deadline: Option<Instant>) {
        self.0.submit_and_wait(deadline);
    }

    #[inline(never)]
    fn next_completion(&mut self) -> Option<Completion> {
        self.0.next_completion()
    }

    #[inline(never)]
    fn recycle(&mut self, buffer: Buffer) {
        self.0.recycle(buffer);
    }

    #[inline(never)]
    fn adopt(&mut self, detached: SimDetached) -> Result<Fd, Error> {
        self.0.adopt(detached)
    }

    #[inline(never)]
    fn adopt_socket(&mut self, socket: OwnedFd) -> Result<Fd, Error> {
        self.0.adopt_socket(socket)
    }

    #[inline(never)]
    fn detach(&mut self, fd: Fd) -> SimDetached {
        self.0.detach(fd)
    }

    #[inline(never)]
    fn accept(&mut self, listener: &Fd, token: Token) {
        self.0.accept(listener, token);
    }

    #[inline(never)]
    fn cancel_accept(&mut self, listener: &Fd) {
        self.0.cancel_accept(listener);
    }

    #[inline(never)]
    fn connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error> {
        self.0.connect(address, token)
    }

    #[inline(never)]
    fn recv(&mut self, fd: &Fd, max: usize, token: Token) {
        self.0.recv(fd, max, token);
    }

    #[inline(never)]
    fn is_recv_ready(&self, fd: &Fd) -> bool {
        self.0.is_recv_ready(fd)
    }

    #[inline(never)]
    fn unacknowledged_bytes(&self, fd: &Fd) -> usize {
        self.0.unacknowledged_bytes(fd)
    }

    #[inline(never)]
    fn local_address(&self, fd: &Fd) -> Option<SocketAddr> {
        self.0.local_address(fd)
    }

    #[inline(never)]
    fn send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token) {
        self.0.send(fd, parts, token);
    }

    #[inline(never)]
    fn unsent_bytes(&self, fd: &Fd) -> usize {
        self.0.unsent_bytes(fd)
    }

    #[inline(never)]
    fn set_congestion(&mut self, fd: &Fd, name: &str) {
        self.0.set_congestion(fd, name);
    }

    #[inline(never)]
    fn shutdown(&mut self, fd: &Fd, how: ShutdownHow) {
        self.0.shutdown(fd, how);
    }

    #[inline(never)]
    fn close(&mut self, fd: Fd) {
        self.0.close(fd);
    }

    #[inline(never)]
    fn reset(&mut self, fd: Fd) {
        self.0.reset(fd);
    }

    #[inline(never)]
    fn pipe(&mut self) -> Result<(Fd, Fd), Error> {
        self.0.pipe()
    }

    #[inline(never)]
    fn splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token) {
        self.0.splice(from, into, max, token);
    }

    #[inline(never)]
    fn try_splice_in(&mut self, from: &Fd, into: &Fd, max: usize) -> Option<Result<usize, Error>> {
        self.0.try_splice_in(from, into, max)
    }

    #[inline(never)]
    fn tee(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error> {
        self.0.tee(from, into, max)
    }

    #[inline(never)]
    fn read_pipe(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
        self.0.read_pipe(from, memory)
    }

    #[inline(never)]
    fn try_recv_into(&mut self, from: &Fd, memory: &mut [u8]) -> Option<Result<usize, Error>> {
        self.0.try_recv_into(from, memory)
    }

    #[inline(never)]
    fn poll_readable(&mut self, fd: &Fd, token: Token) {
        self.0.poll_readable(fd, token);
    }

    #[inline(never)]
    fn send_shared(&mut self, fd: &Fd, parts: &[&[u8]], shared: &dyn SharedBytes, token: Token) {
        self.0.send_shared(fd, parts, shared, token);
    }

    #[inline(never)]
    fn send_file(
        &mut self,
        fd: &Fd,
        parts: &[&[u8]],
        file: &Arc<dyn FileRead>,
        at: u64,
        count: usize,
        token: Token,
    ) {
        self.0.send_file(fd, parts, file, at, count, token);
    }

    #[inline(never)]
    fn send_then_splice(
        &mut self,
        parts: &[&[u8]],
        from: &Fd,
        into: &Fd,
        max: usize,
        token: Token,
    ) {
        self.0.send_then_splice(parts, from, into, max, token);
    }

    #[inline(never)]
    fn log(&mut self, records: &[u8]) {
        self.0.log(records);
    }
}
