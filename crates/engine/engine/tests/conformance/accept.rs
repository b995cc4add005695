//! Listeners: starting and stopping to accept, sharing, and running out of descriptors.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use super::common::*;
use crate::Tested;
use millrace_engine::{Completion, CompletionEvent, Engine, Error, Fd};

/// Accepts without waiting. Returns the connections, and the largest number accepted in one turn.
fn accept_all(engine: &mut Tested) -> (Vec<Fd>, usize) {
    let (mut accepted, mut most) = (Vec::new(), 0);
    loop {
        engine.submit_and_wait(Some(engine.now()));
        let before = accepted.len();
        while let Some(Completion { event, .. }) = engine.next_completion() {
            let CompletionEvent::Accepted(Ok((fd, _))) = event else { panic!("{event:?}") };
            accepted.push(fd);
        }
        most = most.max(accepted.len() - before);
        if accepted.len() == before {
            return (accepted, most);
        }
    }
}

#[test]
fn accepting_returns_the_addresses_of_clients() {
    let mut engine = engine();
    let (listener, address) = listener(&mut engine);
    let clients: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
    let expected: BTreeSet<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
    let mut found = BTreeSet::new();
    for _ in &clients {
        let (fd, peer) = accepted(&mut engine);
        found.insert(peer.unwrap());
        engine.close(fd);
    }
    assert_eq!(found, expected);
    engine.close(listener);
}

#[test]
fn a_connection_to_a_wildcard_listener_has_the_address_that_the_client_used() {
    let mut engine = engine();
    let listener = millrace_sys::listen_tcp("0.0.0.0:0".parse().unwrap(), false).unwrap();
    let listener = engine.adopt(listener).unwrap();
    let port = engine.local_address(&listener).unwrap().port();
    engine.accept(&listener, token(0));
    for host in ["127.0.0.1", "127.0.0.9"] {
        let wanted: SocketAddr = format!("{host}:{port}").parse().unwrap();
        let _client = TcpStream::connect(wanted).unwrap();
        let (fd, _) = accepted(&mut engine);
        assert_eq!(engine.local_address(&fd), Some(wanted));
        engine.close(fd);
    }
    engine.close(listener);
}

#[test]
fn a_burst_takes_several_turns_and_is_accepted_whole() {
    let mut engine = engine();
    let (listener, address) = listener(&mut engine);
    let clients: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (accepted, most) = accept_all(&mut engine);
    assert_eq!((accepted.len(), most), (clients.len(), 64));
    accepted.into_iter().for_each(|fd| engine.close(fd));
    engine.close(listener);
}

#[test]
fn a_listener_that_stopped_accepting_keeps_its_backlog() {
    let mut engine = engine();
    let (listener, address) = listener(&mut engine);
    assert!(accept_all(&mut engine).0.is_empty());
    let mut client = TcpStream::connect(address).unwrap();
    engine.submit_and_wait(None);
    engine.cancel_accept(&listener);
    assert!(poll_all(&mut engine).is_empty());
    let _second = TcpStream::connect(address).unwrap();
    assert!(poll_all(&mut engine).is_empty());
    engine.accept(&listener, token(5));
    let Completion { token: of, event } = next(&mut engine);
    assert!(of == token(5) && matches!(event, CompletionEvent::Accepted(Ok(_))));
    let CompletionEvent::Accepted(Ok((fd, _))) = event else { unreachable!() };
    client.write_all(b"waited").unwrap();
    engine.cancel_accept(&listener);
    engine.recv(&fd, 100, token(6));
    assert_eq!(received(&mut engine).1.unwrap(), b"waited");
    engine.close(fd);
    engine.close(listener);
}

