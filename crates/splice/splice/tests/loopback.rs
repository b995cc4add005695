//! Each mode and call of the paper's interface, over loopback connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;

use millrace_splice::{
    End, Errno, Error, Handle, KeepCopy, Linux, Notice, Request, Side, SpliceMode, SpliceOutcome,
    Splicer,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;

type Connection = Rc<TcpStream>;
type Splices = Splicer<Linux<Connection>>;

const ONE_WAY: SpliceMode = SpliceMode::Unidirectional { limit: None };
const PAPER_COPY: KeepCopy = KeepCopy { min2read: 16 * 1024, max2cache: 64 * 1024 };

const TEN_SECONDS: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Opens a connection: the end of a peer and our end.
fn pair() -> (TcpStream, Connection) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let peer = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (ours, _) = listener.accept().expect("one was made");
    ours.set_nonblocking(true).expect("it is open");
    (peer, Rc::new(ours))
}

fn splicer() -> Splices {
    Splicer::new(Linux::new().expect("descriptors are left"), 8)
}

fn request(fd0: &Connection, fd1: &Connection, mode: SpliceMode) -> Request<'static, Connection> {
    let (fd0, fd1) = (fd0.clone(), fd1.clone());
    Request { fd0, fd1, mode, keep_copy: None, auto_release: false, prefix: b"", input: &mut [] }
}

fn started(outcome: SpliceOutcome) -> Handle {
    match outcome {
        SpliceOutcome::Started { handle, .. } => handle,
        SpliceOutcome::Ended { end, .. } => panic!("ended in the call: {end:?}"),
    }
}

/// Forwards whenever the descriptor is readable, until there is a notice.
fn notice(splicer: &mut Splices) -> Notice {
    loop {
        if let Some(notice) = splicer.next_notice() {
            return notice;
        }
        let fd = splicer.fd();
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&TEN_SECONDS));
        assert_eq!(ready, Ok(1), "nothing happens");
        splicer.forward(Some(0)).expect("all are open");
    }
}

fn ended(splicer: &mut Splices) -> (End, [u64; 2]) {
    match notice(splicer) {
        Notice::Ended { end, forwarded, .. } => (end, forwarded),
        other => panic!("{other:?}"),
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[test]
fn a_short_transfer_ends_within_the_call_and_sends_its_prefix_first() {
    let (mut origin, source) = pair();
    let (mut client, destination) = pair();
    origin.write_all(b"bodynext").unwrap();
    let mut splicer = splicer();
    let mode = SpliceMode::Unidirectional { limit: Some(4) };
    let request = Request { prefix: b"head ", ..request(&source, &destination, mode) };
    let SpliceOutcome::Ended { end, released, input: 0 } = splicer.splice(request).unwrap() else {
        panic!("it was there")
    };
    assert_eq!((end, released.directions[0].forwarded), (End::Limit, 4));
    let mut bytes = [0; 9];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"head body");
    assert_eq!((&*source).read(&mut bytes).unwrap(), 4, "the application gets the next bytes");
    assert_eq!((splicer.transfers(), splicer.pipes()), (0, (1, 1)));
}

#[test]
fn a_transfer_ends_when_its_source_closes_and_leaves_its_destination_open() {
    let (mut origin, source) = pair();
    let (mut client, destination) = pair();
    let mut splicer = splicer();
    let handle = started(splicer.splice(request(&source, &destination, ONE_WAY)).unwrap());
    let body = pattern(1 << 20);
    let sent = body.clone();
    let writer = std::thread::spawn(move || origin.write_all(&sent).unwrap());
    client.write_all(b"GET").unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 20];
        client.read_exact(&mut bytes).unwrap();
        (client, bytes)
    });
    assert_eq!(ended(&mut splicer), (End::Closed, [1 << 20, 0]));
    writer.join().unwrap();
    let (mut client, bytes) = reader.join().unwrap();
    assert!(bytes == body);
    let mut next = [0; 8];
    assert_eq!(
        splicer.read(handle, Side::Fd1, &mut next),
        Ok(3),
        "the application reads from the destination"
    );
    assert_eq!(splicer.read(handle, Side::Fd0, &mut next), Err(Error::NotPermitted));
    assert_eq!(splicer.write(handle, Side::Fd1, b"x"), Err(Error::NotPermitted));
    assert_eq!(splicer.write(handle, Side::Fd0, b"x"), Ok(1));
    let released = splicer.unsplice(handle).unwrap();
    assert_eq!(released.end, Some(End::Closed));
    assert_eq!(splicer.unsplice(handle), Err(Error::Stale));
    (&*destination).write_all(b"result").unwrap();
    client.read_exact(&mut next[..6]).unwrap();
    assert_eq!(&next[..6], b"result");
}

