//! Listening sockets. The supervisor opens them and passes them to the workers.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::umask;

use crate::{Result, last_error};

/// Connections that the kernel queues for a listener before they are accepted. listen(2) reduces
/// the number to /proc/sys/net/core/somaxconn, whose default has been the same number since Linux
/// 5.4.
const BACKLOG: i32 = 4096;

/// The most unsent bytes that the kernel holds for a TCP connection, beyond those in flight
/// (TCP_NOTSENT_LOWAT). The kernel reports room again when half of them are left, enough for half a
/// millisecond at 1 Gbit/s. Without this bound, each peer that reads nothing would occupy megabytes
/// of kernel memory (tcp_wmem), which no budget of ours counts. Enough such peers would leave TCP
/// no memory for any connection (tcp_mem).
const UNSENT_MAX: libc::c_int = 128 * 1024;

/// Opens a listening TCP socket: non-blocking, closed on exec, with SO_REUSEADDR and IPV6_V6ONLY,
/// so that an IPv4 client never appears with an IPv4-mapped address. Accepted connections inherit
/// TCP_NODELAY, and TCP_NOTSENT_LOWAT of 128 KiB.
///
/// With `reuse_port`, several sockets of one user can listen at the address. The kernel then
/// distributes connections among them by a hash of their addresses (SO_REUSEPORT).
///
/// # Errors
/// Those of socket(2), bind(2) and listen(2): EADDRINUSE, EADDRNOTAVAIL, EACCES, EMFILE, ...
pub fn listen_tcp(address: SocketAddr, reuse_port: bool) -> Result<OwnedFd> {
    let fd = open_socket(family_of(address), SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    set_stream_options(fd.as_fd())?;
    rustix::net::bind(&fd, &address)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Opens a listening Unix stream socket at `path` with the permission bits `mode`. Web servers use
/// 0o666, which leaves access control to the directory.
///
/// A socket file on which no process listens any more is replaced. If two processes replace the
/// same stale file at the same moment, the first may be left with a socket without a name.
/// Excluding that would need a lock file.
///
/// # Errors
/// EADDRINUSE if a process listens there, or if the file is not a socket; those of bind(2); EINVAL
/// or ENAMETOOLONG for a path of more than 107 bytes.
pub fn listen_unix(path: &Path, mode: u32) -> Result<OwnedFd> {
    listen_at(path, mode, SocketType::STREAM)
}

/// Opens a listening Unix packet socket (SOCK_SEQPACKET), as [`listen_unix`] opens a stream socket.
///
/// # Errors
/// As [`listen_unix`].
pub fn listen_packets(path: &Path, mode: u32) -> Result<OwnedFd> {
    listen_at(path, mode, SocketType::SEQPACKET)
}

fn listen_at(path: &Path, mode: u32, kind: SocketType) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let fd = open_socket(AddressFamily::UNIX, kind)?;
    // Linux gives the file the mode of the socket, reduced by the umask. So no mode has to be
    // changed by chmod(2), which the proxy's confinement forbids.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    match bind_unmasked(&fd, &address) {
        Err(Errno::ADDRINUSE) if is_stale(path, &address)? => {
            std::fs::remove_file(path).map_err(errno)?;
            bind_unmasked(&fd, &address)?;
        }
        bound => bound?,
    }
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Calls bind(2) with the umask cleared. The umask applies to the whole process: a file that
/// another thread creates in the meantime gets exactly the mode that it requests.
fn bind_unmasked(fd: &OwnedFd, address: &SocketAddrUnix) -> Result<()> {
    let mask = umask(Mode::empty());
    let bound = rustix::net::bind(fd, address);
    umask(mask);
    bound
}

/// Returns the address to which a TCP or UDP socket is bound (getsockname(2)); `None` for a Unix
/// socket.
///
/// # Errors
/// ENOTSOCK.
pub fn local_address(fd: BorrowedFd<'_>) -> Result<Option<SocketAddr>> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(fd)?).ok())
}

/// Returns whether a socket listens (SO_ACCEPTCONN).
///
/// # Errors
/// ENOTSOCK.
pub fn is_listening(fd: BorrowedFd<'_>) -> Result<bool> {
    sockopt::socket_acceptconn(fd)
}

/// Sets the options of [`listen_tcp`] and [`listen_unix`] on a listener that was opened elsewhere:
/// accepting does not block, and TCP connections inherit TCP_NODELAY and TCP_NOTSENT_LOWAT.
///
/// # Errors
/// ENOTSOCK.
pub fn prepare_listener(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::io::ioctl_fionbio(fd, true)?;
    match sockopt::socket_domain(fd)? {
        AddressFamily::UNIX => Ok(()),
        _ => set_stream_options(fd),
    }
}

/// Sets the options of every TCP connection, on the connection itself or on the listener from which
/// it inherits them: TCP_NODELAY, and TCP_NOTSENT_LOWAT of 128 KiB.
pub(crate) fn set_stream_options(fd: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    let bytes = UNSENT_MAX;
    // SAFETY: the kernel reads an int of the given size, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Opens a socket that never blocks; closed on exec.
pub(crate) fn open_socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, kind, flags, None)
}

