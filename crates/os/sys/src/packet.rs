//! Packets between two processes: Unix sockets that keep the boundaries of messages
//! (SOCK_SEQPACKET, unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt, sockopt::Timeout,
};

use crate::listen::open_socket;
use crate::wait::{PacketEvents, flags};
use crate::{PARTS_MAX, Result, last_error};

/// The most descriptors with one packet.
pub const DESCRIPTORS_PER_PACKET_MAX: usize = 4;

/// Creates two connected packet sockets, closed on exec.
///
/// # Errors
/// EMFILE, ENFILE.
pub fn packet_pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Connects to the packet socket at `path`, without waiting.
///
/// # Errors
/// EAGAIN if the backlog of the listener is full; ENOENT, EACCES, ECONNREFUSED; EPROTOTYPE if it is
/// a socket of another type; EMFILE, ENFILE; EINVAL or ENAMETOOLONG for a path of more than 107
/// bytes.
pub fn connect_packets(path: &Path) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = open_socket(AddressFamily::UNIX, SocketType::SEQPACKET)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// Connects to the packet socket at `path`, with a blocking socket: no call waits for longer than
/// `wait_max`, and then fails with EAGAIN.
///
/// # Errors
/// As [`connect_packets`]; EAGAIN if the listener accepts no connection in time.
pub fn connect_and_wait(path: &Path, wait_max: Duration) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(wait_max))?;
    }
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// Makes the calls on a socket wait, except those that never do.
///
/// # Errors
/// None is known.
pub fn set_blocking(socket: BorrowedFd<'_>) -> Result<()> {
    rustix::io::ioctl_fionbio(socket, false)
}

/// Waits for the next connection of a blocking listener. The connection blocks, and is closed on
/// exec.
///
/// # Errors
/// As [`accept`](crate::accept).
pub fn await_connection(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    retry_on_intr(|| rustix::net::accept_with(listener, SocketFlags::CLOEXEC))
}

