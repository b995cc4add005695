"""The sockets of another process, duplicated by pidfd_getfd(2). This gives access to options such
as TCP_NODELAY, which ss(8) does not show."""

import ctypes
import os
import socket

# The same number on every architecture (Linux 5.6).
PIDFD_GETFD = 438
# linux/tcp.h; Python has no name for it on all versions.
TCP_CONGESTION = 13


def of_process(pid):
    """Returns duplicates of the connected TCP sockets of a process, which the caller closes."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    found = []
    pidfd = os.pidfd_open(pid)
    try:
        for number in map(int, os.listdir(f"/proc/{pid}/fd")):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{number}")
            except FileNotFoundError:
                continue
            if not link.startswith("socket:"):
                continue
            copy = call(PIDFD_GETFD, pidfd, number, 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            candidate = socket.socket(fileno=copy)
            if is_connected_tcp(candidate):
                found.append(candidate)
            else:
                candidate.close()
    finally:
        os.close(pidfd)
    return found


def is_connected_tcp(candidate):
    """Returns whether a socket is a TCP connection rather than a listener."""
    if candidate.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        candidate.getpeername()
    except OSError:
        return False
    return candidate.type == socket.SOCK_STREAM


def nodelay(connection):
    """Returns whether TCP_NODELAY is set."""
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def congestion(connection):
    """Returns the name of the congestion control."""
    name = connection.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16)
    return name.split(b"\0")[0].decode()


# sd_listen_fds(3)
LISTEN_FDS_START = 3


def passing_on(listeners):
    """Returns a `preexec_fn` that passes these sockets to a child as descriptors 3 and up."""
    def pass_on():
        # Each socket first gets a high number, so that no descriptor is overwritten before it is
        # duplicated.
        for number, listener in enumerate(listeners, LISTEN_FDS_START):
            os.dup2(listener.fileno(), number + 100)
        for number in range(LISTEN_FDS_START, LISTEN_FDS_START + len(listeners)):
            os.dup2(number + 100, number)
            os.close(number + 100)

    return pass_on if listeners else None
