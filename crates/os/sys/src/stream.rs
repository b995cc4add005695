//! Connected stream sockets: which two are the ends of one connection, and how many bytes have gone
//! through them.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, netlink};

use crate::{Result, last_error, unacknowledged_bytes};

/// The family of a connected stream socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamFamily {
    /// A Unix stream socket.
    Unix,
    /// A TCP socket over IPv4 or IPv6.
    Tcp,
}

/// The addresses of an end of a TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpConnection {
    /// The address of this end. An IPv4 address within IPv6 is an IPv4 address here.
    pub local: SocketAddr,
    /// The address of the other end.
    pub peer: SocketAddr,
    /// The network namespace (SO_NETNS_COOKIE).
    pub namespace: u64,
}

/// Counters of a TCP connection (tcp(7), TCP_INFO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpCounters {
    /// Both directions are open.
    pub is_established: bool,
    /// The sent bytes that the peer's kernel has received; one more at the end that has connected.
    pub acknowledged: u64,
    /// The bytes that were received from the peer; one more after its last byte.
    pub received: u64,
    /// The bytes that were written, unless the kernel has failed to send some at first.
    pub written: u64,
}

/// The state of a Unix socket, as far as it was requested.
#[derive(Clone, Copy, Default)]
struct UnixStatus {
    peer: Option<u32>,
    unread: Option<u32>,
}

/// Returns the family of a connected stream socket, if reading from it at any time returns the
/// bytes that were written at the other end, and nothing else; otherwise `None`: for other
/// sockets, listeners, TCP connections that are not established or are encrypted by the kernel
/// (TCP_ULP), and sockets that receive credentials (SO_PASSCRED) or wait for several bytes
/// (SO_RCVLOWAT).
///
/// # Errors
/// ENOTSOCK.
pub fn stream_family(fd: BorrowedFd<'_>) -> Result<Option<StreamFamily>> {
    if !is_stream_socket(fd)? || sockopt::socket_acceptconn(fd)? {
        return Ok(None);
    }
    let least = option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT)?;
    if c_int::from_ne_bytes(least) != 1 {
        return Ok(None);
    }
    match sockopt::socket_domain(fd)? {
        AddressFamily::UNIX => Ok((!sockopt::socket_passcred(fd)?).then_some(StreamFamily::Unix)),
        AddressFamily::INET | AddressFamily::INET6 => {
            let is_tcp = sockopt::socket_protocol(fd)? == Some(ipproto::TCP);
            let is_plain = is_tcp && tcp_counters(fd)?.is_established && !has_protocol_above(fd)?;
            Ok(is_plain.then_some(StreamFamily::Tcp))
        }
        _ => Ok(None),
    }
}

/// Returns whether a socket keeps no boundaries of messages (SOCK_STREAM).
///
/// # Errors
/// ENOTSOCK.
pub fn is_stream_socket(fd: BorrowedFd<'_>) -> Result<bool> {
    Ok(sockopt::socket_type(fd)? == SocketType::STREAM)
}

/// Returns the number of a socket, which no other one of this kernel ever has (SO_COOKIE).
///
/// # Errors
/// ENOTSOCK.
pub fn socket_number(fd: BorrowedFd<'_>) -> Result<u64> {
    sockopt::socket_cookie(fd)
}

/// Returns the addresses of an end of a TCP connection. At any time, only one socket of a network
/// namespace has these, and only the other end has them in the other order. Returns `None` where
/// that is not so: if the socket is bound to a device (SO_BINDTOIFINDEX), or is its own peer.
///
/// # Errors
/// ENOTCONN; ENOPROTOOPT before Linux 5.14.
pub fn tcp_connection(fd: BorrowedFd<'_>) -> Result<Option<TcpConnection>> {
    let address = |any: rustix::net::SocketAddrAny| {
        let address = SocketAddr::try_from(any)?;
        Ok::<_, Errno>(SocketAddr::new(address.ip().to_canonical(), address.port()))
    };
    let local = address(rustix::net::getsockname(fd)?)?;
    let peer = rustix::net::getpeername(fd)?.ok_or(Errno::NOTCONN).and_then(address)?;
    let namespace = u64::from_ne_bytes(option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)?);
    let device = c_int::from_ne_bytes(option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)?);
    let is_unique = device == 0 && local != peer;
    Ok(is_unique.then_some(TcpConnection { local, peer, namespace }))
}