pub(crate) fn family_of(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Returns whether `path` is a socket on which no process listens. Only ECONNREFUSED shows that:
/// behind a full backlog (EAGAIN) there is a process, and any other error proves nothing.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Ok(false),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(errno(error)),
        _ => {}
    }
    // The kernel compares the types of the sockets only if a process listens.
    let probe = open_socket(AddressFamily::UNIX, SocketType::STREAM)?;
    Ok(rustix::net::connect(probe.as_fd(), address) == Err(Errno::CONNREFUSED))
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_client_that_reads_nothing_fills_little_kernel_memory() {
        let opened = listen_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let handed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        prepare_listener(handed.as_fd()).unwrap();
        for listener in [opened.as_fd(), handed.as_fd()] {
            // The client's window closes before much can be on its way.
            let client = open_socket(AddressFamily::INET, SocketType::STREAM).unwrap();
            sockopt::set_socket_recv_buffer_size(&client, 4096).unwrap();
            rustix::io::ioctl_fionbio(&client, false).unwrap();
            rustix::net::connect(&client, &local_address(listener).unwrap().unwrap()).unwrap();
            let (accepted, _) = crate::accept(listener).unwrap();
            let mut taken = 0;
            loop {
                match crate::socket::send(accepted.as_fd(), &[&[0; 16 * 1024]], false) {
                    Ok(count) => taken += count,
                    Err(error) => break assert_eq!(error, Errno::AGAIN),
                }
            }
            // The bound is checked at each new segment, and a segment has up to 64 KiB.
            let bound = 2 * UNSENT_MAX as usize;
            assert!((UNSENT_MAX as usize..bound).contains(&taken), "{taken} bytes were taken");
        }
    }

    #[test]
    fn a_port_is_shared_only_on_request() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let first = listen_tcp(address.parse().unwrap(), true).unwrap();
            let bound = local_address(first.as_fd()).unwrap().unwrap();
            assert!(is_listening(first.as_fd()).unwrap());
            assert_eq!(listen_tcp(bound, false).unwrap_err(), Errno::ADDRINUSE);
            let _second = listen_tcp(bound, true).unwrap();
            TcpStream::connect(bound).unwrap();
        }
    }

    #[test]
    fn connections_inherit_nodelay_from_their_listener() {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let bound = local_address(listener.as_fd()).unwrap().unwrap();
        let _client = TcpStream::connect(bound).unwrap();
        let (accepted, peer) = crate::accept(listener.as_fd()).unwrap();
        assert_eq!(peer, Some(_client.local_addr().unwrap()));
        assert!(sockopt::tcp_nodelay(&accepted).unwrap());
    }

    #[test]
    fn only_a_stale_unix_socket_is_replaced() {
        let folder = std::env::temp_dir().join(format!("millrace-listen-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let listener = listen_unix(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen_unix(&path, 0o600).unwrap_err(), Errno::ADDRINUSE);
        UnixStream::connect(&path).unwrap();
        assert_eq!(crate::accept(listener.as_fd()).unwrap().1, None);
        let file = folder.join("file");
        std::fs::write(&file, "kept").unwrap();
        assert_eq!(listen_unix(&file, 0o600).unwrap_err(), Errno::ADDRINUSE);
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
