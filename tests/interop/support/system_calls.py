"""Denies system calls to a program before it is executed (seccomp(2))."""

import ctypes
import errno
import re
import struct
import subprocess

# On every architecture.
IO_URING_SETUP = 425
IO_URING_ENTER = 426
LANDLOCK_CREATE_RULESET = 444

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
RET_ALLOW = 0x7FFF0000
RET_ERRNO = 0x00050000


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def without(call):
    """Makes the system call of this number fail with EPERM. Called in the child, before exec."""
    load_number, jump_if_equal, give = 0x20, 0x15, 0x06
    code = b"".join(
        struct.pack("=HBBI", *step)
        for step in [
            (load_number, 0, 0, 0),
            (jump_if_equal, 0, 1, call),
            (give, 0, 0, RET_ERRNO | errno.EPERM),
            (give, 0, 0, RET_ALLOW),
        ]
    )
    memory = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(memory, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "no filter of system calls")


def only(names, conditions=None):
    """Makes all system calls fail with EPERM except those in `names`. Called in the child, before
    exec. Uses libseccomp, as systemd does; names that this machine lacks are ignored. `conditions`
    maps names to lists of `Bits`, of which a call has to meet one."""
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(RET_ERRNO | errno.EPERM))
    for name in names:
        call = seccomp.seccomp_syscall_resolve_name(name.encode())
        if call < 0:
            continue
        for condition in (conditions or {}).get(name, [None]):
            count, place = (0, None) if condition is None else (1, ctypes.byref(condition))
            seccomp.seccomp_rule_add_array(rules, RET_ALLOW, call, count, place)
    if seccomp.seccomp_load(rules):
        raise OSError("no filter of system calls")


class Bits(ctypes.Structure):
    """struct scmp_arg_cmp: argument number `at`, masked with `mask`, equals `value`."""

    _fields_ = [
        ("at", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    ]

    def __init__(self, at, mask, value):
        masked_equal = 7
        super().__init__(at, masked_equal, mask, value)


def of_unit(unit):
    """Returns the names of the system calls that SystemCallFilter= of a unit allows."""
    groups = _groups()
    calls = set(groups["@default"])
    for words in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        named = set()
        for word in words.removeprefix("~").split():
            named |= groups.get(word, {word})
        calls = calls - named if words.startswith("~") else calls | named
    return calls


def _groups():
    """Returns the groups of system calls of systemd, each with all its members."""
    command = ["systemd-analyze", "syscall-filter", "--no-pager"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    groups, members = {}, None
    for line in output.splitlines():
        word = line.strip()
        if line.startswith("@"):
            members = groups[word] = set()
        elif members is not None and word and not word.startswith("#"):
            members.add(word)

    def all_of(word):
        return set().union(*map(all_of, groups[word])) if word in groups else {word}

    return {name: all_of(name) for name in groups}
