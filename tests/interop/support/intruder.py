"""Makes a thread of a running program execute a chosen system call, as an attacker could. Uses
ptrace(2), which needs root. x86-64 only."""

import contextlib
import ctypes
import errno
import os
import pathlib
import signal
import time

ATTACH, DETACH, SINGLE_STEP, GET_REGISTERS, SET_REGISTERS = 16, 17, 9, 12, 13
WAIT_ALL = 0x40000000
# struct user_regs_struct, in its order.
NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
    "fs_base gs_base ds es fs gs"
).split()
Registers = ctypes.c_ulonglong * len(NAMES)
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
# Distance below the stack pointer, beyond the red zone of the ABI.
STACK_GAP_BYTES = 16384

WAITS_FOR_SIGNALS = "128 "
SECONDS_MAX = 60

OPENAT, SOCKET, EXECVE, PTRACE, IO_URING_SETUP, MMAP = 257, 41, 59, 101, 425, 9

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class Killed(Exception):
    """The system call ended the process, by this signal."""


def _ptrace(request, process, data=None):
    if libc.ptrace(request, process, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def _wait(process):
    _, status = os.waitpid(process.pid, WAIT_ALL)
    if os.WIFSIGNALED(status):
        process.returncode = -os.WTERMSIG(status)
        raise Killed(signal.Signals(os.WTERMSIG(status)).name)


def _wait_until_idle(pid):
    """Waits until the main thread waits for signals, which it does once the program has started."""
    end = time.monotonic() + SECONDS_MAX
    while not pathlib.Path(f"/proc/{pid}/syscall").read_text().startswith(WAITS_FOR_SIGNALS):
        assert time.monotonic() < end, "the program never comes to rest"
        time.sleep(0.01)


def call(process, number, *arguments):
    """Executes a system call in the main thread of `process`, a child. Arguments of type bytes are
    passed by address. Returns the result, or the name of the error, such as "EACCES"."""
    pid = process.pid
    _wait_until_idle(pid)
    _ptrace(ATTACH, pid)
    _wait(process)
    before, now = Registers(), Registers()
    _ptrace(GET_REGISTERS, pid, ctypes.byref(before))
    at = dict(zip(NAMES, before))
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(at["rip"] - 2)
        assert memory.read(2) == b"\x0f\x05", "it waits in a system call"
        values = dict(at, rax=number, orig_rax=(1 << 64) - 1, rip=at["rip"] - 2)
        place = at["rsp"] - STACK_GAP_BYTES
        for name, value in zip(ARGUMENTS, arguments):
            if isinstance(value, bytes):
                memory.seek(place)
                memory.write(value + b"\0")
                value, place = place, place + len(value) + 1
            values[name] = value % (1 << 64)
    _ptrace(SET_REGISTERS, pid, ctypes.byref(Registers(*(values[name] for name in NAMES))))
    _ptrace(SINGLE_STEP, pid)
    _wait(process)
    _ptrace(GET_REGISTERS, pid, ctypes.byref(now))
    _ptrace(SET_REGISTERS, pid, ctypes.byref(before))
    _ptrace(DETACH, pid)
    result = ctypes.c_longlong(dict(zip(NAMES, now))["rax"]).value
    return errno.errorcode[-result] if -4096 < result < 0 else result


@contextlib.contextmanager
def stopped(thread):
    """Stops one thread of a program, by its number, while the others continue."""
    _ptrace(ATTACH, thread)
    os.waitpid(thread, WAIT_ALL)
    try:
        yield
    finally:
        _ptrace(DETACH, thread)
