"""The figures of papers about splicing: their curves, points and bars.

kernel-support-fig7 to -fig10 are those of section 5.2 of "Kernel Support for Faster Web Proxies".
tcp-splice-* follow "An Evaluation of TCP Splice Benefits in Web Proxy Servers", of which only the
abstract is at hand.
"""
import os
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The curves that millrace makes, and its options for each.
VARIANTS = {"copy": "--splice never", "splice": "--splice always", "plan": "--splice fixed"}
# The curves that other programs make: the paper's application over the library's own interface
# (with KeepCopy 16 KiB min2read, 64 KiB max2cache; AutoRelease), the same by read and write, and
# forwarding without the application. Such a program is a file start/NAME (README.md) that serves
# "forward", and "tunnel" if it makes tunnels. Without the file there is no curve.
PROGRAMS = ("library", "library-copy", "in-kernel")
# The program that a curve is divided by, if it is not copy.
BESIDE = {"library": "library-copy"}
# How a request is made, always to the forward proxy. Connections are persistent, tunnels are not.
KINDS = {
    "uncached": "GET, not cacheable",
    "cacheable": "GET, stored as it passes",
    "connect": "GET in a tunnel of its own",
    "tls": "TLS 1.3 handshake and GET in a tunnel of its own",
}
# Requests per second at most. Larger bodies are requested less often, so that no more than
# BYTES_PER_SECOND pass. Both limits keep the core that all three programs share below a third of
# its capacity.
RATE_MAX = {"uncached": 2000, "cacheable": 2000, "connect": 400, "tls": 150}
BYTES_PER_SECOND = 320 * MIB
WINDOW_REQUESTS = 4  # at least in each window, which is made longer for them
WORSE_MAX = 1.03  # CPU time of the plan divided by that of copying, at every size and rate


@dataclass(frozen=True)
class Load:
    """A point of the x axis: requests of one kind."""

    kind: str
    bytes: int
    rate: int  # per second

    def seconds(self, least):
        return max(least, WINDOW_REQUESTS / self.rate)

    def connections(self):
        """Returns how many suffice for the rate. Each makes one request before the window."""
        return max(4, min(64, 256 * MIB // self.bytes))


@dataclass(frozen=True)
class Figure:
    """One figure. Figures with the same engine, kinds and axis come from one run."""

    title: str
    engine: str
    sizes: dict  # {kind: bytes of each point}; one size for each kind if rates are the axis
    value: str  # the column of the results that is drawn
    rates: tuple = ()

    def sweep(self):
        return self.engine, tuple(self.sizes), self.rates

    def loads(self):
        if self.rates:
            return [Load(kind, size, rate) for kind, (size,) in self.sizes.items()
                    for rate in self.rates]
        return [Load(kind, size, min(RATE_MAX[kind], max(1, BYTES_PER_SECOND // size)))
                for kind, sizes in self.sizes.items() for size in sizes]

    def is_of_cost(self):
        """Returns whether it shows the cost of a request, which does not depend on the rate."""
        return self.value == "cpu_us"

    def x(self, row):
        return row["rate"] if self.rates else row["bytes"]


def kib(*sizes):
    return tuple(size * KIB for size in sizes)


BODIES = kib(4, 8, 16, 32, 64, 128) + (MIB, 64 * MIB)
TUNNELS = kib(64, 256) + (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
HANDSHAKES = kib(1, 2, 4, 8, 16, 32, 64)
MISSES = {"uncached": BODIES, "cacheable": BODIES}
EIGHT = {"uncached": kib(8), "cacheable": kib(8)}
RATES = (1000, 2000, 4000, 8000, 12000, 16000, 20000)
FORWARDED = {"uncached": BODIES, "connect": TUNNELS, "tls": HANDSHAKES}

FIGURES = {
    "kernel-support-fig7": Figure("CPU time of a miss by size, epoll", "epoll", MISSES, "cpu_us"),
    "kernel-support-fig8": Figure("CPU time of a miss by size, uring", "uring", MISSES, "cpu_us"),
    "kernel-support-fig9": Figure("CPU utilization by rate, misses of 8 KiB", "epoll", EIGHT,
                                  "cpu_share", RATES),
    "kernel-support-fig10": Figure("Response time by rate, misses of 8 KiB", "epoll", EIGHT,
                                   "mean_us", RATES),
    "tcp-splice-cpu": Figure("CPU time by size: GET and tunnels", "epoll", FORWARDED, "cpu_us"),
    "tcp-splice-time": Figure("Response time by size: GET and tunnels", "epoll", FORWARDED,
                              "mean_us"),
}
VALUES = {
    "cpu_us": "CPU time of the proxy per request, us",
    "cpu_share": "CPU time of the proxy, % of a core",
    "mean_us": "mean response time, us",
}
# CPU time of the plan divided by that of copying, at most, where it is less than WORSE_MAX.
BARS = {("uncached", 64 * KIB): 0.70, ("uncached", MIB): 0.50, ("cacheable", MIB): 0.75}


def bar(kind, size):
    return BARS.get((kind, size), WORSE_MAX)


def base(program):
    """Returns the program that another one is divided by; None for programs that copy."""
    return None if program.endswith("copy") else BESIDE.get(program, "copy")


def programs(engine):
    """Returns {name: (file in start/, options of millrace)} of the programs for an engine."""
    found = {name: ("millrace-misses", options) for name, options in VARIANTS.items()}
    for name in PROGRAMS if engine == "epoll" else ():
        if os.access(f"{HERE}/start/{name}", os.X_OK):
            found[name] = (name, "")
    return found
