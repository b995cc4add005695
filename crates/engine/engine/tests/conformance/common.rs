//! An engine, and peers over real loopback sockets. Every wait ends with the awaited event. The
//! only deadline guards against hanging, and never decides whether a test passes.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Tested;
use millrace_engine::{
    Address, Clock, Completion, CompletionEvent, Engine, EngineOptions, Error, Fd, Token, TokenKind,
};

pub(crate) const PLENTY: usize = 1 << 30;

pub(crate) fn token(slot: u32) -> Token {
    Token::new(TokenKind::Client, slot, 1)
}

pub(crate) fn engine() -> Tested {
    engine_holding(PLENTY)
}

pub(crate) fn engine_holding(budget_bytes: usize) -> Tested {
    crate::prepare();
    match Tested::new(EngineOptions { budget_bytes, log: None, clock: Clock::new() }) {
        // Every test of this program needs the engine, so all are skipped.
        Err(Error::Unsupported(reason)) => {
            eprintln!("skip: {}: {}", reason.feature(), reason.reason());
            std::process::exit(0);
        }
        made => made.unwrap(),
    }
}

/// Creates a listener that accepts with `token(0)`. Returns it with its address.
pub(crate) fn listener(engine: &mut Tested) -> (Fd, SocketAddr) {
    let fd = millrace_sys::listen_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let listener = engine.adopt(fd).unwrap();
    engine.accept(&listener, token(0));
    let address = engine.local_address(&listener).unwrap();
    (listener, address)
}

/// Creates a connection of the engine. Returns it with its peer.
pub(crate) fn pair(engine: &mut Tested) -> (Fd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    (engine.adopt(OwnedFd::from(stream)).unwrap(), peer)
}

/// Like [`pair`], with small kernel buffers on the way to the peer.
pub(crate) fn narrow_pair(engine: &mut Tested) -> (Fd, TcpStream) {
    let (fd, peer) = pair(engine);
    let detached = engine.detach(fd);
    rustix::net::sockopt::set_socket_send_buffer_size(&detached, 64 * 1024).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&peer, 64 * 1024).unwrap();
    (engine.adopt(detached).unwrap(), peer)
}

/// Opens a connection to `address`. Returns its descriptor, and the result of the attempt.
pub(crate) fn connect(engine: &mut Tested, address: &Address) -> (Fd, Result<(), Error>) {
    let fd = engine.connect(address, token(9_999)).unwrap();
    match next(engine) {
        Completion { token: of, event: CompletionEvent::Connected(result) }
            if of == token(9_999) =>
        {
            (fd, result)
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the next completion, however many turns it takes.
pub(crate) fn next(engine: &mut Tested) -> Completion {
    let guard = engine.now() + Duration::from_secs(30);
    loop {
        if let Some(completion) = engine.next_completion() {
            return completion;
        }
        assert!(engine.now() < guard, "no completion within 30 s");
        engine.submit_and_wait(Some(guard));
    }
}

/// Returns all completions that are available without waiting. It polls the kernel until two turns
/// in a row return none, since a turn may submit operations that complete only in the next one.
pub(crate) fn poll_all(engine: &mut Tested) -> Vec<Completion> {
    let mut completions = Vec::new();
    let mut empty_turns = 0;
    while empty_turns < 2 {
        engine.submit_and_wait(Some(engine.now()));
        empty_turns += 1;
        while let Some(completion) = engine.next_completion() {
            completions.push(completion);
            empty_turns = 0;
        }
    }
    completions
}

/// Returns the result of the next receive, and recycles its buffer.
pub(crate) fn received(engine: &mut Tested) -> (Token, Result<Vec<u8>, Error>) {
    let Completion { token, event } = next(engine);
    match event {
        CompletionEvent::Received(Ok(buffer)) => {
            let bytes = buffer.to_vec();
            engine.recycle(buffer);
            (token, Ok(bytes))
        }
        CompletionEvent::Received(Err(error)) => (token, Err(error)),
        other => panic!("{other:?}"),
    }
}

/// Receives until the end of the stream.
pub(crate) fn receive_all(engine: &mut Tested, fd: &Fd) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        engine.recv(fd, 64 * 1024, token(1));
        match received(engine).1.unwrap() {
            some if some.is_empty() => return bytes,
            some => bytes.extend(some),
        }
    }
}

pub(crate) fn sent(engine: &mut Tested) -> (Token, Result<(), Error>) {
    match next(engine) {
        Completion { token, event: CompletionEvent::Sent(result) } => (token, result),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn accepted(engine: &mut Tested) -> (Fd, Option<SocketAddr>) {
    match next(engine) {
        Completion { event: CompletionEvent::Accepted(result), .. } => result.unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Starts a thread that reads `expected`.
pub(crate) fn reading(mut peer: TcpStream, expected: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut read = vec![0; expected.len()];
        peer.read_exact(&mut read).unwrap();
        assert!(read == expected);
    })
}

/// Creates a file that contains `bytes`.
pub(crate) fn file_of(bytes: &[u8]) -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("part", flags).unwrap());
    file.write_all(bytes).unwrap();
    file
}

/// Returns bytes in which no two words of eight bytes are equal.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let word = |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..length.div_ceil(8)).flat_map(word).take(length).collect()
}

/// A directory for one test, removed when dropped.
pub(crate) struct Folder(pub(crate) std::path::PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
