//! Tests of `Tracker::multishot`, which need no privileges.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use uselect::{Backend, Errno, Error, FdSets, PollFd, Tracker};

const IN: u16 = 0x001;
const OUT: u16 = 0x004;
const HUP: u16 = 0x010;

/// Returns `None`, with a message, if io_uring is not available.
fn tracker() -> Option<Tracker> {
    match Tracker::multishot() {
        Ok(tracker) => Some(tracker),
        Err(Error::NoRing(error @ (Errno::NOSYS | Errno::PERM))) => {
            println!("skip: io_uring is not available: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns a tracked end of a connection, and the other end.
fn pair(tracker: &Tracker) -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    assert!(tracker.track(stream.as_raw_fd()));
    (stream.into(), peer)
}

/// Calls upoll for one descriptor.
fn wait(tracker: &Tracker, fd: RawFd, events: u16, timeout: Option<Duration>) -> u16 {
    let mut fds = [PollFd { fd, events, revents: 0 }];
    let count = tracker.upoll(&mut fds, timeout, None).unwrap();
    assert_eq!(count, usize::from(fds[0].revents != 0));
    fds[0].revents
}

const NOW: Option<Duration> = Some(Duration::ZERO);

/// Waits until memory shows that a descriptor is not ready. Usually this is the case at once. It
/// takes longer if a socket that had the same descriptor before was armed by a thread that has
/// ended: the kernel then reports the end of that poll with some delay.
fn settle(tracker: &Tracker, fd: RawFd) {
    let (before, begin) = (tracker.stats(), Instant::now());
    while tracker.stats().without_syscall == before.without_syscall {
        assert_eq!(wait(tracker, fd, IN, NOW), 0);
        assert!(begin.elapsed() < Duration::from_secs(5), "the socket is not armed");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends bytes; over the loopback interface they have arrived when the call returns.
fn send(mut peer: &TcpStream, bytes: &[u8]) {
    peer.write_all(bytes).unwrap();
}

fn receive(fd: &OwnedFd, count: usize) {
    assert_eq!(rustix::io::read(fd, &mut vec![0; count]), Ok(count));
}

#[test]
fn idle_sockets_cost_no_call_and_events_are_reported() {
    let Some(tracker) = tracker() else { return };
    assert_eq!(tracker.backend(), Backend::Multishot);
    let (socket, peer) = pair(&tracker);
    let fd = socket.as_raw_fd();
    for _ in 0..3 {
        settle(&tracker, fd);
        send(&peer, b"abc");
        assert_eq!(wait(&tracker, fd, IN, NOW), IN);
        assert_eq!(wait(&tracker, fd, IN | OUT, NOW), IN | OUT);
        receive(&socket, 2);
        assert_eq!(wait(&tracker, fd, IN, None), IN);
        receive(&socket, 1);
    }
    settle(&tracker, fd);
    // A hang-up is reported even if no event is requested.
    assert_eq!(wait(&tracker, fd, 0, NOW), 0);
    rustix::net::sockopt::set_socket_linger(&peer, NOW).unwrap();
    drop(peer);
    assert_ne!(wait(&tracker, fd, 0, NOW) & HUP, 0);
    tracker.untrack(fd);
    assert!(!tracker.is_tracked(fd));
}

#[test]
fn send_space_is_reported() {
    let Some(tracker) = tracker() else { return };
    let (socket, mut peer) = pair(&tracker);
    let fd = socket.as_raw_fd();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let mut sent = 0;
    while wait(&tracker, fd, OUT, NOW) == OUT {
        sent += rustix::io::write(&socket, &[0; 1 << 16]).unwrap();
    }
    assert_eq!(wait(&tracker, fd, OUT, Some(Duration::from_millis(20))), 0);
    let reader = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        peer.read_exact(&mut vec![0; sent]).unwrap();
        peer
    });
    assert_eq!(wait(&tracker, fd, OUT, None), OUT);
    drop(reader.join().unwrap());
    tracker.untrack(fd);
}

#[test]
fn a_sleeping_thread_is_woken() {
    let Some(tracker) = tracker() else { return };
    let (socket, peer) = pair(&tracker);
    let fd = socket.as_raw_fd();
    for _ in 0..10 {
        settle(&tracker, fd);
        let peer = peer.try_clone().unwrap();
        let sender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            send(&peer, b"a");
        });
        assert_eq!(wait(&tracker, fd, IN, None), IN);
        receive(&socket, 1);
        sender.join().unwrap();
    }
    let begin = Instant::now();
    assert_eq!(wait(&tracker, fd, IN, Some(Duration::from_millis(30))), 0);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    tracker.untrack(fd);
}

/// One thread arms the sockets and another one sleeps; the first thread computes, sleeps elsewhere,
/// or has ended.
#[test]
fn a_sleeping_thread_is_woken_for_a_socket_armed_by_another() {
    let Some(tracker) = tracker() else { return };
    for kind in 0..3 {
        let (socket, peer) = pair(&tracker);
        let fd = socket.as_raw_fd();
        let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (armed, here) = std::sync::mpsc::channel();
        let (its_tracker, over) = (tracker.clone(), is_over.clone());
        let armer = thread::spawn(move || {
            settle(&its_tracker, fd);
            armed.send(()).unwrap();
            let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
            while kind == 0 && !is_over() {
                std::hint::spin_loop();
            }
            while kind == 1 && !is_over() {
                thread::park();
            }
        });
        here.recv().unwrap();
        let thread = (kind != 2).then(|| armer.thread().clone());
        if kind == 2 {
            thread::sleep(Duration::from_millis(20));
        }
        let sender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            send(&peer, b"a");
            peer
        });
        let begin = Instant::now();
        assert_eq!(wait(&tracker, fd, IN, Some(Duration::from_secs(5))), IN, "kind {kind}");
        println!("kind {kind}: woken after {:?}", begin.elapsed());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        thread.inspect(thread::Thread::unpark);
        drop((armer.join().unwrap(), sender.join().unwrap()));
        tracker.untrack(fd);
    }
}