#[test]
fn a_tunnel_forwards_closes_and_refuses_reads_and_writes() {
    let (mut client, fd0) = pair();
    let (mut origin, fd1) = pair();
    let mut splicer = splicer();
    let first = Request { prefix: b"hello ", ..request(&fd0, &fd1, SpliceMode::Bidirectional) };
    let handle = started(splicer.splice(first).unwrap());
    for side in [Side::Fd0, Side::Fd1] {
        assert_eq!(splicer.read(handle, side, &mut [0]), Err(Error::NotPermitted));
        assert_eq!(splicer.write(handle, side, b"x"), Err(Error::NotPermitted));
    }
    let busy = splicer.splice(request(&fd1, &fd0, ONE_WAY)).unwrap_err();
    assert_eq!(busy, Error::Busy(Side::Fd0));
    client.write_all(b"origin").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let peer = std::thread::spawn(move || {
        let mut request = String::new();
        origin.read_to_string(&mut request).unwrap();
        origin.write_all(b"hello client").unwrap();
        request
    });
    assert_eq!(ended(&mut splicer), (End::Closed, [6, 12]));
    assert_eq!(peer.join().unwrap(), "hello origin");
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    assert_eq!(response, "hello client");
    splicer.unsplice(handle).unwrap();
}

#[test]
fn a_copy_is_complete_after_the_destination_aborts() {
    let (mut origin, source) = pair();
    let (client, destination) = pair();
    let mut splicer = splicer();
    let body = pattern(600_000);
    let mode = SpliceMode::Unidirectional { limit: Some(body.len() as u64) };
    let (sent, mut input) = (body.clone(), [0; 100]);
    origin.write_all(&sent[..100]).unwrap();
    let request = Request {
        keep_copy: Some(PAPER_COPY),
        input: &mut input,
        auto_release: true,
        ..request(&source, &destination, mode)
    };
    let SpliceOutcome::Started { handle, input: 100 } = splicer.splice(request).unwrap() else {
        panic!("the transfer continues, with 100 bytes of input")
    };
    let mut kept = input.to_vec();
    let writer = std::thread::spawn(move || origin.write_all(&sent[100..]).unwrap());
    let mut client = Some(client);
    let end = loop {
        match notice(&mut splicer) {
            Notice::Readable(_) => {}
            Notice::Ended { end, .. } => break end,
        }
        let mut bytes = vec![0; 10_000];
        let count = splicer.read(handle, Side::Fd0, &mut bytes).unwrap();
        kept.extend(&bytes[..count]);
        if kept.len() > 100_000 {
            // Unread bytes turn the close into a reset.
            drop(client.take());
        }
    };
    writer.join().unwrap();
    let Some(Errno::PIPE | Errno::CONNRESET) = end.error() else { panic!("{end:?}") };
    assert!(kept == body);
    assert_eq!(splicer.transfers(), 0);
}

#[test]
fn an_abort_of_either_side_ends_an_idle_transfer() {
    for side in [Side::Fd0, Side::Fd1] {
        let (origin, source) = pair();
        let (client, destination) = pair();
        let mut splicer = splicer();
        let request = request(&source, &destination, ONE_WAY);
        started(splicer.splice(Request { auto_release: true, ..request }).unwrap());
        splicer.forward(Some(0)).unwrap();
        let aborts = if side == Side::Fd0 { &origin } else { &client };
        millrace_sys::reset_on_close(aborts.as_fd()).unwrap();
        drop(if side == Side::Fd0 { origin } else { client });
        assert_eq!(ended(&mut splicer), (End::Aborted { side, error: Errno::CONNRESET }, [0, 0]));
    }
}