impl TcpConnection {
    /// Returns the addresses as the other end has them.
    #[must_use]
    pub fn other_end(self) -> Self {
        Self { local: self.peer, peer: self.local, ..self }
    }

    /// Returns whether both ends certainly are on this host.
    pub fn is_within_host(&self) -> bool {
        let (local, peer) = (self.local.ip(), self.peer.ip());
        local == peer || (local.is_loopback() && peer.is_loopback())
    }
}

/// Returns counters of a TCP connection, all of one moment.
///
/// # Errors
/// EOPNOTSUPP or ENOPROTOOPT if the socket is not TCP, or before Linux 4.19; ENOTSOCK.
pub fn tcp_counters(fd: BorrowedFd<'_>) -> Result<TcpCounters> {
    let mut info = [0u8; TCP_INFO_BYTES];
    let mut length = info.len() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: `info` has room for `length` bytes, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &raw mut length)
    };
    if failed != 0 {
        return Err(last_error());
    }
    if (length as usize) < TCP_INFO_BYTES {
        return Err(Errno::NOPROTOOPT);
    }
    let word = |at: usize| {
        let bytes = info[at..].first_chunk().expect("it is within the result");
        u64::from_ne_bytes(*bytes)
    };
    let bytes = info[NOT_SENT..].first_chunk().expect("it is within the result");
    let not_sent = u64::from(u32::from_ne_bytes(*bytes));
    Ok(TcpCounters {
        is_established: info[0] == TCP_ESTABLISHED,
        acknowledged: word(BYTES_ACKED),
        received: word(BYTES_RECEIVED),
        written: (word(BYTES_SENT) + not_sent).wrapping_sub(word(BYTES_RETRANSMITTED)),
    })
}

/// Returns the bytes that were written to a TCP connection by any process, and one more at the end
/// that has connected; `None` unless both directions are open.
///
/// # Errors
/// Those of [`tcp_counters`].
pub fn tcp_written(fd: BorrowedFd<'_>) -> Result<Option<u64>> {
    let mut before = tcp_counters(fd)?.acknowledged;
    loop {
        let waiting = unacknowledged_bytes(fd)? as u64;
        let TcpCounters { is_established, acknowledged, .. } = tcp_counters(fd)?;
        if acknowledged == before {
            return Ok(is_established.then_some(acknowledged + waiting));
        }
        before = acknowledged;
    }
}

/// Returns the inode of the socket at the other end of a Unix stream socket; 0 before the
/// connection is accepted, and after the other end was closed. The socket has to be of the network
/// namespace of this process.
///
/// # Errors
/// ENOENT if it is of another one; ENOTCONN if it has no peer; EPROTONOSUPPORT if the
/// kernel has no sock_diag(7) for Unix sockets.
pub fn unix_peer(fd: BorrowedFd<'_>) -> Result<u64> {
    let inode = rustix::fs::fstat(fd)?.st_ino;
    let status = unix_status(inode, socket_number(fd)?, UDIAG_SHOW_PEER)?;
    status.peer.map(u64::from).ok_or(Errno::NOTCONN)
}

/// Returns the bytes that wait to be read in a Unix stream socket, by its inode. The socket has to
/// be of the network namespace of this process.
///
/// # Errors
/// ENOENT if it is not, or is closed.
pub fn unix_unread(inode: u64) -> Result<u64> {
    let status = unix_status(inode, u64::MAX, UDIAG_SHOW_RQLEN)?;
    status.unread.map(u64::from).ok_or(Errno::NOENT)
}

