//! Connections: opening, accepting, reading, writing and closing them. No call blocks.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, addr::SocketAddrArg, sockopt,
};

use crate::listen::{family_of, open_socket, set_stream_options};
use crate::{Result, last_error};

/// The most slices that one call of [`send`] takes. It is far below IOV_MAX (1024), since the
/// slices are gathered on the stack. A header, a body and its framing are three.
pub const PARTS_MAX: usize = 16;

/// Accepts the next connection of a listener, non-blocking and closed on exec. Returns it with the
/// address of its peer (`None` for a Unix socket).
///
/// # Errors
/// EAGAIN if there is none; errors of the connection itself (accept(2), "Error handling"); EMFILE,
/// ENFILE, ENOBUFS, ENOMEM, which leave the connection in the backlog.
pub fn accept(listener: BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddr>)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (fd, address) = retry_on_intr(|| rustix::net::acceptfrom_with(listener, flags))?;
    Ok((fd, address.and_then(|address| SocketAddr::try_from(address).ok())))
}

/// A socket, and whether its connect has succeeded (`Ok(true)`), is in progress (`Ok(false)`), or
/// has failed.
pub type Connecting = (OwnedFd, Result<bool>);

/// Begins a TCP connection, with the options that accepted connections inherit from our listeners.
///
/// # Errors
/// If no socket can be opened: EMFILE, ENFILE, ENOMEM, EAFNOSUPPORT.
pub fn connect_tcp(address: SocketAddr) -> Result<Connecting> {
    let fd = open_socket(family_of(address), SocketType::STREAM)?;
    set_stream_options(fd.as_fd())?;
    Ok(start_connect(fd, &address))
}

/// Like [`connect_tcp`], from an address of this machine. The kernel chooses the port when it knows
/// the peer (IP_BIND_ADDRESS_NO_PORT), so connections to different peers may share one.
///
/// # Errors
/// As [`connect_tcp`]; EADDRNOTAVAIL if this machine has no such address, EAFNOSUPPORT or EINVAL if
/// the addresses are of different families. The result of the connect is EADDRNOTAVAIL if all ports
/// are in use.
pub fn connect_tcp_from(source: IpAddr, address: SocketAddr) -> Result<Connecting> {
    let fd = open_socket(family_of(address), SocketType::STREAM)?;
    set_stream_options(fd.as_fd())?;
    let on: libc::c_int = 1;
    let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes, the whole of `on`, which outlives the call.
    let failed =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const on).cast(), length) };
    if failed != 0 {
        return Err(last_error());
    }
    rustix::net::bind(&fd, &SocketAddr::new(source, 0))?;
    Ok(start_connect(fd, &address))
}

/// Opens a UDP socket that exchanges datagrams with `address` only.
///
/// # Errors
/// As [`connect_tcp`].
pub fn connect_udp(address: SocketAddr) -> Result<Connecting> {
    Ok(start_connect(open_socket(family_of(address), SocketType::DGRAM)?, &address))
}

/// Connects to a Unix stream socket, which succeeds or fails at once; EAGAIN if the listener's
/// backlog is full.
///
/// # Errors
/// As [`connect_tcp`]; EINVAL or ENAMETOOLONG for a path of more than 107 bytes.
pub fn connect_unix(path: &Path) -> Result<Connecting> {
    let address = SocketAddrUnix::new(path)?;
    Ok(start_connect(open_socket(AddressFamily::UNIX, SocketType::STREAM)?, &address))
}

/// Returns the socket's pending error and clears it (SO_ERROR). After a connect in progress it is
/// the result of the connect.
///
/// # Errors
/// The pending error.
pub fn take_error(fd: BorrowedFd<'_>) -> Result<()> {
    sockopt::socket_error(fd)?
}

/// Disables Nagle's algorithm, so that small sends are transmitted at once (TCP_NODELAY).
///
/// # Errors
/// EOPNOTSUPP if the socket is not TCP.
pub fn set_nodelay(fd: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_tcp_nodelay(fd, true)
}

