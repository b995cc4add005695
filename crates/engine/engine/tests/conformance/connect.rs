//! Connections that the engine opens over TCP, UDP and Unix sockets: established, refused and
//! failed ones.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use super::common::*;
use millrace_engine::{Address, Engine, Error};

#[test]
fn bytes_that_a_server_sends_first_are_received() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let mut engine = engine();
        let listener = TcpListener::bind(local).unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"welcome").unwrap();
            let mut read = String::new();
            peer.read_to_string(&mut read).unwrap();
            read
        });
        let (fd, connected) = connect(&mut engine, &address);
        assert_eq!(connected, Ok(()));
        engine.recv(&fd, 100, token(1));
        assert_eq!(received(&mut engine).1.unwrap(), b"welcome");
        engine.send(&fd, &[b"hello"], token(2));
        assert_eq!(sent(&mut engine).1, Ok(()));
        engine.close(fd);
        assert!(poll_all(&mut engine).is_empty());
        assert_eq!(server.join().unwrap(), "hello");
    }
}

#[test]
fn connecting_without_a_listener_fails() {
    let mut engine = engine();
    let folder = Folder::new("connect");
    let stale = folder.0.join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [
        Address::Tcp(address),
        Address::Unix(Arc::from(stale)),
        Address::Unix(Arc::from(folder.0.join("missing"))),
    ] {
        let (fd, connected) = connect(&mut engine, &address);
        assert_eq!(connected, Err(Error::Refused), "{address}");
        engine.close(fd);
    }
    assert_eq!(engine.descriptors(), 0);
}

#[test]
fn an_invalid_address_is_an_error() {
    let mut engine = engine();
    // A link-local address without its link (ipv6(7), sin6_scope_id): EINVAL on every host.
    let address = Address::Tcp("[fe80::1]:1".parse().unwrap());
    let (fd, connected) = connect(&mut engine, &address);
    assert_eq!(connected, Err(Error::Other(22)));
    engine.close(fd);
    let long = Address::Unix(Arc::from(std::path::Path::new(&"x".repeat(200))));
    assert!(engine.connect(&long, token(1)).is_err());
    assert_eq!(engine.descriptors(), 0);
}

#[test]
fn a_unix_listener_with_a_full_backlog_refuses() {
    let mut engine = engine();
    let folder = Folder::new("backlog");
    let path = folder.0.join("socket");
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let address = Address::Unix(Arc::from(path));
    let (first, connected) = connect(&mut engine, &address);
    assert_eq!(connected, Ok(()));
    let (second, connected) = connect(&mut engine, &address);
    assert_eq!(connected, Err(Error::Refused));
    engine.close(first);
    engine.close(second);
}

#[test]
fn unix_streams_carry_bytes_and_their_end() {
    let mut engine = engine();
    let folder = Folder::new("unix");
    let path = folder.0.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let (fd, connected) = connect(&mut engine, &Address::Unix(Arc::from(path)));
    assert_eq!(connected, Ok(()));
    let (mut peer, _) = listener.accept().unwrap();
    engine.send(&fd, &[b"question"], token(1));
    assert_eq!(sent(&mut engine).1, Ok(()));
    let mut bytes = [0; 8];
    peer.read_exact(&mut bytes).unwrap();
    peer.write_all(b"answer").unwrap();
    drop(peer);
    assert_eq!(receive_all(&mut engine, &fd), b"answer");
    engine.close(fd);
}

#[test]
fn datagrams_come_one_at_a_time_and_empty_ones_not_at_all() {
    let mut engine = engine();
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (fd, connected) = connect(&mut engine, &Address::Udp(server.local_addr().unwrap()));
    assert_eq!(connected, Ok(()));
    engine.send(&fd, &[b"que", b"stion"], token(1));
    assert_eq!(sent(&mut engine).1, Ok(()));
    let mut bytes = [0; 100];
    let (count, client) = server.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"question");
    for datagram in ["one", "", "two", "three"] {
        server.send_to(datagram.as_bytes(), client).unwrap();
    }
    for expected in ["one", "two", "three"] {
        engine.recv(&fd, 512, token(2));
        assert_eq!(received(&mut engine).1.unwrap(), expected.as_bytes());
    }
    engine.recv(&fd, 512, token(2));
    assert!(poll_all(&mut engine).is_empty());
    drop(server);
    engine.send(&fd, &[b"anybody?"], token(3));
    assert_eq!(sent(&mut engine).1, Ok(()));
    assert_eq!(received(&mut engine).1, Err(Error::Refused));
    engine.close(fd);
}

/// Checks the options of the sockets themselves, since the engine does not expose them.
#[test]
fn congestion_is_set_on_a_connection_and_handed_down_by_a_listener() {
    let mut engine = engine();
    let (listener, address) = listener(&mut engine);
    let default = millrace_sys::default_congestion().unwrap();
    let other = if default == "reno" { "cubic" } else { "reno" };
    engine.set_congestion(&listener, other);
    engine.cancel_accept(&listener);
    let (opened, connected) = connect(&mut engine, &Address::Tcp(address));
    assert_eq!(connected, Ok(()));
    engine.accept(&listener, token(0));
    let (fd, _) = accepted(&mut engine);
    let mut congestion = |fd| {
        let detached = engine.detach(fd);
        let name = millrace_sys::congestion(detached.as_fd()).unwrap();
        (name, engine.adopt(detached).unwrap())
    };
    let ((of_accepted, fd), (of_opened, opened)) = (congestion(fd), congestion(opened));
    assert_eq!((of_accepted.as_str(), of_opened.as_str()), (other, default.as_str()));
    engine.set_congestion(&opened, other);
    engine.set_congestion(&opened, "no-such-thing");
    let detached = engine.detach(opened);
    assert_eq!(millrace_sys::congestion(detached.as_fd()).unwrap(), other);
    engine.close(fd);
    engine.close(listener);
}

#[test]
fn congestion_control_of_a_unix_socket_is_ignored() {
    let mut engine = engine();
    let (end, mut peer) = UnixStream::pair().unwrap();
    let fd = engine.adopt(end.into()).unwrap();
    engine.set_congestion(&fd, "reno");
    engine.send(&fd, &[b"still here"], token(1));
    assert_eq!(sent(&mut engine).1, Ok(()));
    engine.close(fd);
    let mut read = String::new();
    peer.read_to_string(&mut read).unwrap();
    assert_eq!(read, "still here");
}