#[test]
fn engines_share_a_unix_listener_that_outlives_them() {
    let folder = Folder::new("shared");
    let path = folder.0.join("socket");
    let listener = millrace_sys::listen_unix(&path, 0o600).unwrap();
    let mut engines = [engine(), engine()];
    let listeners = [0, 1].map(|index| {
        let engine: &mut Tested = &mut engines[index];
        let fd = engine.adopt(listener.try_clone().unwrap()).unwrap();
        engine.accept(&fd, token(0));
        fd
    });
    let clients: Vec<_> = (0..50).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let mut count = 0;
    for engine in &mut engines {
        let (accepted, _) = accept_all(engine);
        count += accepted.len();
        accepted.into_iter().for_each(|fd| engine.close(fd));
    }
    assert_eq!(count, clients.len());
    for (engine, fd) in engines.iter_mut().zip(listeners) {
        engine.close(fd);
    }
    // Events of the closed descriptors may still be pending. No completion follows from them.
    for engine in &mut engines {
        assert!(poll_all(engine).is_empty());
    }
    // The listener is still open, but no engine watches it.
    let _waiting = UnixStream::connect(&path).unwrap();
    for engine in &mut engines {
        let before = engine.stats().stale_events;
        assert!(poll_all(engine).is_empty());
        assert_eq!(engine.stats().stale_events, before);
    }
    let fd = engines[0].adopt(listener).unwrap();
    engines[0].accept(&fd, token(1));
    let (connection, peer) = accepted(&mut engines[0]);
    assert_eq!(peer, None);
    engines[0].close(connection);
    engines[0].close(fd);
}

/// Runs the test `name` of this file in a child process, in which [`is_child`] returns true.
fn in_child(name: &str) {
    let module = module_path!().split_once("::").unwrap().1;
    let path = format!("{module}::{name}");
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &path, "--nocapture", "--test-threads=1"])
        .env("MILLRACE_TEST_CHILD", "1")
        .status()
        .unwrap();
    assert!(status.success());
}

fn is_child() -> bool {
    std::env::var_os("MILLRACE_TEST_CHILD").is_some()
}

/// The limit of descriptors applies to the whole process, so the test runs in one of its own.
#[test]
fn accepting_stops_without_descriptors_and_resumes_with_the_backlog() {
    if !is_child() {
        return in_child("accepting_stops_without_descriptors_and_resumes_with_the_backlog");
    }
    let mut engine = engine();
    let (listener, address) = listener(&mut engine);
    let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let open = millrace_sys::descriptor_count().unwrap();
    millrace_sys::lower_descriptor_limit(open as u64 + 5).unwrap();
    let mut connections = Vec::new();
    let error = loop {
        match next(&mut engine).event {
            CompletionEvent::Accepted(Ok((fd, _))) => connections.push(fd),
            CompletionEvent::Accepted(Err(error)) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error, Error::OutOfDescriptors);
    // The limit bounds the numbers of descriptors, not their count. So five connections were
    // accepted, or more if `open` also counts inherited descriptors with numbers above the limit.
    assert!((5..clients.len()).contains(&connections.len()), "{}", connections.len());
    assert_eq!(engine.pipe().unwrap_err(), Error::OutOfDescriptors);
    let to_itself = millrace_engine::Address::Tcp(address);
    assert_eq!(engine.connect(&to_itself, token(1)).unwrap_err(), Error::OutOfDescriptors);
    assert!(poll_all(&mut engine).is_empty(), "accepting has stopped");
    let mut served = connections.len();
    while served < clients.len() {
        connections.drain(..).for_each(|fd| engine.close(fd));
        engine.accept(&listener, token(0));
        loop {
            match next(&mut engine).event {
                CompletionEvent::Accepted(Ok((fd, _))) => connections.push(fd),
                CompletionEvent::Accepted(Err(error)) => {
                    break assert_eq!(error, Error::OutOfDescriptors);
                }
                other => panic!("{other:?}"),
            }
            if served + connections.len() == clients.len() {
                engine.cancel_accept(&listener);
                break;
            }
        }
        served += connections.len();
    }
    connections.into_iter().for_each(|fd| engine.close(fd));
    engine.close(listener);
    assert_eq!(engine.descriptors(), 0);
}
