"""pointers.py LANE/LANES [WORD...]: makes each call with each kind of bad pointer, in child
processes, and prints the results. LANE/LANES selects every LANESth case of all cases, or of those
whose names contain the words.

A line has the name of a case (call, argument, kind of pointer, state of the descriptors), a tab,
and the return value, errno and effect of the call, or the signal that ended the child.
"""

import ctypes
import errno
import itertools
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys

from calls._pair import tcp_pair

PAGE = mmap.PAGESIZE
SECONDS_MAX = 20
FAR = 100  # A descriptor beyond the first word of a set.

library = ctypes.CDLL(None, use_errno=True)
library.mmap.restype = ctypes.c_void_p
library.sendmsg.restype = ctypes.c_ssize_t
MAP_FIXED_NOREPLACE = 0x100000
# Addresses of the pointers under test. The kernel maps nothing there by itself, so an unmapped page
# stays unmapped. No two cases share a page.
TEST_ADDRESSES = itertools.count(0x1000_0000_0000, 16 * PAGE)
NONE, READ, WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE


def pages(count, start=0):
    """Maps pages at an address that the kernel chooses, or at `start`, which must be free."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_FIXED_NOREPLACE if start else 0)
    size = ctypes.c_size_t(count * PAGE)
    mapped = library.mmap(address(start), size, WRITE, flags, -1, ctypes.c_long(0))
    assert mapped != ctypes.c_size_t(-1).value and start in (0, mapped)
    return mapped


def protect(start, protection):
    assert library.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(PAGE), protection) == 0


def unmap(start):
    assert library.munmap(ctypes.c_void_p(start), ctypes.c_size_t(PAGE)) == 0


def put(start, content):
    ctypes.memmove(start, content, len(content))
    return start


def bad_address(kind, content):
    """Returns an address of this kind, with as much of the content as fits the memory there."""
    first = pages(3, next(TEST_ADDRESSES))
    second = first + PAGE
    if kind in ("good", "unmapped-since", "read-only-since"):
        return put(first, content)
    if kind == "read-only":
        put(first, content)
        protect(first, READ)
        return first
    if kind in ("fits", "half"):
        there = content if kind == "fits" else content[: len(content) // 2]
        protect(second, NONE)
        return put(second - len(there), there)
    if kind == "half-read-only":
        start = put(second - len(content) // 2, content)
        protect(second, READ)
        return start
    if kind == "unmapped":
        unmap(second)
        return second
    if kind == "no-access":
        protect(second, NONE)
        return second
    return {"null": 0, "low": 8, "kernel": 0xFFFF_8000_0000_0000, "last": (1 << 64) - 8}[kind]


KINDS = (
    "good", "fits", "null", "low", "unmapped", "no-access", "read-only", "half", "half-read-only",
    "kernel", "last",
)  # fmt: skip
# Memory that an earlier call used and that became bad since.
BAD_SINCE = ("unmapped-since", "read-only-since")


def make_bad(kind, start):
    if kind == "unmapped-since":
        unmap(start)
    else:
        protect(start, READ)


def done(code):
    number = ctypes.get_errno() if code == -1 else 0
    return f"{code} {errno.errorcode[number]}" if number else str(code)


def address(start):
    return ctypes.c_void_p(start)


class WaitedDescriptors:
    """Two descriptors that a case waits for, in the process that makes the call."""

    def __init__(self, state):
        self.far = []
        if state == "pipe":
            pipes = [os.pipe(), os.pipe()]
            self.fds = [read for read, _ in pipes]
            [os.write(write, b"x") for _, write in pipes]
        else:
            pairs = [tcp_pair(), tcp_pair()]
            self.fds = [near.detach() for near, _ in pairs]
            self.far = [far for _, far in pairs]
            # The first poll lets the library track them.
            self.poll(0)
            if state != "idle":
                [far.send(b"x") for far in self.far]
                while self.poll(1000) != [select.POLLIN] * 2:
                    pass
        os.dup2(os.open("/dev/null", os.O_RDONLY), FAR)

    def poll(self, timeout):
        poller = select.poll()
        [poller.register(fd, select.POLLIN) for fd in self.fds]
        return [event for _, event in poller.poll(timeout)]

    def epoll(self, flags=0):
        epoll = select.epoll()
        [epoll.register(fd, select.EPOLLIN | flags) for fd in self.fds]
        return epoll


# Contents for the good pointers.
TIME = struct.pack("qq", 0, 10_000_000)
SHORT = struct.pack("qq", 0, 10_000)
MASK = bytes(128)
MILLISECONDS = 10


class PointerCall:
    """A call in which the pointer `argument` is of `kind`, and all other pointers are good."""

    def __init__(self, argument, kind):
        self.argument, self.kind, self.bad = argument, kind, None

    def pointer(self, argument, content):
        if argument != self.argument:
            return address(put(pages(1), content))
        if self.bad is None:
            self.bad = bad_address(self.kind, content)
        return address(self.bad)

    def run(self, call):
        result_text = call(self)
        if self.kind in BAD_SINCE:
            make_bad(self.kind, self.bad)
            result_text += ", " + call(self)
        return result_text


class WaitCall(PointerCall):
    """A wait for descriptors in `state`."""

    def __init__(self, state, argument, kind):
        super().__init__(argument, kind)
        self.waited = WaitedDescriptors(state)


def entries(wait):
    return b"".join(struct.pack("ihh", fd, select.POLLIN, 0) for fd in wait.waited.fds)


def poll(wait):
    return done(library.poll(wait.pointer("fds", entries(wait)), 2, MILLISECONDS))


def poll_checked(wait):
    size = ctypes.c_size_t(16)
    return done(library.__poll_chk(wait.pointer("fds", entries(wait)), 2, MILLISECONDS, size))


def ppoll(wait):
    fds, time = wait.pointer("fds", entries(wait)), wait.pointer("timeout", TIME)
    return done(library.ppoll(fds, 2, time, wait.pointer("mask", MASK[:8])))


def ppoll_checked(wait):
    fds, time = wait.pointer("fds", entries(wait)), wait.pointer("timeout", TIME)
    mask, size = wait.pointer("mask", MASK[:8]), ctypes.c_size_t(16)
    return done(library.__ppoll_chk(fds, 2, time, mask, size))


def sets(wait):
    bits = sum(1 << fd for fd in wait.waited.fds)
    content = {"read": bits.to_bytes(16, "little")}
    return [wait.pointer(name, content.get(name, bytes(16))) for name in SETS]


def select_(wait):
    return done(library.select(FAR + 1, *sets(wait), wait.pointer("timeout", SHORT)))


def pselect(wait):
    time, mask = wait.pointer("timeout", TIME), wait.pointer("mask", MASK[:8])
    return done(library.pselect(FAR + 1, *sets(wait), time, mask))


def epoll_form(call, flags=0):
    """The next wait must return the events of a wait that failed."""

    def form(wait):
        if not hasattr(wait, "epoll"):
            wait.epoll = wait.waited.epoll(flags)
        events = wait.pointer("events", bytes(24))
        code = call(wait, wait.epoll.fileno(), events)
        while code == -1 and ctypes.get_errno() == errno.EINTR:
            # The process was stopped and continued: signal(7).
            code = call(wait, wait.epoll.fileno(), events)
        return done(code) + f" then {len(wait.epoll.poll(0))}"

    return form


def epoll_wait(wait, epoll, events):
    return library.epoll_wait(epoll, events, 2, MILLISECONDS)


def epoll_wait_long(wait, epoll, events):
    return library.epoll_wait(epoll, events, 100_000_000, MILLISECONDS)


def epoll_wait_too_long(wait, epoll, events):
    return library.epoll_wait(epoll, events, 0x7FFF_FFFF, MILLISECONDS)


def epoll_pwait(wait, epoll, events):
    return library.epoll_pwait(epoll, events, 2, MILLISECONDS, wait.pointer("mask", MASK[:8]))


def epoll_pwait2(wait, epoll, events):
    time, mask = wait.pointer("timeout", TIME), wait.pointer("mask", MASK[:8])
    return library.epoll_pwait2(epoll, events, 2, time, mask)


def epoll_ctl(operation):
    def form(wait):
        fd = wait.waited.fds[0]
        epoll = select.epoll()
        # The second descriptor, so that the instance has a tracked socket.
        epoll.register(wait.waited.fds[1], 0)
        if operation != select_add:
            epoll.register(fd, 0)
        event = wait.pointer("event", struct.pack("=IQ", select.EPOLLIN, fd))
        return done(library.epoll_ctl(epoll.fileno(), operation, fd, event)) + (
            f" then {epoll.poll(0)}".replace(str(fd), "fd")
        )

    return form


select_add, select_delete, select_modify = 1, 2, 3

ET, ONESHOT = select.EPOLLET, select.EPOLLONESHOT
FDS, SETS = ("fds",), ("read", "write", "except")
# Name, call, and pointer arguments.
WAITS = [
    ("poll", poll, FDS),
    ("__poll_chk", poll_checked, FDS),
    ("ppoll", ppoll, ("fds", "timeout", "mask")),
    ("__ppoll_chk", ppoll_checked, ("fds", "timeout", "mask")),
    ("select", select_, (*SETS, "timeout")),
    ("pselect", pselect, (*SETS, "timeout", "mask")),
    ("epoll_wait", epoll_form(epoll_wait), ("events",)),
    ("epoll_wait-edge", epoll_form(epoll_wait, ET), ("events",)),
    ("epoll_wait-once", epoll_form(epoll_wait, ONESHOT), ("events",)),
    ("epoll_wait-long", epoll_form(epoll_wait_long), ("events",)),
    ("epoll_wait-too-long", epoll_form(epoll_wait_too_long), ("events",)),
    ("epoll_pwait", epoll_form(epoll_pwait), ("events", "mask")),
    ("epoll_pwait2", epoll_form(epoll_pwait2), ("events", "timeout", "mask")),
    ("epoll_ctl-add", epoll_ctl(select_add), ("event",)),
    ("epoll_ctl-mod", epoll_ctl(select_modify), ("event",)),
    ("epoll_ctl-del", epoll_ctl(select_delete), ("event",)),
]


def wait_cases():
    for name, call, arguments in WAITS:
        for argument in arguments:
            for state in ("ready", "idle", "pipe"):
                for kind in KINDS + BAD_SINCE:
                    if (argument, state, kind) == ("timeout", "idle", "null"):
                        # The call would never return.
                        continue
                    run = lambda s=state, a=argument, k=kind, c=call: WaitCall(s, a, k).run(c)
                    yield f"{name} {argument} {kind} {state}", run


def accept(call):
    """The kernel drops the connection if it cannot store the address."""

    def form(pointer):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        client = socket.create_connection(listener.getsockname())
        length = pointer("length", struct.pack("I", 16))
        code = call(listener.fileno(), pointer("address", bytes(16)), length)
        result_text = done(min(code, 0))
        try:
            listener.accept()
            return result_text + " then another"
        except BlockingIOError:
            return result_text + f" then none, open {client.fileno() >= 0}"

    return form


def getsockopt(name):
    def form(pointer):
        near, _ = tcp_pair()
        length = pointer("length", struct.pack("I", 4))
        value = pointer("value", bytes(4))
        return done(library.getsockopt(near.fileno(), socket.SOL_SOCKET, name, value, length))

    return form


def setsockopt(pointer):
    near, _ = tcp_pair()
    value = pointer("value", struct.pack("i", 65536))
    return done(library.setsockopt(near.fileno(), socket.SOL_SOCKET, socket.SO_RCVBUF, value, 4))


def connect(pointer):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    # The listener stays open until the case ends, because the case may connect again.
    listener.detach()
    near = socket.socket()
    to = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, bytes([127, 0, 0, 1]))
    return done(library.connect(near.fileno(), pointer("address", to), 16))


def fcntl(pointer):
    file = os.open("/dev/null", os.O_RDWR)
    lock = pointer("lock", struct.pack("hhqqi4x", 0, 0, 0, 0, 0))
    return done(library.fcntl(file, 5, lock))


def sendmsg(domain, size=None, header=None):
    """Passes an epoll descriptor to another process, and reports what the peer received."""

    def form(pointer):
        near, far = tcp_pair() if domain == socket.AF_INET else socket.socketpair()
        far.setblocking(False)
        epoll = select.epoll()
        tracked, _ = tcp_pair()
        epoll.register(tracked.fileno(), select.EPOLLIN)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, epoll.fileno())
        control = struct.pack("Qiii4x", header or 20, *rights)
        byte = pointer("byte", b"x")
        vector = pointer("vector", struct.pack("QQ", byte.value or 0, 1))
        parts = [0, 0, vector.value or 0, 1]
        if domain != socket.AF_INET or size:
            size_given = len(control) if size is None else size
            parts += [pointer("control", control).value or 0, size_given]
        else:
            parts += [0, 0]
        message = pointer("message", struct.pack("QI4xQQQQi4x", *parts, 0))
        result_text = done(library.sendmsg(near.fileno(), message, 0))
        try:
            data, passed, _, _ = far.recvmsg(10, 100)
            return result_text + f" then {len(data)} {len(passed)}"
        except BlockingIOError:
            return result_text + " then none"

    return form


def fclose(pointer):
    return done(library.fclose(pointer("stream", bytes(256))))


OTHERS = [
    ("accept", accept(lambda *of: library.accept(*of)), ("address", "length")),
    ("accept4", accept(lambda *of: library.accept4(*of, 0)), ("address", "length")),
    ("getsockopt-error", getsockopt(socket.SO_ERROR), ("value", "length")),
    ("getsockopt-type", getsockopt(socket.SO_TYPE), ("value", "length")),
    ("setsockopt", setsockopt, ("value",)),
    ("connect", connect, ("address",)),
    ("fcntl", fcntl, ("lock",)),
    ("sendmsg-tcp", sendmsg(socket.AF_INET), ("message", "vector", "byte")),
    ("sendmsg-unix", sendmsg(socket.AF_UNIX), ("message", "vector", "byte", "control")),
    ("sendmsg-long", sendmsg(socket.AF_UNIX, size=8 * PAGE), ("control",)),
    ("sendmsg-too-long", sendmsg(socket.AF_UNIX, size=1 << 62), ("control",)),
    ("sendmsg-short-header", sendmsg(socket.AF_UNIX, header=3), ("control",)),
    ("sendmsg-long-header", sendmsg(socket.AF_UNIX, header=1 << 62), ("control",)),
    ("fclose", fclose, ("stream",)),
]


def other_cases():
    for name, call, arguments in OTHERS:
        for argument in arguments:
            for kind in KINDS + BAD_SINCE:
                if name == "fclose" and kind not in ("null", "unmapped", "no-access", "kernel"):
                    continue
                run = lambda a=argument, k=kind, c=call: PointerCall(a, k).run(
                    lambda tested: c(tested.pointer)
                )
                yield f"{name} {argument} {kind}", run


def forked(work):
    """Forks a child that runs `work` with the write end of a pipe; returns it with the read end."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            work(write)
        finally:
            os._exit(0)
    os.close(write)
    return child, read


