"""The program that forwards in the kernel: a verdict (sk_skb) for each packet that a joined socket
receives. It redirects the packet to the other socket's backlog, from which a kernel thread sends
it. It passes the packet to the application, which then has to write it:

* while the application has passed bytes that it has not written, because later bytes would overtake
  them;
* if the other socket's backlog (forwarded bytes that are not in its send queue) has reached the
  mark;
* if the packet reaches beyond the limit, because a verdict is about whole packets.

A packet may begin with bytes that were received before, if TCP sent them again while the socket was
in use. The kernel keeps the whole packet. recv(2) skips the old bytes, but nothing skips them for a
verdict (Linux 6.18), so the verdict cuts them off. With `keeps_overlaps` it keeps them, to show the
effect.

Offsets are those of `struct flow` in maps.h.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import bpf
import btf
from bpf import R0, R1, R2, R3, R4, R6, R7, R8, R9, R10

SOCKETS_MAX, FLOW_BYTES, RING_BYTES = 1024, 64, 65536
LIMIT, MARK, FORWARDED, PASSED, WRITTEN, PASSES, BASE, NEXT, KNOWN, CUTS = (
    0, 8, 16, 24, 32, 40, 48, 52, 56, 60)
HAS_BASE, HAS_NEXT = 1, 2

LOOK_UP, GET_COOKIE, ADJUST_ROOM, REDIRECT, RELEASE, READ_KERNEL, RINGBUF_OUTPUT, TO_TCP = (
    1, 46, 50, 52, 86, 113, 130, 137)
SK_DROP, SK_PASS = 0, 1
# Offsets in the context, and in the stack of the program.
LENGTH, SOCKET = 0, 168
AT_COOKIE, AT_INDEX, AT_SEQUENCE = -8, -12, -16
# Maximum bytes that one call cuts off, and maximum number of calls: 64 KiB in all.
CUT_BYTES_MAX, CUTS_MAX = 0xFFF, 17


class Verdict:
    """The maps and the program. `fds` are the descriptors of the maps of sockets, cookies, flows
    and passes, which the relay inherits. The map of passes is a ring that wakes the application for
    passed bytes. The socket itself would wake it for forwarded bytes too."""

    def __init__(self, keeps_overlaps=False):
        create = bpf.create_map
        self.sockets = create(bpf.BPF_MAP_TYPE_SOCKMAP, 4, 4, SOCKETS_MAX)
        self.cookies = create(bpf.BPF_MAP_TYPE_HASH, 8, 4, SOCKETS_MAX)
        self.flows = create(bpf.BPF_MAP_TYPE_ARRAY, 4, FLOW_BYTES, SOCKETS_MAX, bpf.BPF_F_MMAPABLE)
        self.passes = create(bpf.BPF_MAP_TYPE_RINGBUF, 0, 0, RING_BYTES)
        self.fds = (self.sockets, self.cookies, self.flows, self.passes)
        code = self._code(keeps_overlaps)
        program = bpf.load_program(bpf.BPF_PROG_TYPE_SK_SKB, code, bpf.BPF_SK_SKB_VERDICT)
        bpf.attach_to_map(program, self.sockets, bpf.BPF_SK_SKB_VERDICT)
        os.close(program)

    def close(self):
        """Closes the descriptors. A process that inherited them keeps the maps."""
        for fd in self.fds:
            os.close(fd)

    def _code(self, keeps_overlaps):
        """R6: the packet; R7: the flow; R9: the packet's length."""
        code = bpf.Assembler()
        code.alu("move", R6, R1)
        # A FIN alone is a packet of no bytes, which the backlog would take for a failure.
        code.load(R9, R6, LENGTH, 4)
        code.jump_if_imm(R9, "==", 0, "drop")
        self._find_flow(code)
        if not keeps_overlaps:
            self._cut_overlap(code)
        code.load(R1, R7, PASSED, 8)
        code.load(R2, R7, WRITTEN, 8)
        code.jump_if(R1, "!=", R2, "pass on")
        code.load(R3, R7, FORWARDED, 8)
        code.alu("add", R3, R1)
        code.alu("add", R3, R9)
        code.load(R4, R7, LIMIT, 8)
        code.jump_if(R3, ">", R4, "begin to pass")
        self._weigh_backlog(code)
        self._forward(code)
        self._pass(code)
        return code.bytes()

    def _find_flow(self, code):
        """Sets R7 to the flow of this socket, and stores the other socket's index."""
        code.alu("move", R1, R6)
        code.call(GET_COOKIE)
        code.store(R10, AT_COOKIE, R0, 8)
        self._look_up(code, self.cookies, AT_COOKIE)
        code.jump_if_imm(R0, "==", 0, "leave passing")
        code.load(R1, R0, 0, 4)
        code.store(R10, AT_INDEX, R1, 4)
        self._look_up(code, self.flows, AT_INDEX)
        code.jump_if_imm(R0, "==", 0, "leave passing")
        code.alu("move", R7, R0)
        code.load(R1, R10, AT_INDEX, 4)
        code.alu_imm("xor", R1, 1)
        code.store(R10, AT_INDEX, R1, 4)

    def _cut_overlap(self, code):
        """Cuts off bytes that were received before. The next byte is the one after the last packet;
        for the first packet, the one after the bytes that the application has read."""
        code.alu("move", R1, R6)
        code.call_kfunc(btf.function("bpf_cast_to_kern_ctx"))
        # tcp_skb_cb begins with the packet's sequence number.
        code.alu("move", R3, R0)
        code.alu_imm("add", R3, btf.offset("sk_buff", "cb") + btf.offset("tcp_skb_cb", "seq"))
        code.alu("move", R1, R10)
        code.alu_imm("add", R1, AT_SEQUENCE)
        code.move_imm(R2, 4)
        code.call(READ_KERNEL)
        code.load(R1, R7, KNOWN, 4)
        code.alu_imm("and", R1, HAS_NEXT)
        code.jump_if_imm(R1, "!=", 0, "has next")
        code.load(R1, R6, SOCKET, 8)
        code.jump_if_imm(R1, "==", 0, "leave passing")
        code.call(TO_TCP)
        code.jump_if_imm(R0, "==", 0, "leave passing")
        code.load(R2, R0, btf.offset("tcp_sock", "copied_seq"), 4)
        self._learn(code, NEXT, HAS_NEXT)
        code.label("has next")
        # R8: how many bytes of the packet were received before. A value of 2^30 or more is a
        # negative difference: the packet begins after the next byte.
        code.load(R8, R7, NEXT, 4)
        code.load(R1, R10, AT_SEQUENCE, 4)
        code.alu("sub", R8, R1, bits=32)
        code.jump_if_imm(R8, "==", 0, "is cut")
        code.jump_if_imm(R8, ">=", 1 << 30, "is cut")
        code.jump_if(R8, ">=", R9, "drop")
        code.load(R1, R7, CUTS, 4)
        code.alu_imm("add", R1, 1)
        code.store(R7, CUTS, R1, 4)
        for number in range(CUTS_MAX):
            self._cut(code, number)
        code.label("is cut")
        code.load(R9, R6, LENGTH, 4)
        code.load(R1, R10, AT_SEQUENCE, 4)
        code.alu("add", R1, R9, bits=32)
        code.store(R7, NEXT, R1, 4)

    def _cut(self, code, number):
        """Cuts up to CUT_BYTES_MAX of R8 bytes off the front of the packet."""
        code.jump_if_imm(R8, "==", 0, "is cut")
        code.alu("move", R1, R8)
        code.jump_if_imm(R1, "<=", CUT_BYTES_MAX, f"is little {number}")
        code.move_imm(R1, CUT_BYTES_MAX)
        code.label(f"is little {number}")
        code.alu("sub", R8, R1)
        code.load(R2, R10, AT_SEQUENCE, 4)
        code.alu("add", R2, R1, bits=32)
        code.store(R10, AT_SEQUENCE, R2, 4)
        code.move_imm(R2, 0)
        code.alu("sub", R2, R1)
        code.alu("move", R1, R6)
        code.move_imm(R3, 0)
        code.move_imm(R4, 0)
        code.call(ADJUST_ROOM)
        code.jump_if_imm(R0, "!=", 0, "drop")

    def _learn(self, code, where, what):
        """Stores R2 at an offset of the flow, and marks it as known."""
        code.store(R7, where, R2, 4)
        code.load(R1, R7, KNOWN, 4)
        code.alu_imm("or", R1, what)
        code.store(R7, KNOWN, R1, 4)

    def _weigh_backlog(self, code):
        """Passes the packet unless the other socket's backlog is below the mark."""
        self._look_up(code, self.sockets, AT_INDEX)
        code.jump_if_imm(R0, "==", 0, "begin to pass")
        code.alu("move", R8, R0)
        code.alu("move", R1, R0)
        code.call(TO_TCP)
        code.move_imm(R9, 0)
        code.jump_if_imm(R0, "==", 0, "released")
        code.load(R9, R0, btf.offset("tcp_sock", "write_seq"), 4)
        code.label("released")
        code.alu("move", R1, R8)
        code.alu("move", R8, R9)
        code.call(RELEASE)
        code.load(R9, R6, LENGTH, 4)
        # R3: number of bytes that this flow has forwarded or written. `write_seq` minus `base` is
        # the number of those that are queued.
        code.load(R3, R7, FORWARDED, 8)
        code.load(R2, R7, WRITTEN, 8)
        code.alu("add", R3, R2)
        code.load(R1, R7, KNOWN, 4)
        code.alu_imm("and", R1, HAS_BASE)
        code.jump_if_imm(R1, "!=", 0, "has base")
        code.alu("move", R2, R8)
        code.alu("sub", R2, R3, bits=32)
        self._learn(code, BASE, HAS_BASE)
        code.label("has base")
        code.load(R2, R7, BASE, 4)
        code.alu("sub", R8, R2, bits=32)
        code.alu("sub", R3, R8, bits=32)
        code.load(R2, R7, MARK, 8)
        code.jump_if(R3, ">=", R2, "begin to pass")

    def _forward(self, code):
        code.load(R1, R7, FORWARDED, 8)
        code.alu("add", R1, R9)
        code.store(R7, FORWARDED, R1, 8)
        code.alu("move", R1, R6)
        code.load_map(R2, self.sockets)
        code.load(R3, R10, AT_INDEX, 4)
        code.move_imm(R4, 0)
        code.call(REDIRECT)
        code.exit()

    def _pass(self, code):
        code.label("begin to pass")
        code.load(R1, R7, PASSES, 8)
        code.alu_imm("add", R1, 1)
        code.store(R7, PASSES, R1, 8)
        code.label("pass on")
        code.load(R1, R7, PASSED, 8)
        code.alu("add", R1, R9)
        code.store(R7, PASSED, R1, 8)
        code.load_map(R1, self.passes)
        code.alu("move", R2, R10)
        code.alu_imm("add", R2, AT_INDEX)
        code.move_imm(R3, 4)
        code.move_imm(R4, 0)
        code.call(RINGBUF_OUTPUT)
        code.label("leave passing")
        code.move_imm(R0, SK_PASS)
        code.exit()
        code.label("drop")
        code.move_imm(R0, SK_DROP)
        code.exit()

    def _look_up(self, code, map_fd, key_at):
        code.alu("move", R2, R10)
        code.alu_imm("add", R2, key_at)
        code.load_map(R1, map_fd)
        code.call(LOOK_UP)