/// Requests the state of a Unix socket from the kernel (sock_diag(7)).
fn unix_status(inode: u64, number: u64, show: u32) -> Result<UnixStatus> {
    let inode = u32::try_from(inode).map_err(|_| Errno::NOENT)?;
    let kind = SocketType::DGRAM;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, protocol)?;
    let mut packet = [0; REQUEST_BYTES];
    let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(HEADER_BYTES, &AddressFamily::UNIX.as_raw().to_le_bytes());
    let words = [u32::MAX, inode, show, number as u32, (number >> 32) as u32];
    for (at, word) in words.into_iter().enumerate() {
        put(HEADER_BYTES + 4 + 4 * at, &word.to_ne_bytes());
    }
    rustix::net::send(&socket, &packet, SendFlags::empty())?;
    let mut response = [0; 1024];
    let (_, length) = rustix::net::recv(&socket, &mut response, RecvFlags::empty())?;
    read_unix_status(&response[..length.min(response.len())])
}

/// Reads a response of sock_diag(7): a header, a status of fixed length, and attributes.
fn read_unix_status(packet: &[u8]) -> Result<UnixStatus> {
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::PROTO)
    };
    let half = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map(|bytes| u16::from_ne_bytes(*bytes)).ok_or(Errno::PROTO)
    };
    match half(packet, 4)? {
        SOCK_DIAG_BY_FAMILY => {}
        NLMSG_ERROR => {
            let error = word(packet, HEADER_BYTES)?.cast_signed().wrapping_neg();
            return Err(if error > 0 { Errno::from_raw_os_error(error) } else { Errno::PROTO });
        }
        _ => return Err(Errno::PROTO),
    }
    let mut status = UnixStatus::default();
    let mut rest = packet.get(HEADER_BYTES + UNIX_STATUS_BYTES..).unwrap_or_default();
    while rest.len() >= ATTRIBUTE_HEADER_BYTES {
        let (length, name) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let value = || word(rest, ATTRIBUTE_HEADER_BYTES);
        match name {
            UNIX_DIAG_PEER => status.peer = Some(value()?),
            UNIX_DIAG_RQLEN => status.unread = Some(value()?),
            _ => {}
        }
        let next = length.max(ATTRIBUTE_HEADER_BYTES).next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    Ok(status)
}

/// Sends nothing, to find out whether bytes can be sent on a stream socket.
///
/// # Errors
/// EPIPE, without a signal, if one side has shut down this direction; the pending error of the
/// connection, which it clears.
pub fn check_sending(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::net::send(fd, &[], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

/// Returns how long read(2) waits on a socket (SO_RCVTIMEO); `None`: for ever.
///
/// # Errors
/// ENOTSOCK.
pub fn receive_timeout(fd: BorrowedFd<'_>) -> Result<Option<Duration>> {
    sockopt::socket_timeout(fd, Timeout::Recv)
}

/// Returns whether the kernel changes the bytes of a TCP connection, as for TLS (TCP_ULP).
fn has_protocol_above(fd: BorrowedFd<'_>) -> Result<bool> {
    let mut name = [0u8; 16];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: `name` has room for `length` bytes, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_ULP,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if failed == 0 { Ok(length > 0) } else { Err(last_error()) }
}

/// Returns an option whose value has `N` bytes.
fn option<const N: usize>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<[u8; N]> {
    let mut value = [0; N];
    let mut length = N as libc::socklen_t;
    let at = (&raw mut value).cast();
    // SAFETY: `value` has room for `length` bytes, and both outlive the call.
    let failed = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut length) };
    if failed != 0 {
        return Err(last_error());
    }
    if length as usize == N { Ok(value) } else { Err(Errno::INVAL) }
}