#[test]
fn urgent_data_does_not_end_a_transfer() {
    let (mut origin, source) = pair();
    let (mut client, destination) = pair();
    let mut splicer = splicer();
    let handle = started(splicer.splice(request(&source, &destination, ONE_WAY)).unwrap());
    origin.write_all(b"before").unwrap();
    rustix::net::send(&origin, b"!", SendFlags::OOB).unwrap();
    origin.write_all(b"behind").unwrap();
    drop(origin);
    assert_eq!(ended(&mut splicer), (End::Closed, [12, 0]));
    drop(splicer.unsplice(handle).unwrap());
    drop(destination);
    let mut body = String::new();
    client.read_to_string(&mut body).unwrap();
    assert_eq!(body, "beforebehind");
}

#[test]
fn bytes_behind_urgent_data_are_forwarded_at_once() {
    for (is_urgent_before, keep_copy) in [(false, None), (true, None), (false, Some(PAPER_COPY))] {
        let (mut origin, source) = pair();
        let (mut client, destination) = pair();
        let mut send = || {
            rustix::net::send(&origin, b"!", SendFlags::OOB).unwrap();
            origin.write_all(b"behind").unwrap();
        };
        let mut splicer = splicer();
        let mode = SpliceMode::Unidirectional { limit: Some(6) };
        if is_urgent_before {
            send();
        }
        let request = Request { keep_copy, ..request(&source, &destination, mode) };
        // Urgent data that arrived before the connection was watched is reported only once, with
        // the state in which the watch finds the connection.
        let handle = started(splicer.splice(request).unwrap());
        if !is_urgent_before {
            splicer.forward(Some(0)).unwrap();
            send();
        }
        if keep_copy.is_some() {
            assert_eq!(notice(&mut splicer), Notice::Readable(handle));
            assert_eq!(splicer.read(handle, Side::Fd0, &mut [0; 10]), Ok(6));
        }
        assert_eq!(ended(&mut splicer), (End::Limit, [6, 0]));
        let mut body = [0; 6];
        client.read_exact(&mut body).unwrap();
        assert_eq!(&body, b"behind");
    }
}

#[test]
fn unsplice_forwards_or_returns_every_byte() {
    let (mut origin, source) = pair();
    let (mut client, destination) = pair();
    let mut splicer = splicer();
    let body = pattern(32 << 20);
    let sent = body.clone();
    let handle = started(splicer.splice(request(&source, &destination, ONE_WAY)).unwrap());
    origin.set_nonblocking(true).unwrap();
    let mut written = 0;
    let mut idle = 0;
    while idle < 100 {
        let count = origin.write(&sent[written..]).unwrap_or(0);
        written += count;
        idle = if count == 0 { idle + 1 } else { 0 };
        splicer.forward(Some(1)).unwrap();
    }
    let released = splicer.unsplice(handle).unwrap();
    assert_eq!(released.end, None);
    let [forth, back] = released.directions;
    assert!(!forth.unsent.is_empty() && back == Default::default(), "the client reads nothing");
    let mut bytes = vec![0; forth.forwarded as usize];
    client.read_exact(&mut bytes).unwrap();
    bytes.extend(&forth.unsent);
    drop(origin);
    let mut rest = Vec::new();
    source.set_nonblocking(false).unwrap();
    (&*source).read_to_end(&mut rest).unwrap();
    bytes.extend(&rest);
    assert!(bytes == body[..written]);
}

#[test]
fn invalid_requests_and_connections_are_refused() {
    let (peer, source) = pair();
    let (_client, destination) = pair();
    let mut splicer = splicer();
    let mut refusal = |request| splicer.splice(request).unwrap_err();
    let plain = || request(&source, &destination, ONE_WAY);
    let both = Request { mode: SpliceMode::Bidirectional, keep_copy: Some(PAPER_COPY), ..plain() };
    let keep_copy = Some(KeepCopy { min2read: 2, max2cache: 1 });
    let itself = Request { fd1: source.clone(), ..plain() };
    let mut room = [0];
    let buffer = Request { input: &mut room, ..plain() };
    for request in [both, Request { keep_copy, ..plain() }, itself, buffer] {
        assert!(matches!(refusal(request), Error::Request(_)));
    }
    destination.set_nonblocking(false).unwrap();
    assert_eq!(refusal(plain()), Error::Blocking(Side::Fd1));
    destination.set_nonblocking(true).unwrap();
    source.shutdown(Shutdown::Write).unwrap();
    assert_eq!(refusal(plain()), Error::NotConnected(Side::Fd0));
    drop(peer);
}
