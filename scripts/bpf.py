"""bpf(2) without a library: an assembler for small eBPF programs, and the commands that load and
attach them. Scripts use this module if they need a program or two in the kernel and no compiler.

Nothing is pinned: programs, maps and links live as long as this process holds their descriptors.
"""

import ctypes
import os
import platform
import struct

SYS_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
_libc = ctypes.CDLL(None, use_errno=True)
LOG_BYTES = 1 << 20

# linux/bpf.h: commands, map types, program types, attach types and flags.
BPF_MAP_CREATE, BPF_MAP_LOOKUP_ELEM, BPF_PROG_LOAD = 0, 1, 5
BPF_PROG_ATTACH, BPF_LINK_CREATE = 8, 28
BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_SOCKMAP, BPF_MAP_TYPE_RINGBUF = 1, 2, 15, 27
BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_SK_SKB = 3, 14
BPF_SK_SKB_VERDICT, BPF_TCX_INGRESS = 38, 46
BPF_F_MMAPABLE = 1 << 10

# Registers. R0: return value. R1 to R5: arguments, clobbered by calls. R6 to R9: preserved across
# calls. R10: frame pointer, the end of the stack.
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)

_SIZES = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_ALU = {"add": 0x00, "sub": 0x10, "or": 0x40, "and": 0x50, "xor": 0xA0, "move": 0xB0}
_JUMPS = {"==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "<": 0xA0, "<=": 0xB0}


class Assembler:
    """Builds a program one instruction at a time. Jumps name labels that are defined later."""

    def __init__(self):
        self._instructions, self._labels, self._jumps = [], {}, []

    def _add(self, opcode, dst=0, src=0, offset=0, imm=0):
        imm &= 0xFFFFFFFF
        self._instructions.append([opcode, src << 4 | dst, offset, imm])

    def label(self, name):
        self._labels[name] = len(self._instructions)

    def move_imm(self, dst, imm):
        self._add(0xB7, dst, imm=imm)

    def alu(self, operation, dst, src, bits=64):
        """`dst` = `dst` `operation` `src`; the operation is add, sub, or, and, xor or move."""
        self._add(_ALU[operation] | (0x0F if bits == 64 else 0x0C), dst, src)

    def alu_imm(self, operation, dst, imm, bits=64):
        """Like `alu`, with a constant instead of a source register."""
        self._add(_ALU[operation] | (0x07 if bits == 64 else 0x04), dst, imm=imm)

    def load(self, dst, src, offset, size):
        """Loads `size` bytes from the address in `src` plus `offset`."""
        self._add(0x61 | _SIZES[size], dst, src, offset)

    def load_packet(self, offset):
        """Loads a byte of the packet whose context is in R6 into R0. If the packet is shorter, the
        program ends and returns 0. Clobbers R1 to R5."""
        self._add(0x30, imm=offset)

    def store(self, dst, offset, src, size):
        """Stores `size` bytes of `src` at the address in `dst` plus `offset`."""
        self._add(0x63 | _SIZES[size], dst, src, offset)

    def add_atomic(self, dst, offset, src):
        """Adds `src` atomically to the 8 bytes at the address in `dst` plus `offset`."""
        self._add(0xDB, dst, src, offset)

    def load_map(self, dst, fd):
        """Loads the address of a map by its descriptor."""
        self._add(0x18, dst, 1, imm=fd)
        self._add(0)

    def jump(self, label):
        self._jumps.append((len(self._instructions), label))
        self._add(0x05)

    def jump_if(self, left, comparison, right, label, bits=64):
        """Jumps if an unsigned comparison of two registers holds."""
        self._jumps.append((len(self._instructions), label))
        self._add(_JUMPS[comparison] | (0x0D if bits == 64 else 0x0E), left, right)

    def jump_if_imm(self, left, comparison, imm, label, bits=64):
        """Jumps if an unsigned comparison of a register with a constant holds."""
        self._jumps.append((len(self._instructions), label))
        self._add(_JUMPS[comparison] | (0x05 if bits == 64 else 0x06), left, imm=imm)

    def call(self, helper):
        """Calls a helper by its number in linux/bpf.h."""
        self._add(0x85, imm=helper)

    def call_kfunc(self, btf_id):
        """Calls a function of the kernel by its BTF id."""
        self._add(0x85, src=2, imm=btf_id)

    def exit(self):
        self._add(0x95)

    def bytes(self):
        for at, label in self._jumps:
            self._instructions[at][2] = self._labels[label] - at - 1
        return b"".join(struct.pack("=BBhI", *fields) for fields in self._instructions)


def _bpf(command, attributes):
    attr = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = _libc.syscall(SYS_BPF, command, attr, len(attr))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf command {command}: {os.strerror(number)}")
    return result


def create_map(map_type, key_size, value_size, max_entries, flags=0):
    """Creates a map and returns its descriptor."""
    return _bpf(
        BPF_MAP_CREATE, struct.pack("=5I", map_type, key_size, value_size, max_entries, flags)
    )


def lookup_elem(map_fd, key, value_size):
    """Returns the value of `key` as bytes; `key` is bytes too."""
    value = ctypes.create_string_buffer(value_size)
    key = ctypes.create_string_buffer(key, len(key))
    address = ctypes.addressof
    _bpf(BPF_MAP_LOOKUP_ELEM, struct.pack("=IxxxxQQQ", map_fd, address(key), address(value), 0))
    return value.raw


def load_program(program_type, code, attach_type=0):
    """Loads a program and returns its descriptor. If the verifier rejects it, the error has the end
    of the verifier's log."""
    code = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(LOG_BYTES)
    address = ctypes.addressof
    words = (program_type, len(code) // 8, address(code), address(licence))
    words += (1, LOG_BYTES, address(log), 0, 0)
    attributes = struct.pack("=IIQQIIQII", *words) + bytes(16) + struct.pack("=II", 0, attach_type)
    try:
        return _bpf(BPF_PROG_LOAD, attributes)
    except OSError as error:
        text = log.value.decode(errors="replace").strip()
        raise OSError(error.errno, f"{error.strerror}\n{text[-3000:]}") from None


def attach_to_map(program_fd, map_fd, attach_type):
    """Attaches a program to a map of sockets, for as long as the map exists."""
    _bpf(BPF_PROG_ATTACH, struct.pack("=III", map_fd, program_fd, attach_type))


def attach_interface(program_fd, interface, attach_type):
    """Attaches a program to a network interface, by its index in the network namespace of this
    thread. Returns the descriptor of the link; closing it detaches the program."""
    return _bpf(BPF_LINK_CREATE, struct.pack("=IIII", program_fd, interface, attach_type, 0))
