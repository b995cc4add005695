//! Which two ends of connections the daemon brings together.

mod common;

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use common::connections::{
    Family, PAIRING_BYTES, Socket, assert_carries_bytes, paired_over, read_all, read_exactly,
    write_all,
};
use common::{Daemon, Folder, pair_by_hand, pattern};
use millrace_sys::Errno;

const MEGABYTE: usize = 1 << 20;

/// Connects from a port of the loopback address, or any if it is 0. Both ends are reset when they
/// are closed, so the ports can be used again at once.
fn connect_between(listener: &TcpListener, port: u16) -> (Socket, Socket) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let one = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let one = one.expect("a socket");
    rustix::net::sockopt::set_socket_reuseaddr(&one, true).expect("a socket");
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    rustix::net::bind(&one, &local).expect("a free port");
    rustix::net::connect(&one, &listener.local_addr().expect("an address")).expect("a connection");
    let other = listener.accept().expect("a connection").0;
    for end in [one.as_fd(), other.as_fd()] {
        millrace_sys::reset_on_close(end).expect("a socket");
    }
    (Socket::Tcp(TcpStream::from(one)), Socket::Tcp(other))
}

fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket")
}

/// Returns the port of an end that has connected.
fn port_of(socket: &Socket) -> u16 {
    let address = millrace_sys::local_address(socket.as_fd()).expect("a socket");
    address.expect("an address").port()
}

#[test]
fn a_connection_with_the_addresses_of_one_that_was_closed_is_another_one() {
    let folder = Folder::new("socket-again");
    let daemon = Daemon::start(&folder, &[]);
    let (listener, reader, writer) = (listen(), daemon.client(), daemon.client());
    let (to, from) = connect_between(&listener, 0);
    let port = port_of(&to);
    to.write_by_kernel(&pattern(PAIRING_BYTES, 1));
    assert!(read_exactly(&reader, &from, PAIRING_BYTES) == pattern(PAIRING_BYTES, 1));
    // This passes the reading end to the daemon.
    to.write_by_kernel(b"x");
    assert_eq!(read_exactly(&reader, &from, 1), b"x");
    drop((to, from));
    let (to, from) = connect_between(&listener, port);
    let expected = pattern(MEGABYTE, 2);
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| read_all(&daemon.client(), &from));
        write_all(&writer, &to, &expected);
        to.shutdown(Shutdown::Write);
        received.join().expect("the reader")
    });
    assert!(received == expected);
    // The end that was closed has taken nothing.
    assert_eq!((reader.stats().passed, reader.stats().refused), (0, 0));
}

/// Runs `run` on a thread in a network namespace of its own, with a loopback device; `None` if that
/// is not allowed.
fn in_another_network<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    let run = || {
        // SAFETY: it changes the network namespace of this thread only, which runs this closure.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return None;
        }
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        // SAFETY: zeros are a valid ifreq.
        let mut device: libc::ifreq = unsafe { std::mem::zeroed() };
        device.ifr_name[0] = b'l'.cast_signed() as libc::c_char;
        device.ifr_name[1] = b'o'.cast_signed() as libc::c_char;
        device.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        // SAFETY: the kernel reads the request, which outlives the call.
        assert_eq!(unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const device) }, 0);
        Some(run())
    };
    thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
}

#[test]
fn a_connection_that_looks_alike_is_not_paired() {
    if millrace_sys::effective_user() != 0 {
        eprintln!("skipped: a network namespace needs root");
        return;
    }
    let folder = Folder::new("socket-alike");
    let daemon = Daemon::start(&folder, &[]);
    let listener = listen();
    let (to, from) = connect_between(&listener, 0);
    let port = port_of(&to);
    let address = listener.local_addr().expect("an address");
    let alike = in_another_network(|| {
        let listener = TcpListener::bind(address).expect("a free port");
        connect_between(&listener, port)
    });
    let (alike_to, _alike_from) = alike.expect("root may do so");
    let reader = pair_by_hand(&daemon, from.as_fd(), false);
    millrace_sys::send_packet(reader.as_fd(), &[b"for the writer"], &[]).expect("room");
    let receive = |socket: &OwnedFd| {
        let (mut bytes, mut files) = ([0; 64], Vec::new());
        millrace_sys::receive_packet(socket.as_fd(), &mut bytes, &mut files)
    };
    // The addresses are those of the other end, and so is the user.
    let other = pair_by_hand(&daemon, alike_to.as_fd(), true);
    assert_eq!(receive(&other), Err(Errno::AGAIN));
    let writer = pair_by_hand(&daemon, to.as_fd(), true);
    assert_eq!(receive(&writer), Ok(14));
}

#[test]
fn connections_in_another_network_work() {
    let folder = Folder::new("socket-network");
    let daemon = Daemon::start(&folder, &[]);
    let connected = in_another_network(|| (Family::Tcp4.connect(), Family::Unix.connect()));
    let Some((tcp, (one, other))) = connected else {
        assert_ne!(millrace_sys::effective_user(), 0, "root may make a network namespace");
        eprintln!("skipped: a network namespace needs root");
        return;
    };
    let (reader, from, writer, to) = paired_over(&daemon, tcp);
    write_all(&writer, &to, b"more");
    assert_eq!(read_exactly(&reader, &from, 4), b"more");
    // The daemon does not see it.
    assert_carries_bytes(&daemon, &one, &other);
}