/// Sets whether a packet to this socket may carry descriptors (unix(7), SO_PASSRIGHTS). If not,
/// sending one fails with EPERM. An accepted connection has the setting of its listener.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.16.
pub fn set_descriptor_passing(socket: BorrowedFd<'_>, may_pass: bool) -> Result<()> {
    let value = libc::c_int::from(may_pass);
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` outlives the call, which reads `length` bytes of it.
    let set = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, length)
    };
    if set == 0 { Ok(()) } else { Err(last_error()) }
}

/// Its number on all architectures but four old ones.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Sends one packet that consists of `parts`, with copies of `descriptors`. It never waits,
/// whatever the mode of the socket.
///
/// # Errors
/// EAGAIN if the socket has no room; EPIPE, ECONNRESET after the peer has closed it; EMSGSIZE for a
/// packet that is longer than the socket's buffer; ETOOMANYREFS if too many descriptors are in
/// flight.
///
/// # Panics
/// If there are more than [`PARTS_MAX`] parts or [`DESCRIPTORS_PER_PACKET_MAX`] descriptors.
pub fn send_packet(
    socket: BorrowedFd<'_>,
    parts: &[&[u8]],
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    send_with(SendFlags::DONTWAIT, socket, parts, descriptors)
}

/// Sends one packet like [`send_packet`], but waits for room on a blocking socket.
///
/// # Errors
/// As [`send_packet`]; EAGAIN after the timeout of the socket.
///
/// # Panics
/// As [`send_packet`].
pub fn send_packet_and_wait(
    socket: BorrowedFd<'_>,
    parts: &[&[u8]],
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    send_with(SendFlags::empty(), socket, parts, descriptors)
}

fn send_with(
    flags: SendFlags,
    socket: BorrowedFd<'_>,
    parts: &[&[u8]],
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    assert!(parts.len() <= PARTS_MAX && descriptors.len() <= DESCRIPTORS_PER_PACKET_MAX);
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_PACKET_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the buffer has room for the maximum");
    }
    let mut slices = [IoSlice::new(&[]); PARTS_MAX];
    for (slice, part) in slices.iter_mut().zip(parts) {
        *slice = IoSlice::new(part);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry_on_intr(|| {
        rustix::net::sendmsg(socket, &slices[..parts.len()], &mut control, flags).map(drop)
    })
}

/// Receives one packet, and appends the descriptors that came with it to `descriptors`; closed on
/// exec. It never waits. Returns the length of the packet; 0 when the peer has closed the socket.
///
/// # Errors
/// EAGAIN if there is none; ECONNRESET if the peer closed the socket and left packets unread;
/// EMSGSIZE if the packet is longer than `bytes` or has more than [`DESCRIPTORS_PER_PACKET_MAX`]
/// descriptors. Then the packet is lost, and its descriptors are closed.
pub fn receive_packet(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize> {
    receive_with(RecvFlags::DONTWAIT, socket, bytes, descriptors)
}

/// Receives one packet like [`receive_packet`], but waits for it on a blocking socket.
///
/// # Errors
/// As [`receive_packet`]; EAGAIN after the timeout of the socket.
pub fn await_packet(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize> {
    receive_with(RecvFlags::empty(), socket, bytes, descriptors)
}

fn receive_with(
    flags: RecvFlags,
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_PACKET_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let before = descriptors.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    let is_cut = received.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC);
    if is_cut || descriptors.len() - before > DESCRIPTORS_PER_PACKET_MAX {
        descriptors.truncate(before);
        return Err(Errno::MSGSIZE);
    }
    Ok(received.bytes)
}

/// Waits until one of `events` has happened to the socket, or `process` (a pidfd) has ended, at
/// most for `wait_ms_max` milliseconds. Returns whether the peer has gone: it has closed the
/// socket, or its process has ended. Packets may be left to receive.
///
/// # Errors
/// Those of poll(2).
pub fn wait_for_packet(
    socket: BorrowedFd<'_>,
    events: PacketEvents,
    process: Option<BorrowedFd<'_>>,
    wait_ms_max: u32,
) -> Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let wanted = flags(events);
    let timeout = Timespec {
        tv_sec: i64::from(wait_ms_max / 1000),
        tv_nsec: i64::from(wait_ms_max % 1000) * 1_000_000,
    };
    let socket = PollFd::from_borrowed_fd(socket, wanted);
    let process = process.map(|process| PollFd::from_borrowed_fd(process, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = std::iter::once(socket).chain(process).collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    let has_ended = fds.get(1).is_some_and(|process| process.revents().contains(PollFlags::IN));
    Ok(has_ended || fds[0].revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn packets_keep_their_boundaries_and_descriptors() {
        let (here, there) = packet_pair().unwrap();
        send_packet(here.as_fd(), &[b"one"], &[]).unwrap();
        send_packet(here.as_fd(), &[b"tw", b"o"], &[here.as_fd(); 2]).unwrap();
        let (mut bytes, mut passed) = ([0; 8], Vec::new());
        assert_eq!(receive_packet(there.as_fd(), &mut bytes, &mut passed), Ok(3));
        assert_eq!((&bytes[..3], passed.len()), (&b"one"[..], 0));
        assert_eq!(receive_packet(there.as_fd(), &mut bytes, &mut passed), Ok(3));
        assert_eq!((&bytes[..3], passed.len()), (&b"two"[..], 2));
        assert_eq!(receive_packet(there.as_fd(), &mut bytes, &mut passed), Err(Errno::AGAIN));
        drop((here, passed));
        let mut receive_end = || receive_packet(there.as_fd(), &mut bytes, &mut Vec::new());
        // The children of other tests have a copy of each descriptor until exec(2).
        while receive_end() == Err(Errno::AGAIN) {
            std::thread::yield_now();
        }
        assert_eq!(receive_end(), Ok(0));
        assert_eq!(send_packet(there.as_fd(), &[b"one"], &[]), Err(Errno::PIPE));
    }

    #[test]
    fn a_packet_socket_has_a_name_that_is_used_again() {
        let path = std::env::temp_dir().join(format!("millrace-packets-{}", std::process::id()));
        assert_eq!(connect_packets(&path).unwrap_err(), Errno::NOENT);
        for _ in 0..2 {
            let listener = crate::listen_packets(&path, 0o600).unwrap();
            assert_eq!(crate::listen_packets(&path, 0o600).unwrap_err(), Errno::ADDRINUSE);
            let here = connect_packets(&path).unwrap();
            let (there, _) = crate::accept(listener.as_fd()).unwrap();
            send_packet(here.as_fd(), &[b"one"], &[]).unwrap();
            assert_eq!(receive_packet(there.as_fd(), &mut [0; 8], &mut Vec::new()), Ok(3));
            drop(listener);
            assert_eq!(connect_packets(&path).unwrap_err(), Errno::CONNREFUSED);
        }
        let stream = crate::listen_unix(&path, 0o600).unwrap();
        assert_eq!(connect_packets(&path).unwrap_err(), Errno::PROTOTYPE);
        drop(stream);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_socket_without_passing_takes_no_descriptors() {
        let path = std::env::temp_dir().join(format!("millrace-passing-{}", std::process::id()));
        let listener = crate::listen_packets(&path, 0o600).unwrap();
        if set_descriptor_passing(listener.as_fd(), false) == Err(Errno::NOPROTOOPT) {
            eprintln!("skipped: this kernel is older than Linux 6.16");
            return;
        }
        let here = connect_packets(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let pass = || send_packet(here.as_fd(), &[b"one"], &[here.as_fd()]);
        assert_eq!(pass(), Err(Errno::PERM), "before it is accepted");
        let (there, _) = crate::accept(listener.as_fd()).unwrap();
        assert_eq!(pass(), Err(Errno::PERM), "after that");
        set_descriptor_passing(there.as_fd(), true).unwrap();
        assert_eq!(pass(), Ok(()));
    }

    #[test]
    fn a_packet_that_does_not_fit_is_refused() {
        let (here, there) = packet_pair().unwrap();
        let (mut bytes, mut passed) = ([0; 8], Vec::new());
        send_packet(here.as_fd(), &[&[1; 9]], &[]).unwrap();
        assert_eq!(receive_packet(there.as_fd(), &mut bytes, &mut passed), Err(Errno::MSGSIZE));
        let many = [here.as_fd(); 20];
        crate::send_with_descriptors(here.as_fd(), b"many", &many).unwrap();
        assert_eq!(receive_packet(there.as_fd(), &mut bytes, &mut passed), Err(Errno::MSGSIZE));
        assert!(passed.is_empty());
    }

    #[test]
    fn the_end_of_a_process_is_noticed() {
        let (here, there) = packet_pair().unwrap();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let process = crate::open_process(child.id()).unwrap();
        let wait =
            |ms| wait_for_packet(here.as_fd(), PacketEvents::Readable, Some(process.as_fd()), ms);
        assert_eq!(wait(0), Ok(false));
        send_packet(there.as_fd(), &[b"one"], &[]).unwrap();
        assert_eq!(wait(60_000), Ok(false), "it returns for the packet");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(wait(60_000), Ok(true));
    }
}
