"""Which figures of the papers are measured, and how: their curves, points and bars.

Figures 7 to 10 are those of section 5.2 of "Kernel Support for Faster Web Proxies"; 004 is "An
Evaluation of TCP Splice Benefits in Web Proxy Servers", of which only the abstract is at hand.
"""
import os
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# What is compared: a name, and the options of millrace that make it.
VARIANTS = {"copy": "--splice never", "splice": "--splice always", "plan": "--splice fixed"}
# Curves that other programs make: the paper's application over the library's own interface (with
# KeepCopy 16 KiB min2read, 64 KiB max2cache; AutoRelease), the same by read and write, and
# forwarding without the application. Such a program is a file start/NAME as README.md has it, whose
# cases line has F1, and F2 if it makes tunnels; where there is no file, there is no curve.
PROGRAMS = ("library", "library-copy", "in-kernel")
# What each is divided by, if not by copy.
BESIDE = {"library": "library-copy"}
# How a request is made. All go to the forward proxy; connections are kept, but tunnels are not.
KINDS = {
    "uncached": "GET, not cacheable",
    "cacheable": "GET, stored as it passes",
    "connect": "GET in a tunnel of its own",
    "tls": "TLS 1.3 handshake and GET in a tunnel of its own",
}
# Requests per second at most. Larger bodies come less often, so that no more than BYTES_PER_SECOND
# do: both keep the core that all three programs share below a third of what it can do.
RATE_MAX = {"uncached": 2000, "cacheable": 2000, "connect": 400, "tls": 150}
BYTES_PER_SECOND = 320 * MIB
WINDOW_REQUESTS = 4  # at least so many in a window, however long it takes
WORSE_MAX = 1.03  # the plan beside copying, at every size and rate


@dataclass(frozen=True)
class Load:
    """A point of the x axis: requests of one kind."""

    kind: str
    bytes: int
    rate: int  # per second

    def seconds(self, least):
        return max(least, WINDOW_REQUESTS / self.rate)

    def connections(self):
        """Enough that none is awaited; each makes one request before the window."""
        return max(4, min(64, 256 * MIB // self.bytes))


@dataclass(frozen=True)
class Figure:
    """One figure; those with the same engine, kinds and axis come from one run."""

    title: str
    engine: str
    sizes: dict  # {kind: bytes of each point}, or of the one size where rates are the axis
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
        """Whether it shows what a request costs, at whatever rate."""
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
    "000.7": Figure("CPU time of a miss by size, epoll", "epoll", MISSES, "cpu_us"),
    "000.8": Figure("CPU time of a miss by size, uring", "uring", MISSES, "cpu_us"),
    "000.9": Figure("CPU utilization by rate, misses of 8 KiB", "epoll", EIGHT, "cpu_share",
                    RATES),
    "000.10": Figure("Response time by rate, misses of 8 KiB", "epoll", EIGHT, "mean_us", RATES),
    "004.cpu": Figure("CPU time by size: GET and tunnels", "epoll", FORWARDED, "cpu_us"),
    "004.time": Figure("Response time by size: GET and tunnels", "epoll", FORWARDED, "mean_us"),
}
VALUES = {
    "cpu_us": "CPU time of the proxy per request, us",
    "cpu_share": "CPU time of the proxy, % of a core",
    "mean_us": "mean response time, us",
}
# The most that the plan may cost beside copying, where that is less than WORSE_MAX.
BARS = {("uncached", 64 * KIB): 0.70, ("uncached", MIB): 0.50, ("cacheable", MIB): 0.75}


def bar(kind, size):
    return BARS.get((kind, size), WORSE_MAX)


def base(program):
    """What a program is compared with; nothing for those that copy."""
    return None if program.endswith("copy") else BESIDE.get(program, "copy")


def programs(engine):
    """{name: (file in start/, options of millrace)} of those that are there for an engine."""
    there = {name: ("millrace-misses", options) for name, options in VARIANTS.items()}
    for name in PROGRAMS if engine == "epoll" else ():
        if os.access(f"{HERE}/start/{name}", os.X_OK):
            there[name] = (name, "")
    return there
