//! A server and a program that responds to its requests, in two threads of one process.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use iolite::limits::BLOCK_BYTES;
use iolite::{
    Account, Aggregate, ChannelError, Error, ProgramConnection, ProgramListener, ProgramOptions,
    ProgramResponse, UnsealedMemory,
};
use millrace_sys::{Errno, PacketEvents};

/// A path for a socket, which is removed at the end.
struct SocketPath(PathBuf);

impl SocketPath {
    fn new(name: &str) -> Self {
        let file = format!("iolite-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(file))
    }

    fn connect(&self) -> ProgramConnection {
        ProgramConnection::connect(&self.0, options()).expect("the program listens")
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options() -> ProgramOptions {
    ProgramOptions {
        slab_bytes: 64 << 20,
        account: Account::new(64 << 20),
        pool_bytes: 8 * BLOCK_BYTES,
        header_bytes_max: 1000,
    }
}

fn send(server: &mut ProgramConnection, id: u64, variables: &[(&str, &str)], body: &[u8]) -> bool {
    let body = match body.len() {
        0 => Aggregate::new(),
        _ => server.share(body).expect("memory"),
    };
    let variables =
        variables.iter().map(|(name, value)| (name.as_bytes(), std::iter::once(value.as_bytes())));
    server.try_send(id, variables, &body).expect("the program is there")
}

/// Waits for the next response.
fn receive(server: &mut ProgramConnection) -> Result<ProgramResponse, ChannelError> {
    loop {
        if let Some(response) = server.try_receive()? {
            return Ok(response);
        }
        if !server.prepare_to_wait()? {
            millrace_sys::wait_for_packet(server.socket(), PacketEvents::Readable, None, 60_000)
                .expect("poll");
        }
    }
}

fn sealed(bytes: &[u8]) -> Aggregate {
    let mut memory = UnsealedMemory::new(bytes.len()).expect("memory");
    memory.write(bytes);
    memory.seal().expect("no mapping").into_slice().expect("a mapping").into()
}

/// Responds to this many requests: with the variable `TEXT` as header, and the body reversed; a
/// long one from a sealed file.
fn respond(mut program: ProgramListener, count: usize) {
    for _ in 0..count {
        let request = program.receive().expect("a request");
        let header = request.variable(b"TEXT").expect("it is set").to_vec();
        let mut body = request.body().to_vec();
        body.reverse();
        let body = match body.len() {
            0..1000 => Aggregate::from_bytes(&body, program.slab()).expect("memory"),
            _ => sealed(&body),
        };
        program.respond(&request, &header, body).expect("few slices");
    }
    program.close();
}

#[test]
fn requests_and_responses_of_all_sizes() {
    let path = SocketPath::new("sizes");
    let program = ProgramListener::bind(&path.0, 0o600).unwrap();
    let mut server = path.connect();
    let lengths = [0, 1, 100, 999, 1000, 70_000, 1_000_000];
    let program = thread::spawn(move || respond(program, lengths.len()));
    for (id, length) in (10..).zip(lengths) {
        let body: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        assert!(send(&mut server, id, &[("OTHER", ""), ("TEXT", "a header")], &body));
        let response = receive(&mut server).unwrap();
        let mut expected = body;
        expected.reverse();
        assert_eq!((response.id, &response.header[..]), (id, &b"a header"[..]));
        assert!(response.body.to_vec() == expected, "{length} bytes");
        let is_sealed = response.body.slices().all(|slice| slice.sendfile_source().is_some());
        assert_eq!(is_sealed, length == 0 || length >= 1000);
    }
    // The program waits until the last response was received.
    assert_eq!(receive(&mut server).unwrap_err(), ChannelError::Closed);
    program.join().unwrap();
}

#[test]
fn many_requests_of_several_servers_at_a_time() {
    const EACH: u64 = 2000;
    let path = SocketPath::new("many");
    let program = ProgramListener::bind(&path.0, 0o600).unwrap();
    let servers = [0, 1, 2].map(|number| {
        let mut server = path.connect();
        thread::spawn(move || {
            let (mut sent, mut received) = (0, 0);
            let text = number.to_string();
            while received < EACH {
                while sent < EACH
                    && send(&mut server, sent, &[("TEXT", &text)], &text.as_bytes().repeat(300))
                {
                    sent += 1;
                }
                let response = receive(&mut server).unwrap();
                assert_eq!((response.id, &response.header[..]), (received, text.as_bytes()));
                assert_eq!(response.body.to_vec(), text.as_bytes().repeat(300));
                received += 1;
            }
        })
    });
    respond(program, 3 * EACH as usize);
    servers.into_iter().for_each(|server| server.join().unwrap());
}

#[test]
fn responses_in_any_order_and_for_a_server_that_has_gone() {
    let path = SocketPath::new("order");
    let mut program = ProgramListener::bind(&path.0, 0o600).unwrap();
    let (mut server, mut gone) = (path.connect(), path.connect());
    assert!(send(&mut gone, 7, &[("TEXT", "c")], b""));
    for (id, text) in [(1, "a"), (2, "b")] {
        assert!(send(&mut server, id, &[("TEXT", text)], b""));
    }
    let mut requests: Vec<_> = (0..3).map(|_| program.receive().unwrap()).collect();
    requests.sort_by_key(|request| request.variable(b"TEXT").unwrap().to_vec());
    drop(gone);
    for request in requests.iter().rev() {
        let header = request.variable(b"TEXT").unwrap();
        program.respond(request, header, Aggregate::new()).unwrap();
    }
    assert_eq!(receive(&mut server).unwrap().header, b"b");
    assert_eq!(receive(&mut server).unwrap().header, b"a");
}

#[test]
fn an_interrupt_ends_one_wait() {
    const ROUNDS: usize = 1000;
    let path = SocketPath::new("wait");
    let mut program = ProgramListener::bind(&path.0, 0o600).unwrap();
    let interrupter = program.interrupter();
    let (ended, ends) = mpsc::channel();
    let program = thread::spawn(move || {
        for _ in 0..ROUNDS {
            assert_eq!(program.receive().unwrap_err(), Error::Interrupted);
            ended.send(()).unwrap();
        }
        respond(program, 1);
    });
    for round in 0..ROUNDS {
        assert_eq!(ends.try_recv(), Err(mpsc::TryRecvError::Empty), "round {round}");
        interrupter.clone().interrupt();
        ends.recv().unwrap();
    }
    let mut server = path.connect();
    assert!(send(&mut server, 1, &[("TEXT", "a")], b""));
    assert_eq!(receive(&mut server).unwrap().header, b"a");
    drop(server);
    program.join().unwrap();
    interrupter.interrupt();
}

#[test]
fn an_interrupt_comes_before_requests_and_loses_none() {
    let path = SocketPath::new("before");
    let mut program = ProgramListener::bind(&path.0, 0o600).unwrap();
    let mut server = path.connect();
    for id in 0..3 {
        assert!(send(&mut server, id, &[("TEXT", "a")], b""));
    }
    for id in 0..3 {
        // Several interrupts count as one.
        program.interrupter().interrupt();
        program.interrupter().interrupt();
        assert_eq!(program.receive().unwrap_err(), Error::Interrupted);
        let request = program.receive().unwrap();
        program.respond(&request, b"b", Aggregate::new()).unwrap();
        // An interrupted program wakes the server of an earlier response.
        program.interrupter().interrupt();
        assert_eq!(program.receive().unwrap_err(), Error::Interrupted);
        assert_eq!(receive(&mut server).unwrap().id, id);
    }
}

#[test]
fn responses_of_many_parts() {
    let path = SocketPath::new("parts");
    let mut program = ProgramListener::bind(&path.0, 0o600).unwrap();
    let mut server = path.connect();
    for id in 0..4 {
        assert!(send(&mut server, id, &[], b""));
    }
    let piece = sealed(b"piece");
    let of_parts = move |count: usize| {
        let mut body = Aggregate::new();
        // The same piece twice in a row is two slices.
        (0..count).for_each(|_| body.concatenate(piece.clone()));
        body
    };
    let program = thread::spawn(move || {
        for expected in [true, true, false] {
            let request = program.receive().unwrap();
            let body = of_parts(if expected { 2000 } else { 2049 });
            let refused = program.respond(&request, b"long", body);
            assert_eq!(refused.is_ok(), expected, "earlier responses wait for room");
            if !expected {
                assert_eq!(refused.unwrap_err(), ChannelError::Parts(2049));
                program.respond(&request, b"short", Aggregate::new()).unwrap();
            }
        }
        let request = program.receive().unwrap();
        program.respond(&request, b"last", of_parts(1)).unwrap();
        program.close();
    });
    for (header, length) in [("long", 10_000), ("long", 10_000), ("short", 0), ("last", 5)] {
        let response = receive(&mut server).unwrap();
        assert_eq!(response.header, header.as_bytes());
        assert_eq!(response.body.to_vec(), b"piece".repeat(length / 5));
    }
    assert_eq!(receive(&mut server).unwrap_err(), ChannelError::Closed);
    program.join().unwrap();
}

#[test]
fn a_header_that_is_too_long() {
    let path = SocketPath::new("header");
    let mut program = ProgramListener::bind(&path.0, 0o600).unwrap();
    let mut server = path.connect();
    assert!(send(&mut server, 1, &[], b""));
    let request = program.receive().unwrap();
    assert_eq!(request.variable(b"TEXT"), None);
    for (length, received) in [(1000, 1000), (1001, 0), (200_000, 0), (3, 3)] {
        program.respond(&request, &vec![b'h'; length], sealed(b"body")).unwrap();
        let response = receive(&mut server).unwrap();
        assert_eq!((response.id, response.body.to_vec()), (1, b"body".to_vec()), "{length}");
        assert_eq!(response.header, vec![b'h'; received]);
    }
}

#[test]
fn a_program_that_is_not_there() {
    let path = SocketPath::new("none");
    let refused = |path: &SocketPath| ProgramConnection::connect(&path.0, options()).unwrap_err();
    assert_eq!(refused(&path), ChannelError::Kernel("connect", Errno::NOENT));
    drop(ProgramListener::bind(&path.0, 0o600).unwrap());
    assert_eq!(refused(&path), ChannelError::Kernel("connect", Errno::CONNREFUSED));
}