/// The ring keeps an armed socket open: unless it is untracked, close(2) sends no FIN.
#[test]
fn an_untracked_and_closed_connection_ends() {
    let Some(tracker) = tracker() else { return };
    for armed_by_other_thread in [false, true] {
        let (socket, mut peer) = pair(&tracker);
        let (fd, its_tracker) = (socket.as_raw_fd(), tracker.clone());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let armer = move || {
            settle(&its_tracker, fd);
            armed_by_other_thread.then(|| ended.recv())
        };
        let armer = match armed_by_other_thread {
            true => Some(thread::spawn(armer)),
            false => {
                armer();
                None
            }
        };
        thread::sleep(Duration::from_millis(20 * u64::from(armed_by_other_thread)));
        tracker.untrack(fd);
        drop(socket);
        // A poll of another thread ends only when that thread enters the kernel; and a child that
        // another test forks may hold the socket for a moment.
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let found = peer.read(&mut [0]);
        assert!(matches!(found, Ok(0)), "{armed_by_other_thread}: {found:?}");
        drop(end);
        armer.map(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_reused_descriptor_gets_no_events_of_the_old_socket() {
    let Some(tracker) = tracker() else { return };
    let (first, first_peer) = pair(&tracker);
    let (second, second_peer) = pair(&tracker);
    let fd = first.into_raw_fd();
    settle(&tracker, fd);
    send(&first_peer, b"a");
    tracker.untrack(fd);
    let second_fd = second.as_raw_fd();
    tracker.untrack(second_fd);
    // SAFETY: `into_raw_fd` gave up the descriptor, so it has no other owner.
    let mut first = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    rustix::io::dup2(&second, &mut first).unwrap();
    assert!(tracker.track(fd));
    settle(&tracker, fd);
    send(&second_peer, b"b");
    assert_eq!(wait(&tracker, fd, IN, None), IN);
    tracker.untrack(fd);
}

#[test]
fn a_child_calls_the_kernel() {
    let Some(tracker) = tracker() else { return };
    let (socket, peer) = pair(&tracker);
    let fd = socket.as_raw_fd();
    settle(&tracker, fd);
    // SAFETY: the child makes system calls, writes its own memory, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = tracker.backend() == Backend::Calls
            && !tracker.track(fd)
            && wait(&tracker, fd, IN, Some(Duration::from_secs(5))) == IN;
        tracker.untrack(fd);
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    send(&peer, b"a");
    let mut status = -1;
    // SAFETY: the buffer has the size of a status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(wait(&tracker, fd, IN, None), IN);
    receive(&socket, 1);
    settle(&tracker, fd);
    tracker.untrack(fd);
}

/// A server with upoll and with uselect, for 300 connections of which few are active.
#[test]
fn echo() {
    for by_select in [false, true] {
        let Some(tracker) = tracker() else { return };
        let listener = tracker.socket(false, false).unwrap();
        let address = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1024).unwrap();
        let address = rustix::net::getsockname(&listener).unwrap();
        let address = std::net::SocketAddr::try_from(address).unwrap();
        let client = thread::spawn(move || {
            let connect = |_| TcpStream::connect(address).unwrap();
            let mut streams: Vec<_> = (0..300).map(connect).collect();
            for round in 0..200_usize {
                for step in 0..5 {
                    let stream = &mut streams[(round * 7 + step * 31) % 300];
                    stream.write_all(&round.to_ne_bytes()).unwrap();
                    let mut bytes = [0; 8];
                    stream.read_exact(&mut bytes).unwrap();
                    assert_eq!(bytes, round.to_ne_bytes());
                }
            }
        });
        let mut served = std::collections::BTreeMap::new();
        let (mut had_some, mut buffer) = (false, [0; 64]);
        while !had_some || !served.is_empty() {
            let fds: Vec<i32> = served.keys().copied().chain([listener.as_raw_fd()]).collect();
            for fd in ready(&tracker, &fds, by_select) {
                if fd == listener.as_raw_fd() {
                    let accepted = listener.accept(false);
                    let Ok((socket, _)) = accepted else { continue };
                    assert!(socket.is_tracked());
                    served.insert(socket.as_raw_fd(), socket);
                    had_some = true;
                    continue;
                }
                match served[&fd].receive(&mut buffer) {
                    Ok(0) => drop(served.remove(&fd)),
                    Ok(count) => assert_eq!(served[&fd].send(&buffer[..count]), Ok(count)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        }
        client.join().unwrap();
        println!("by uselect {by_select}: {:?}", tracker.stats());
    }
}

fn ready(tracker: &Tracker, fds: &[i32], by_select: bool) -> Vec<i32> {
    if by_select {
        let mut read = vec![0; 16];
        fds.iter().for_each(|fd| read[*fd as usize / 64] |= 1 << (fd % 64));
        let mut sets = FdSets { read: &mut read, write: &mut [], except: &mut [] };
        tracker.uselect(&mut sets, None, None).unwrap();
        let is_set = |fd: &&i32| read[**fd as usize / 64] >> (**fd % 64) & 1 == 1;
        return fds.iter().filter(is_set).copied().collect();
    }
    let entry = |fd: &i32| PollFd { fd: *fd, events: IN, revents: 0 };
    let mut entries: Vec<_> = fds.iter().map(entry).collect();
    tracker.upoll(&mut entries, None, None).unwrap();
    entries.iter().filter(|entries| entries.revents != 0).map(|entries| entries.fd).collect()
}

#[test]
fn best_returns_why_better_backends_are_missing() {
    let path = std::env::temp_dir().join("no-daemon-listens-here");
    let (tracker, missing) = Tracker::best(&path, uselect::TrackingMode::Exact);
    let first = (Backend::Bpf(uselect::TrackingMode::Exact), Error::NoDaemon(Errno::NOENT));
    assert_eq!(missing[0], first);
    match missing.get(1) {
        None => assert_eq!(tracker.backend(), Backend::Multishot),
        Some((missing, Error::NoRing(_))) => {
            assert_eq!((*missing, tracker.backend()), (Backend::Multishot, Backend::Calls));
        }
        Some(other) => panic!("{other:?}"),
    }
}
