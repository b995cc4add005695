//! Listening sockets, opened by the supervisor and handed to the workers.

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

/// Connections that the kernel keeps for a listener before they are accepted; what listen(2) cuts
/// down to /proc/sys/net/core/somaxconn, whose default is the same number since Linux 5.4.
const BACKLOG: i32 = 4096;

/// Bytes that the kernel takes for a TCP peer beyond those that are on their way to it
/// (TCP_NOTSENT_LOWAT). It asks for more when half of them are left, which last half a millisecond
/// at 1 Gbit/s. Without this bound, peers that read nothing take megabytes of the kernel's memory
/// each (tcp_wmem), which no budget of ours counts, until TCP has none left for anybody (tcp_mem).
const UNSENT_MAX: libc::c_int = 128 * 1024;

/// A listening TCP socket: non-blocking, closed on exec, SO_REUSEADDR, IPV6_V6ONLY (an IPv4 client
/// never shows up in its IPv4-mapped form), and what connections inherit from it: TCP_NODELAY, and
/// TCP_NOTSENT_LOWAT at 128 KiB.
///
/// `reuse_port` lets several sockets of one user listen at the address, among which the kernel
/// spreads connections by a hash of their addresses (SO_REUSEPORT).
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

/// A listening Unix stream socket at `path`, with the permission bits `mode` (0o666 is what web
/// servers do: who may connect is then up to the directory).
///
/// A socket file that nobody listens on any more is replaced. Two processes that replace the same
/// stale file at the same moment may leave the first with a socket that has no name; a lock file
/// would be needed to exclude it.
///
/// # Errors
/// EADDRINUSE when somebody listens there or the file is no socket; those of bind(2); EINVAL or
/// ENAMETOOLONG for a path of more than 107 bytes.
pub fn listen_unix(path: &Path, mode: u32) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let fd = open_socket(AddressFamily::UNIX, SocketType::STREAM)?;
    // Linux gives the file the socket's own mode, less the umask: no file's mode has to be changed,
    // which the proxy's restrictions do not let it do.
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

/// bind(2) without a umask, which is the whole process's: a file that another thread creates
/// meanwhile gets the mode that it asks for.
fn bind_unmasked(fd: &OwnedFd, address: &SocketAddrUnix) -> Result<()> {
    let mask = umask(Mode::empty());
    let bound = rustix::net::bind(fd, address);
    umask(mask);
    bound
}

/// The address that a TCP or UDP socket is bound to (getsockname(2)); `None` of a Unix socket.
///
/// # Errors
/// ENOTSOCK.
pub fn local_address(fd: BorrowedFd<'_>) -> Result<Option<SocketAddr>> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(fd)?).ok())
}

/// Whether a socket listens (SO_ACCEPTCONN).
///
/// # Errors
/// ENOTSOCK.
pub fn is_listening(fd: BorrowedFd<'_>) -> Result<bool> {
    sockopt::socket_acceptconn(fd)
}

/// Gives a listener that was opened elsewhere what [`listen_tcp`] and [`listen_unix`] set:
/// accepting from it does not block, and TCP connections inherit TCP_NODELAY and TCP_NOTSENT_LOWAT.
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

/// Sets what each TCP connection is to have, on itself or on the listener that it inherits it from:
/// TCP_NODELAY, and TCP_NOTSENT_LOWAT at 128 KiB.
pub(crate) fn set_stream_options(fd: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    let bytes = UNSENT_MAX;
    // SAFETY: the kernel reads an int, of the size that is given, while it lives.
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

/// A socket that never blocks, closed on exec.
pub(crate) fn open_socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, kind, flags, None)
}

pub(crate) fn family_of(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Whether `path` is a socket that nobody listens on. Only ECONNREFUSED says so: a full backlog
/// (EAGAIN) has somebody behind it, and any other error proves nothing.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Ok(false),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(errno(error)),
        _ => {}
    }
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
    fn little_is_taken_for_a_client_that_reads_nothing() {
        let opened = listen_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let handed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        prepare_listener(handed.as_fd()).unwrap();
        for listener in [opened.as_fd(), handed.as_fd()] {
            // Its window is closed before much can be on its way.
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
            // The bound is asked for at each new segment, and one has up to 64 KiB.
            let bound = 2 * UNSENT_MAX as usize;
            assert!((UNSENT_MAX as usize..bound).contains(&taken), "{taken} bytes were taken");
        }
    }

    #[test]
    fn a_port_is_shared_only_when_asked() {
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
