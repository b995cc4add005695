//! Programs in C that respond to requests. Each is a process; the test is its server.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
mod linked;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use iolite::limits::BLOCK_BYTES;
use iolite::{
    Account, Aggregate, ChannelError, ProgramConnection, ProgramOptions, ProgramResponse,
};
use millrace_sys::PacketEvents;

use linked::{compile_example, compile_test};

/// No response takes longer.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A running program. It is killed at the end.
struct Program {
    process: Child,
    socket: PathBuf,
}

impl Program {
    /// Starts `program`, which listens on a socket of this name.
    fn start(program: &Path, name: &str) -> Self {
        let socket = env::temp_dir().join(format!("iolite-c-{name}-{}", std::process::id()));
        let process = Command::new(program).arg(&socket).spawn().unwrap();
        Self { process, socket }
    }

    /// Starts tests/program.c.
    fn start_test(name: &str) -> Self {
        static COMPILED: OnceLock<PathBuf> = OnceLock::new();
        Self::start(COMPILED.get_or_init(|| compile_test("program")), name)
    }

    /// Connects as soon as the program listens.
    fn connect(&mut self) -> ProgramConnection {
        let begun = Instant::now();
        loop {
            let options = ProgramOptions {
                slab_bytes: 64 << 20,
                account: Account::new(64 << 20),
                pool_bytes: 8 * BLOCK_BYTES,
                header_bytes_max: 1000,
            };
            match ProgramConnection::connect(&self.socket, options) {
                Ok(server) => return server,
                Err(ChannelError::Kernel("connect", _)) if begun.elapsed() < WAIT_MAX => {}
                Err(error) => panic!("{error}"),
            }
            assert_eq!(self.process.try_wait().unwrap(), None, "the program has ended");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends SIGTERM.
    fn terminate(&self) {
        let mut kill = Command::new("kill");
        kill.arg("-TERM").arg(self.process.id().to_string());
        assert!(kill.status().unwrap().success());
    }

    /// Waits until the program has ended by itself.
    fn wait(mut self) {
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

/// Sends a request with the variables `COMMAND` and `TEXT`, and some others.
fn send(server: &mut ProgramConnection, id: u64, command: &str, text: &str, body: &[u8]) {
    let body = match body.len() {
        0 => Aggregate::new(),
        _ => server.share(body).unwrap(),
    };
    let variables: [(&[u8], &[&[u8]]); 5] = [
        (b"COMMAND", &[command.as_bytes()]),
        (b"TEXT", &[text.as_bytes()]),
        (b"EMPTY", &[]),
        (b"PIECES", &[b"in ", b"", b"pieces"]),
        (b"ZERO_BYTE", &[b"a\0b"]),
    ];
    let variables = variables.iter().map(|(name, value)| (*name, value.iter().copied()));
    assert!(server.try_send(id, variables, &body).unwrap(), "there is room");
}

/// Waits for the next response.
fn receive(server: &mut ProgramConnection) -> Result<ProgramResponse, ChannelError> {
    let begun = Instant::now();
    loop {
        if let Some(response) = server.try_receive()? {
            return Ok(response);
        }
        assert!(begun.elapsed() < WAIT_MAX, "the program does not respond");
        if !server.prepare_to_wait()? {
            let wait_ms = WAIT_MAX.as_millis() as u32;
            millrace_sys::wait_for_packet(server.socket(), PacketEvents::Readable, None, wait_ms)
                .unwrap();
        }
    }
}

/// Receives a response, and checks its id, header and body.
fn expect(server: &mut ProgramConnection, id: u64, header: &str, body: &[u8]) -> ProgramResponse {
    let response = receive(server).unwrap();
    assert_eq!((response.id, &response.header[..]), (id, header.as_bytes()));
    assert!(response.body.to_vec() == body, "{} bytes", response.body.len());
    response
}

/// Lets tests/program.c end by this command, and checks that it has lost no response.
fn end(program: Program, mut server: ProgramConnection, command: &str) {
    send(&mut server, 99, command, "", b"");
    for number in 0..1000_u32 {
        let response = receive(&mut server).unwrap();
        assert_eq!((response.id, &response.header[..]), (99, &number.to_ne_bytes()[..]));
    }
    assert_eq!(receive(&mut server).unwrap_err(), ChannelError::Closed);
    program.wait();
}

fn close(program: Program, server: ProgramConnection) {
    end(program, server, "close");
}

/// Returns for each slice of the body whether it is in a file, from which it can be sent.
fn files(response: &ProgramResponse) -> Vec<bool> {
    response.body.slices().map(|slice| slice.sendfile_source().is_some()).collect()
}

#[test]
fn responses_from_sealed_and_copied_memory() {
    let mut program = Program::start_test("memory");
    let mut server = program.connect();
    for (id, length) in (1..).zip([0, 100, 1 << 20, 100]) {
        let body: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        for command in ["sealed", "copied", "both", "echo"] {
            let header = format!("Name: {command} {length}\n\n");
            send(&mut server, id, command, &header, &body);
            let response = expect(&mut server, id, &header, &body);
            let expected = match command {
                _ if length == 0 => vec![],
                "sealed" => vec![true],
                "both" => vec![false, true, false],
                // Slices of 1 MB or more are copied into sealed memory.
                _ => vec![length >= 1 << 20],
            };
            assert_eq!(files(&response), expected, "{command} {length}");
        }
    }
    close(program, server);
}

#[test]
fn responses_to_several_servers_in_another_order() {
    let mut program = Program::start_test("order");
    let mut server = program.connect();
    let (mut other, mut gone) = (program.connect(), program.connect());
    for (id, text) in [(1, "a"), (2, "b"), (3, "c")] {
        send(&mut server, id, "keep", text, b"");
    }
    // The response to each shows that the program has received the requests before it.
    for (server, text) in [(&mut other, "d"), (&mut gone, "e")] {
        send(server, 1, "keep", text, b"a body");
        send(server, 2, "echo", "f", b"another");
        expect(server, 2, "f", b"another");
    }
    drop(gone);
    send(&mut server, 4, "respond", "g", b"");
    for (id, text) in [(3, "c"), (2, "b"), (1, "a"), (4, "g")] {
        expect(&mut server, id, text, b"");
    }
    expect(&mut other, 1, "d", b"");
    drop(other);
    close(program, server);
}

#[test]
fn refused_calls_leave_the_program_usable() {
    let mut program = Program::start_test("refusals");
    let mut server = program.connect();
    send(&mut server, 1, "refusals", "", b"");
    expect(&mut server, 1, "", b"");
    send(&mut server, 2, "slices", "most", b"");
    expect(&mut server, 2, "most", &[b'a'; 2048]);
    close(program, server);
}

#[test]
fn an_interrupted_program_ends_after_its_responses() {
    let mut program = Program::start_test("interrupted");
    let mut server = program.connect();
    send(&mut server, 1, "interrupt", "a", b"");
    send(&mut server, 2, "echo", "b", b"");
    expect(&mut server, 1, "a", b"");
    expect(&mut server, 2, "b", b"");
    end(program, server, "terminate");
}

#[test]
fn a_signal_ends_the_wait_of_a_program() {
    let mut program = Program::start_test("signal");
    let mut server = program.connect();
    send(&mut server, 1, "echo", "a", b"");
    expect(&mut server, 1, "a", b"");
    program.terminate();
    assert_eq!(receive(&mut server).unwrap_err(), ChannelError::Closed);
    program.wait();
}

#[test]
fn a_destroyed_program_leaves_requests_valid() {
    let mut program = Program::start_test("destroy");
    let mut server = program.connect();
    send(&mut server, 1, "destroy", "", b"still there");
    assert_eq!(receive(&mut server).unwrap_err(), ChannelError::Closed);
    program.wait();
}

#[test]
fn the_example_of_the_man_page_responds() {
    let mut program = Program::start(&compile_example("iolite_program.7"), "example");
    let mut server = program.connect();
    let hello = "Content-Type: text/plain\n\n";
    for (id, path, query, header, name) in [
        (1, "/", "", hello, "you"),
        (2, "/", "Ada", hello, "Ada"),
        (3, "/other", "Ada", "Status: 404 Not Found\n\n", ""),
    ] {
        let variables = [("PATH_INFO", path), ("QUERY_STRING", query)];
        let variables = variables
            .map(|(name, value)| (name.as_bytes(), std::iter::once(value.as_bytes())))
            .into_iter();
        assert!(server.try_send(id, variables, &Aggregate::new()).unwrap());
        let body = format!("Hello {name}!\nThis page is the same for all.\n");
        expect(&mut server, id, header, if path == "/" { body.as_bytes() } else { b"" });
    }
    drop(server);
    // It goes on for other servers.
    let server = program.connect();
    program.terminate();
    drop(server);
    program.wait();
}