/// Receives into `bytes` and returns the number of bytes; 0 at the end of the stream (recv(2)). A
/// datagram that is longer than `bytes` is truncated.
///
/// # Errors
/// EAGAIN if there is nothing yet; ECONNRESET, ETIMEDOUT, and ECONNREFUSED for an earlier datagram.
pub fn receive(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize> {
    retry_on_intr(|| rustix::net::recv(fd, &mut *bytes, RecvFlags::empty())).map(|(count, _)| count)
}

/// Like [`receive`], but leaves the bytes in the socket (MSG_PEEK).
///
/// # Errors
/// As [`receive`].
pub fn peek(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize> {
    retry_on_intr(|| rustix::net::recv(fd, &mut *bytes, RecvFlags::PEEK)).map(|(count, _)| count)
}

/// Removes up to `room.len()` bytes from a TCP connection without copying them (tcp(7), MSG_TRUNC),
/// and returns their number; 0 at the end of the stream.
///
/// # Errors
/// As [`receive`].
pub fn discard(fd: BorrowedFd<'_>, room: &mut [u8]) -> Result<usize> {
    retry_on_intr(|| rustix::net::recv(fd, &mut *room, RecvFlags::TRUNC)).map(|(_, count)| count)
}

/// Sends the first [`PARTS_MAX`] of `parts` in one call, and returns the number of bytes that the
/// kernel took. A closed connection causes no signal (MSG_NOSIGNAL). With `more`, further bytes
/// follow at once, so the kernel need not send a short packet (MSG_MORE).
///
/// # Errors
/// EAGAIN if the kernel took nothing; EPIPE, ECONNRESET, ETIMEDOUT.
pub fn send(fd: BorrowedFd<'_>, parts: &[&[u8]], more: bool) -> Result<usize> {
    let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
    let mut slices = [IoSlice::new(&[]); PARTS_MAX];
    let mut count = 0;
    for part in parts.iter().take(PARTS_MAX).filter(|part| !part.is_empty()) {
        slices[count] = IoSlice::new(part);
        count += 1;
    }
    let slices = &slices[..count];
    // A single part is sent with send(2), which saves the kernel copying a msghdr and its vector.
    if let [part] = slices {
        return retry_on_intr(|| rustix::net::send(fd, part, flags));
    }
    let mut control = SendAncillaryBuffer::default();
    retry_on_intr(|| rustix::net::sendmsg(fd, slices, &mut control, flags))
}

/// Ends one or both directions (shutdown(2)).
///
/// # Errors
/// ENOTCONN if the connection is gone already.
pub fn shutdown(fd: BorrowedFd<'_>, how: Shutdown) -> Result<()> {
    rustix::net::shutdown(fd, how)
}

/// Makes closing a TCP connection reset it: SO_LINGER on, with a time of zero (socket(7)). On a
/// Unix socket it has no effect.
///
/// # Errors
/// ENOTSOCK.
pub fn reset_on_close(fd: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_socket_linger(fd, Some(Duration::ZERO))
}

/// Returns the number of sent bytes that the peer's kernel has not acknowledged (tcp(7), SIOCOUTQ).
/// For a Unix socket, it is the kernel memory of the bytes that the peer has not read, which is
/// more than their number.
///
/// # Errors
/// ENOTTY if it is not a socket, EINVAL if it listens.
pub fn unacknowledged_bytes(fd: BorrowedFd<'_>) -> Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int, and `bytes` outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(last_error()),
    }
}

/// Returns whether calls on a descriptor fail with EAGAIN instead of waiting (O_NONBLOCK).
///
/// # Errors
/// EBADF.
pub fn is_nonblocking(fd: BorrowedFd<'_>) -> Result<bool> {
    rustix::fs::fcntl_getfl(fd).map(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Returns the state of a TCP connection (tcp(7), TCP_INFO, `tcpi_state`).
///
/// # Errors
/// EOPNOTSUPP or ENOPROTOOPT if the socket is not TCP, ENOTSOCK.
pub fn tcp_state(fd: BorrowedFd<'_>) -> Result<TcpState> {
    let mut state = 0u8;
    // The state is the first byte of the result, and the kernel writes no more than `length` bytes.
    let mut length: libc::socklen_t = 1;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: `state` has room for `length` bytes, which is one, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut state).cast(), &raw mut length)
    };
    match (failed, state) {
        (0, TCP_ESTABLISHED) => Ok(TcpState::Established),
        (0, TCP_CLOSE_WAIT) => Ok(TcpState::CloseWait),
        (0, _) => Ok(TcpState::Other),
        _ => Err(last_error()),
    }
}

