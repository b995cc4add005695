//! The relay of conformance.rs over the real kernel and epoll: the same worker returns the same
//! bytes.

mod relay;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::scope;

use millrace_engine::{Address, Clock, Engine, EngineOptions, EpollEngine, Wake};
use relay::{How, Relay};

/// Sends back what it reads, until the end.
fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 10_000];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        stream.write_all(&bytes[..count]).expect("the relay reads while it is written to");
    }
}

/// Sends a pattern and its end, reads at the same time, and compares.
fn converse(proxy: SocketAddr, length: usize, salt: usize) {
    let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + at / 251 + salt) as u8).collect();
    let mut stream = TcpStream::connect(proxy).expect("the relay listens");
    let mut writer = stream.try_clone().expect("a socket can be shared");
    scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&bytes).expect("the relay takes everything");
            writer.shutdown(Shutdown::Write).expect("the connection is open");
        });
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("the stream ends in order");
        assert!(got == bytes, "{} bytes came for {length}", got.len());
    });
}

fn relay_over_epoll(how: How, budget_bytes: usize) {
    let origin = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = origin.local_addr().expect("it is bound");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = listener.local_addr().expect("it is bound");
    listener.set_nonblocking(true).expect("a socket option");
    let stop = Arc::new(AtomicBool::new(false));
    let lengths = [0, 1, 700, 70_000, 2_000_000];
    scope(|scope| {
        let (send_waker, waker) = channel();
        let stopped = stop.clone();
        let worker = scope.spawn(move || {
            let options = EngineOptions { budget_bytes, log: None, clock: Clock::new() };
            let mut engine = EpollEngine::new(options).expect("this kernel has epoll");
            let budget = engine.budget().clone();
            let listener = engine.adopt(OwnedFd::from(listener)).expect("room for a listener");
            send_waker.send(engine.waker()).expect("the test waits for it");
            let origin = Address::Tcp(address);
            let mut relay = Relay::new(engine, listener, origin, how, stopped);
            while relay.turn() {}
            budget.used()
        });
        scope.spawn(move || {
            for _ in lengths {
                let (stream, _) = origin.accept().expect("the relay connects");
                scope.spawn(|| echo(stream));
            }
        });
        let clients: Vec<_> = lengths
            .into_iter()
            .enumerate()
            .map(|(salt, length)| scope.spawn(move || converse(proxy, length, salt)))
            .collect();
        for client in clients {
            client.join().expect("a client gets its bytes");
        }
        stop.store(true, Ordering::Release);
        waker.recv().expect("the worker began").wake();
        assert_eq!(worker.join().expect("the worker ends"), 0, "all held bytes were released");
    });
}

#[test]
fn a_relay_by_copy_returns_every_byte() {
    relay_over_epoll(How::Copy, 1_000_000);
}

#[test]
fn a_relay_by_copy_with_hardly_any_budget_returns_every_byte() {
    relay_over_epoll(How::Copy, 1000);
}

#[test]
fn a_relay_by_splice_returns_every_byte() {
    relay_over_epoll(How::Splice, 1_000_000);
}

#[test]
fn a_relay_that_sends_and_then_splices_returns_every_byte() {
    relay_over_epoll(How::SendThenSplice, 1_000_000);
}
