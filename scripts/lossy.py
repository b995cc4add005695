#!/usr/bin/env python3
"""lossy.py [--loss SHARE] [--swap] COMMAND...: a client, a proxy and an origin in three network
namespaces, where packets get lost and the two ends speak TCP differently.

    client 192.0.2.1 --- 192.0.2.2 proxy 198.51.100.2 --- 198.51.100.1 origin

One end has packets of 9000 bytes and every TCP option; the other has packets of 576 bytes and
neither SACK nor window scaling nor timestamps. The client is the first one and the origin the
second; --swap exchanges them. A program at tcx(ingress) of each of the four interfaces drops the
share --loss of the packets at random, both data and acknowledgements. A RST is never dropped: it is
not sent again, and its receiver would wait for minutes.

Runs COMMAND in the proxy's namespace and prints what was lost and sent again. In its environment
CLIENT_NAMESPACE and ORIGIN_NAMESPACE are files for setns(2), and CLIENT_SIDE and ORIGIN_SIDE the
proxy's addresses. The status is COMMAND's. Needs root and Linux 6.6. The namespaces have no names
and live in processes that die with this one, so nothing is left behind however it ends.
"""

import argparse
import dataclasses
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
import bpf
from namespaces import Namespace, die_with_parent, enter, inside, ip, set_offload

CLIENT, PROXY, ORIGIN = "client", "proxy", "origin"
CLIENT_ADDRESS, CLIENT_SIDE = "192.0.2.1", "192.0.2.2"
ORIGIN_ADDRESS, ORIGIN_SIDE = "198.51.100.1", "198.51.100.2"

# Offset of the TCP flags after headers of Ethernet and IPv4, and the flag RST.
TCP_FLAGS_AT, RST = 14 + 20 + 13, 0x04


@dataclasses.dataclass(frozen=True)
class End:
    """TCP of the host at one end: bytes per packet, and whether it offers the options."""

    mtu: int
    has_options: bool


RICH, POOR = End(9000, True), End(576, False)


class _Loss:
    """The program that drops packets, and its counts of seen and dropped packets."""

    def __init__(self, share):
        self.counts = bpf.create_map(bpf.BPF_MAP_TYPE_ARRAY, 4, 8, 2)
        code = self._code(min(int(share * (1 << 32)), 0xFFFFFFFF))
        self.program = bpf.load_program(bpf.BPF_PROG_TYPE_SCHED_CLS, code)
        self.links = []

    def _code(self, threshold):
        code = bpf.Assembler()
        code.alu("move", bpf.R6, bpf.R1)
        self._count(code, 0)
        code.load_packet(TCP_FLAGS_AT)
        code.alu_imm("and", bpf.R0, RST)
        code.jump_if_imm(bpf.R0, "!=", 0, "pass")
        code.call(7)  # bpf_get_prandom_u32
        code.jump_if_imm(bpf.R0, ">=", threshold, "pass", bits=32)
        self._count(code, 1)
        code.move_imm(bpf.R0, 2)  # TCX_DROP
        code.exit()
        code.label("pass")
        code.move_imm(bpf.R0, 0)  # TCX_PASS
        code.exit()
        return code.bytes()

    def _count(self, code, which):
        code.move_imm(bpf.R1, which)
        code.store(bpf.R10, -4, bpf.R1, 4)
        code.alu("move", bpf.R2, bpf.R10)
        code.alu_imm("add", bpf.R2, -4)
        code.load_map(bpf.R1, self.counts)
        code.call(1)  # bpf_map_lookup_elem
        code.jump_if_imm(bpf.R0, "==", 0, f"counted {which}")
        code.move_imm(bpf.R1, 1)
        code.add_atomic(bpf.R0, 0, bpf.R1)
        code.label(f"counted {which}")

    def begin(self, interface):
        """Attaches the program to an interface of this thread's namespace."""
        index = socket.if_nametoindex(interface)
        self.links.append(bpf.attach_interface(self.program, index, bpf.BPF_TCX_INGRESS))

    def read(self):
        keys = (struct.pack("=I", which) for which in (0, 1))
        return [struct.unpack("=Q", bpf.lookup_elem(self.counts, key, 8))[0] for key in keys]

    def close(self):
        for fd in [*self.links, self.program, self.counts]:
            os.close(fd)