/// States of a TCP connection (RFC 9293 section 3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpState {
    /// Both directions are open.
    Established,
    /// The peer has sent its last byte. Bytes sent to it are still transmitted.
    CloseWait,
    /// Any other state.
    Other,
}

/// The kernel's numbers of the states (`include/net/tcp_states.h`).
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE_WAIT: u8 = 8;

/// Calls connect(2). After EINTR the connect is still in progress (POSIX), so the call must not be
/// repeated.
fn start_connect(fd: OwnedFd, address: &impl SocketAddrArg) -> Connecting {
    let connected = match rustix::net::connect(&fd, address) {
        Ok(()) => Ok(true),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    };
    (fd, connected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;

    #[test]
    fn parts_arrive_in_order_up_to_the_bound() {
        let (sender, mut receiver) = UnixStream::pair().unwrap();
        let texts: Vec<String> = (0..PARTS_MAX + 1).map(|index| format!("{index};")).collect();
        let parts: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        let whole: String = texts[..PARTS_MAX].concat();
        assert_eq!(send(sender.as_fd(), &parts, false).unwrap(), whole.len());
        let mut bytes = vec![0; whole.len()];
        receiver.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, whole.as_bytes());
        drop(receiver);
        assert_eq!(send(sender.as_fd(), &parts[..1], false).unwrap_err(), Errno::PIPE);
        assert_eq!(send(sender.as_fd(), &parts[..2], false).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn the_peer_sees_the_chosen_source() {
        for (source, listen) in [("127.0.0.7", "127.0.0.1:0"), ("::1", "[::1]:0")] {
            let listener = TcpListener::bind(listen).unwrap();
            let source: IpAddr = source.parse().unwrap();
            let (_fd, connected) =
                connect_tcp_from(source, listener.local_addr().unwrap()).unwrap();
            assert!(connected.is_ok());
            let (_, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip(), source);
        }
        let address = "127.0.0.1:9".parse().unwrap();
        let error = connect_tcp_from("192.0.2.1".parse().unwrap(), address).unwrap_err();
        assert_eq!(error, Errno::ADDRNOTAVAIL);
    }

    #[test]
    fn the_peer_sees_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, _) = connect_tcp(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert!(sockopt::tcp_nodelay(&fd).unwrap());
        take_error(fd.as_fd()).unwrap();
        peer.write_all(b"x").unwrap();
        reset_on_close(fd.as_fd()).unwrap();
        drop(fd);
        let error = peer.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn datagrams_come_one_at_a_time() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (fd, connected) = connect_udp(peer.local_addr().unwrap()).unwrap();
        assert_eq!(connected, Ok(true));
        assert_eq!(receive(fd.as_fd(), &mut [0; 8]).unwrap_err(), Errno::AGAIN);
        send(fd.as_fd(), &[b"question"], false).unwrap();
        let (_, from) = peer.recv_from(&mut [0; 8]).unwrap();
        peer.send_to(b"one", from).unwrap();
        peer.send_to(b"three", from).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(receive(fd.as_fd(), &mut bytes).unwrap(), 3);
        assert_eq!(receive(fd.as_fd(), &mut bytes[..4]).unwrap(), 4);
        assert_eq!(receive(fd.as_fd(), &mut bytes).unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn state_peek_and_discard_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, _) = connect_tcp(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert!(is_nonblocking(fd.as_fd()).unwrap() && !is_nonblocking(peer.as_fd()).unwrap());
        assert_eq!(tcp_state(fd.as_fd()), Ok(TcpState::Established));
        assert_eq!(tcp_state(listener.as_fd()), Ok(TcpState::Other));
        peer.write_all(b"abcdef").unwrap();
        let mut bytes = [0; 8];
        assert_eq!(peek(fd.as_fd(), &mut bytes[..5]), Ok(5));
        assert_eq!(discard(fd.as_fd(), &mut bytes[..3]), Ok(3));
        assert_eq!(receive(fd.as_fd(), &mut bytes), Ok(3));
        assert_eq!(&bytes[..5], b"defde");
        drop(peer);
        while tcp_state(fd.as_fd()) == Ok(TcpState::Established) {
            std::thread::yield_now();
        }
        assert_eq!(tcp_state(fd.as_fd()), Ok(TcpState::CloseWait));
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(tcp_state(end.as_fd()).is_err());
    }
}
