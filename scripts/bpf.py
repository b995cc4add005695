"""bpf(2) without a library: an assembler for small programs, and the calls that load and attach
them. Scripts use it that need a program or two in the kernel and no compiler for that.

What is made here lives as long as this process has its descriptor: nothing is pinned.
"""

import ctypes
import os
import platform
import struct

CALL_NUMBER = {"x86_64": 321, "aarch64": 280}[platform.machine()]
_libc = ctypes.CDLL(None, use_errno=True)
LOG_BYTES = 1 << 20

# Commands, kinds of maps and programs, and points to attach at: linux/bpf.h.
MAP_CREATE, MAP_LOOKUP_ELEM, PROG_LOAD, PROG_ATTACH, LINK_CREATE = 0, 1, 5, 8, 28
MAP_HASH, MAP_ARRAY, MAP_SOCKMAP, MAP_RINGBUF = 1, 2, 15, 27
SCHED_CLS, SK_SKB = 3, 14
SK_SKB_VERDICT, TCX_INGRESS = 38, 46
MMAPABLE = 1 << 10

# Registers: what a call gives, its arguments, what outlives calls, and the end of the stack.
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)

_SIZES = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_ARITHMETIC = {"add": 0x00, "sub": 0x10, "or": 0x40, "and": 0x50, "xor": 0xA0, "move": 0xB0}
_JUMPS = {"==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "<": 0xA0, "<=": 0xB0}


class Assembler:
    """A program that is written down step by step. Jumps name labels, which follow."""

    def __init__(self):
        self._steps, self._labels, self._jumps = [], {}, []

    def _add(self, code, target=0, source=0, offset=0, number=0):
        number &= 0xFFFFFFFF
        self._steps.append([code, source << 4 | target, offset, number])

    def label(self, name):
        self._labels[name] = len(self._steps)

    def set(self, target, number):
        self._add(0xB7, target, number=number)

    def count(self, what, target, source, bits=64):
        """`target` becomes itself and `source` by `what`: add, sub, or, and, xor, move."""
        self._add(_ARITHMETIC[what] | (0x0F if bits == 64 else 0x0C), target, source)

    def count_number(self, what, target, number, bits=64):
        self._add(_ARITHMETIC[what] | (0x07 if bits == 64 else 0x04), target, number=number)

    def load(self, target, source, offset, size):
        """Reads `size` bytes at `offset` of where `source` points."""
        self._add(0x61 | _SIZES[size], target, source, offset)

    def load_packet(self, offset):
        """R0 becomes the byte there of the packet whose context is in R6; where the packet is
        shorter, the program ends with 0. R1 to R5 are gone."""
        self._add(0x30, number=offset)

    def store(self, target, offset, source, size):
        self._add(0x63 | _SIZES[size], target, source, offset)

    def add_atomic(self, target, offset, source):
        """Adds to 8 bytes, whoever else does so at the time."""
        self._add(0xDB, target, source, offset)

    def load_map(self, target, fd):
        self._add(0x18, target, 1, number=fd)
        self._add(0)

    def jump(self, label):
        self._jumps.append((len(self._steps), label))
        self._add(0x05)

    def jump_if(self, left, comparison, right, label, bits=64):
        """By registers, unsigned."""
        self._jumps.append((len(self._steps), label))
        self._add(_JUMPS[comparison] | (0x0D if bits == 64 else 0x0E), left, right)

    def jump_if_number(self, left, comparison, number, label, bits=64):
        self._jumps.append((len(self._steps), label))
        self._add(_JUMPS[comparison] | (0x05 if bits == 64 else 0x06), left, number=number)

    def call(self, helper):
        """By the helper's number in linux/bpf.h."""
        self._add(0x85, number=helper)

    def call_kernel(self, function):
        """One of the kernel's own functions, by its number in BTF."""
        self._add(0x85, source=2, number=function)

    def leave(self):
        self._add(0x95)

    def bytes(self):
        for at, label in self._jumps:
            self._steps[at][2] = self._labels[label] - at - 1
        return b"".join(struct.pack("=BBhI", *step) for step in self._steps)


def _call(command, attributes):
    held = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    done = _libc.syscall(CALL_NUMBER, command, held, len(held))
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf command {command}: {os.strerror(number)}")
    return done


def create_map(kind, key_bytes, value_bytes, entries_max, flags=0):
    return _call(MAP_CREATE, struct.pack("=5I", kind, key_bytes, value_bytes, entries_max, flags))


def look_up(map_fd, key, value_bytes):
    """The bytes at `key`, which is bytes too."""
    value = ctypes.create_string_buffer(value_bytes)
    key = ctypes.create_string_buffer(key, len(key))
    at = ctypes.addressof
    _call(MAP_LOOKUP_ELEM, struct.pack("=IxxxxQQQ", map_fd, at(key), at(value), 0))
    return value.raw


def load(kind, code, attach_type=0):
    """Gives the descriptor of a program; what the verifier says of a bad one is in the error."""
    code = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(LOG_BYTES)
    at = ctypes.addressof
    words = (kind, len(code) // 8, at(code), at(licence), 1, LOG_BYTES, at(log), 0, 0)
    attributes = struct.pack("=IIQQIIQII", *words) + bytes(16) + struct.pack("=II", 0, attach_type)
    try:
        return _call(PROG_LOAD, attributes)
    except OSError as error:
        said = log.value.decode(errors="replace").strip()
        raise OSError(error.errno, f"{error.strerror}\n{said[-3000:]}") from None


def attach(program_fd, map_fd, attach_type):
    """To a map of sockets, for as long as there is the map."""
    _call(PROG_ATTACH, struct.pack("=III", map_fd, program_fd, attach_type))


def link(program_fd, interface, attach_type):
    """To a network interface, by its number in this thread's namespace. Closing what this gives
    detaches it."""
    return _call(LINK_CREATE, struct.pack("=IIII", program_fd, interface, attach_type, 0))
