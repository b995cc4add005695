"""Network namespaces without names, in processes that die with this one: nothing is left behind
however this program ends. Needs root."""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess

# linux/sched.h, linux/prctl.h, linux/sockios.h.
CLONE_NEWNET, PR_SET_PDEATHSIG, SIOCETHTOOL = 0x40000000, 1, 0x8946
# linux/ethtool.h: the requests that turn these on or off.
ETHTOOL_SET = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C}
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(done):
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def enter(path):
    """Moves this thread to the network namespace of a file such as /proc/PID/ns/net."""
    with open(path) as file:
        _checked(_libc.setns(file.fileno(), CLONE_NEWNET))


@contextlib.contextmanager
def inside(path):
    """Moves this thread to another namespace inside the context. Sockets that are created there
    stay there."""
    with open("/proc/thread-self/ns/net") as before:
        enter(path)
        try:
            yield
        finally:
            _checked(_libc.setns(before.fileno(), CLONE_NEWNET))


def die_with_parent():
    """Has the kernel kill this process when its parent dies."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _live_apart():
    die_with_parent()
    _checked(_libc.unshare(CLONE_NEWNET))


class Namespace:
    """A new namespace. `path` is its file for enter(), `pid` a process in it."""

    def __init__(self):
        # Popen returns when sleep(1) has been executed, which is after the namespace was created.
        self.holder = subprocess.Popen(["sleep", "infinity"], preexec_fn=_live_apart)
        self.pid, self.path = self.holder.pid, f"/proc/{self.holder.pid}/ns/net"

    def close(self):
        """Removes the namespace, unless another process is in it."""
        self.holder.kill()
        self.holder.wait()


def ip(words):
    """Runs ip(8) in this thread's namespace."""
    subprocess.run(["ip", *words.split()], check=True)


def set_offload(interface, feature, on):
    """Turns a feature of ETHTOOL_SET on or off, as ethtool(8) does."""
    value = ctypes.create_string_buffer(struct.pack("=II", ETHTOOL_SET[feature], on))
    request = struct.pack("=16sQ8x", interface.encode(), ctypes.addressof(value))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