class Network:
    """The three namespaces, as a context manager that removes them at its end. `client` and
    `origin` are Ends; `loss` is a share from 0 to 1. `paths` has the file of each namespace for
    enter()."""

    def __init__(self, client=RICH, origin=POOR, loss=0.0):
        self.ends, self.share = {CLIENT: client, ORIGIN: origin}, loss
        self.namespaces, self.paths, self.loss = {}, {}, None

    def __enter__(self):
        if os.geteuid() != 0:
            raise SystemExit("network namespaces and their losses need root")
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.loss:
            self.loss.close()
        for namespace in self.namespaces.values():
            namespace.close()

    def _make(self):
        for name in (CLIENT, PROXY, ORIGIN):
            namespace = Namespace()
            self.namespaces[name], self.paths[name] = namespace, namespace.path
        self.loss = _Loss(self.share)
        self._join(CLIENT, CLIENT_ADDRESS, CLIENT_SIDE)
        self._join(ORIGIN, ORIGIN_ADDRESS, ORIGIN_SIDE)
        with inside(self.paths[PROXY]):
            self._settle(True)

    def _join(self, name, address, side):
        """Creates a pair of veth(4): `end` at the host, and an interface with the host's name at
        the proxy."""
        end, proxy = self.ends[name], self.namespaces[PROXY].pid
        with inside(self.paths[name]):
            ends = f"end mtu {end.mtu} type veth peer name {name} mtu {end.mtu} netns {proxy}"
            ip(f"link add {ends}")
            self._settle(end.has_options)
            self._raise("end", address)
        with inside(self.paths[PROXY]):
            self._raise(name, side)

    def _raise(self, interface, address):
        ip(f"address add {address}/24 dev {interface}")
        ip(f"link set {interface} up")
        # With TSO, one loss would drop up to 44 segments.
        set_offload(interface, "tso", False)
        self.loss.begin(interface)

    def _settle(self, has_options):
        """Sets the sysctls of this thread's namespace. Uses reno, which each kernel has and each
        namespace may use. A pacing algorithm might hardly react to the losses."""
        for name in ("tcp_sack", "tcp_window_scaling", "tcp_timestamps"):
            pathlib.Path(f"/proc/sys/net/ipv4/{name}").write_text(str(int(has_options)))
        pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
        ip("link set lo up")

    def environment(self):
        """Returns the environment that names the other namespaces for a program in the proxy's."""
        paths = {f"{name.upper()}_NAMESPACE": self.paths[name] for name in (CLIENT, ORIGIN)}
        return {**os.environ, **paths, "CLIENT_SIDE": CLIENT_SIDE, "ORIGIN_SIDE": ORIGIN_SIDE}

    def start(self, name, words, **how):
        """Starts a program in a namespace; it dies with this process at the latest."""
        path = self.paths[name]

        def move():
            die_with_parent()
            enter(path)

        words = [str(word) for word in words]
        return subprocess.Popen(words, preexec_fn=move, **how)

    def counts(self):
        """Returns the packets so far, the dropped ones, and the retransmitted segments."""
        packets, dropped = self.loss.read()
        again = sum(self._sent_again(each.pid) for each in self.namespaces.values())
        return {"packets": packets, "dropped": dropped, "sent again": again}

    def _sent_again(self, pid):
        """Returns TcpRetransSegs of nstat(8)."""
        lines = pathlib.Path(f"/proc/{pid}/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")])


def format_counts(counts):
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def main():
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets, 0 to 1 (0)")
    parser.add_argument("--swap", action="store_true", help="the client is the poor one")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("no command")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ends = (POOR, RICH) if options.swap else (RICH, POOR)
    with Network(*ends, options.loss) as network:
        status = network.start(PROXY, options.command, env=network.environment()).wait()
        print(f"lossy: {format_counts(network.counts())}", file=sys.stderr)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
