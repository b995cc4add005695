//! Congestion control algorithms by name (tcp(7), TCP_CONGESTION).

use std::os::fd::BorrowedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::Result;

/// The longest name that the kernel accepts, in bytes: TCP_CA_NAME_MAX without the terminating
/// zero.
pub const CONGESTION_NAME_BYTES_MAX: usize = 15;

/// Sets the algorithm of a TCP socket. Connections that a listener accepts from now on inherit it,
/// unless their route names another one (ip-route(8), congctl).
///
/// # Errors
/// ENOENT if the kernel has no algorithm of that name and cannot load one; EPERM if the name is not
/// in /proc/sys/net/ipv4/tcp_allowed_congestion_control and the process lacks CAP_NET_ADMIN;
/// EOPNOTSUPP if the socket is not TCP.
pub fn set_congestion(fd: BorrowedFd<'_>, name: &str) -> Result<()> {
    sockopt::set_tcp_congestion(fd, name)
}

/// Returns the algorithm of a TCP socket.
///
/// # Errors
/// EOPNOTSUPP if the socket is not TCP.
pub fn congestion(fd: BorrowedFd<'_>) -> Result<String> {
    sockopt::tcp_congestion(fd)
}

/// Returns the algorithm of new TCP sockets in this network namespace
/// (/proc/sys/net/ipv4/tcp_congestion_control).
///
/// # Errors
/// Those of socket(2).
pub fn default_congestion() -> Result<String> {
    let fd = probe()?;
    sockopt::tcp_congestion(&fd)
}

/// Checks whether sockets of this process can use the algorithm `name`, by setting it on a new
/// socket. No other check includes algorithms in modules that are not loaded yet.
///
/// # Errors
/// Those of [`set_congestion`] and of socket(2).
pub fn try_congestion(name: &str) -> Result<()> {
    let fd = probe()?;
    sockopt::set_tcp_congestion(&fd, name)
}

/// Opens a socket that is never connected: IPv4 or, on a machine without it, IPv6.
fn probe() -> Result<std::os::fd::OwnedFd> {
    let open =
        |family| rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    open(AddressFamily::INET).or_else(|_| open(AddressFamily::INET6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::net::TcpStream;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn connections_inherit_the_algorithm_of_their_listener() {
        let listener = crate::listen_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let bound = crate::local_address(listener.as_fd()).unwrap().unwrap();
        let accepted = || {
            let client = TcpStream::connect(bound).unwrap();
            let (fd, _) = crate::accept(listener.as_fd()).unwrap();
            drop(client);
            congestion(fd.as_fd()).unwrap()
        };
        assert_eq!(accepted(), default_congestion().unwrap());
        // Every kernel has reno built in, and every user may use it.
        set_congestion(listener.as_fd(), "reno").unwrap();
        assert_eq!(accepted(), "reno");
    }

    #[test]
    fn an_algorithm_that_the_kernel_lacks_is_refused() {
        try_congestion("reno").unwrap();
        try_congestion(&default_congestion().unwrap()).unwrap();
        assert_eq!(try_congestion("no-such-thing"), Err(Errno::NOENT));
        let (end, _other) = UnixStream::pair().unwrap();
        assert_eq!(set_congestion(end.as_fd(), "reno"), Err(Errno::OPNOTSUPP));
    }
}