/// Its number on all architectures but four old ones.
const SO_NETNS_COOKIE: c_int = 71;
/// tcp_states.h.
const TCP_ESTABLISHED: u8 = 1;
/// The offsets of fields of `struct tcp_info`, whose fields do not move (linux/tcp.h).
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const NOT_SENT: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANSMITTED: usize = 208;
const TCP_INFO_BYTES: usize = 216;
/// The lengths of `struct nlmsghdr` and `struct unix_diag_req` (linux/unix_diag.h).
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 24;
/// The length of `struct unix_diag_msg`.
const UNIX_STATUS_BYTES: usize = 16;
/// The length of `struct nlattr`.
const ATTRIBUTE_HEADER_BYTES: usize = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const UDIAG_SHOW_PEER: u32 = 4;
const UDIAG_SHOW_RQLEN: u32 = 16;
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_RQLEN: u16 = 4;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn inode(fd: &impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    fn tcp_pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn the_ends_of_a_unix_connection_are_known() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        assert_eq!(stream_family(one.as_fd()), Ok(Some(StreamFamily::Unix)));
        assert_eq!(unix_peer(one.as_fd()), Ok(inode(&other)));
        assert_eq!(unix_peer(other.as_fd()), Ok(inode(&one)));
        one.write_all(&[1; 10_000]).unwrap();
        other.read_exact(&mut [0; 3000]).unwrap();
        assert_eq!(unix_unread(inode(&other)), Ok(7000));
        assert_eq!(unix_unread(inode(&one)), Ok(0));
        let closed = inode(&other);
        drop(other);
        // The children of other tests have a copy of each descriptor until exec(2).
        while unix_unread(closed).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(unix_unread(closed), Err(Errno::NOENT));
        assert_eq!(unix_peer(one.as_fd()), Ok(0));
    }

    #[test]
    fn the_ends_of_a_tcp_connection_are_known() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut one, mut other) = tcp_pair(address);
            assert_eq!(stream_family(one.as_fd()), Ok(Some(StreamFamily::Tcp)));
            let ends = [&one, &other].map(|end| tcp_connection(end.as_fd()).unwrap().unwrap());
            assert_eq!(ends[0].other_end(), ends[1]);
            assert!(ends[0].is_within_host());
            one.write_all(&[1; 10_000]).unwrap();
            other.write_all(&[1; 777]).unwrap();
            other.read_exact(&mut [0; 10_000]).unwrap();
            one.read_exact(&mut [0; 777]).unwrap();
            assert_eq!(tcp_written(one.as_fd()), Ok(Some(10_001)), "the end that has connected");
            assert_eq!(tcp_written(other.as_fd()), Ok(Some(777)));
            let [one, other] = [&one, &other].map(|end| tcp_counters(end.as_fd()).unwrap());
            assert_eq!((one.written, one.received), (10_000, 777));
            assert_eq!((other.written, other.received), (777, 10_000));
        }
    }

    #[test]
    fn an_ipv4_address_within_ipv6_is_the_same() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let port = listener.local_addr().unwrap().port();
        let one = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let other = listener.accept().unwrap().0;
        let ends = [&one, &other].map(|end| tcp_connection(end.as_fd()).unwrap().unwrap());
        assert_eq!(ends[0].other_end(), ends[1]);
    }

    #[test]
    fn other_sockets_are_no_streams() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (packets, _other) = crate::packet_pair().unwrap();
        let (file, ..) = crate::pipe(4096).unwrap();
        assert_eq!(stream_family(listener.as_fd()), Ok(None));
        assert_eq!(stream_family(datagrams.as_fd()), Ok(None));
        assert_eq!(stream_family(packets.as_fd()), Ok(None));
        assert_eq!(stream_family(file.as_fd()), Err(Errno::NOTSOCK));
        let (one, other) = UnixStream::pair().unwrap();
        sockopt::set_socket_passcred(&one, true).unwrap();
        assert_eq!(stream_family(one.as_fd()), Ok(None));
        assert_eq!(stream_family(other.as_fd()), Ok(Some(StreamFamily::Unix)));
    }

    #[test]
    fn nothing_is_sent_to_find_out_whether_it_can_be() {
        let (one, other) = UnixStream::pair().unwrap();
        let (client, _server) = tcp_pair("127.0.0.1:0");
        assert_eq!(check_sending(one.as_fd()), Ok(()));
        assert_eq!(check_sending(client.as_fd()), Ok(()));
        assert_eq!(crate::waiting_bytes(other.as_fd()), Ok(0));
        other.shutdown(std::net::Shutdown::Read).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(tcp_written(client.as_fd()), Ok(None));
        assert_eq!(check_sending(one.as_fd()), Err(Errno::PIPE));
        assert_eq!(check_sending(client.as_fd()), Err(Errno::PIPE));
    }

    #[test]
    fn responses_that_are_cut_are_refused() {
        for length in 0..HEADER_BYTES + 4 {
            let mut packet = [0; HEADER_BYTES + 4];
            packet[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            assert!(read_unix_status(&packet[..length]).is_err());
        }
    }
}