def ended(child, read):
    """Returns the lines that a child wrote, and the signal that ended it, or 0."""
    with open(read) as file:
        lines = file.read().splitlines()
    _, status = os.waitpid(child, 0)
    return lines, os.WTERMSIG(status)


def make(cases, write):
    """Makes one call after another, until one ends the process."""
    first = write + 1
    for name, run in cases:
        signal.alarm(SECONDS_MAX)
        try:
            result = run()
        except Exception as error:
            result = repr(error)
        os.write(write, f"{name}\t{result}\n".encode())
        os.closerange(first, FAR + 1)


def make_all(cases):
    while cases:
        lines, number = ended(*forked(lambda end: make(cases, end)))
        assert lines or number, cases[0][0]
        if number:
            lines.append(f"{cases[len(lines)][0]}\t{signal.Signals(number).name}")
        print("\n".join(lines))
        cases = cases[len(lines) :]


def main(share, *words):
    # Children are expected to crash: write no core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cases = [*wait_cases(), *other_cases()]
    selected = [case for case in cases if all(word in case[0].split() for word in words)]
    lane, lanes = map(int, share.split("/"))
    make_all(selected[lane::lanes])
    # This process waits too, so that `uselect run --stats` reports it.
    WaitedDescriptors("ready")


if __name__ == "__main__":
    main(*sys.argv[1:])
