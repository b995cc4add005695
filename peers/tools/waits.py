"""The figures about waiting for many connections: their curves, loads, points and bars.

They are figures 4 and 5 of section 5.1 of "Kernel Support for Faster Web Proxies". All requests are
hits, which a cache serves from memory and lighttpd from static files. The connections are made and
used once before anything is measured, and then stay open.
"""
from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True)
class Program:
    """A curve: a file in start/, and the settings that choose how the program waits."""

    file: str
    waits_by: str  # the system call or library; chooses the colour
    settings: tuple = ()  # (name, value) of environment variables
    offset: int = 2  # of the port
    is_tracked: bool = False  # by uselectd, which is started for this program alone
    is_preloaded: bool = False  # with the preload of uselect; implies is_tracked
    is_optional: bool = False  # exit status 2 at start (unknown option) omits the curve
    only: str = ""  # the only load of the curve; empty: see takes()
    connections_max: int = 1 << 16

    def takes(self, load):
        """Returns whether the curve has points of a load."""
        if self.only:
            return load == self.only
        return load in ("all", "32 active") or self.waits_by not in ("select", "poll")


def millrace(engine, **more):
    return Program("millrace-hits", engine, (("ENGINE", engine),), **more)


# lighttpd accepts half as many connections as it may have descriptors: 1,024 for select(2).
SELECT_CONNECTIONS_MAX = 500
HIT = {"file": "lighttpd", "offset": 4}


def lighttpd(handler):
    return ("HANDLER", handler), ("FDS", "20000")


SPIN = (("ENGINE", "uselect"), ("MILLRACE_OPTS", "--spin-us 50"))
PROGRAMS = {
    "select": millrace("select"),
    "poll": millrace("poll"),
    "epoll": millrace("epoll"),
    "uring": millrace("uring"),
    "uselect": millrace("uselect", is_tracked=True, is_optional=True),
    # Spinning is for a program that has a core of its own.
    "uselect-spin": Program("millrace-hits", "spin", SPIN, is_tracked=True, is_optional=True,
                            only="4 active"),
    # The bare server, for the bar on response times.
    "floor": Program("floor-hits", "epoll", only="4 active"),
    "floor-spin": Program("floor-hits", "spin", (("FLOOR_OPTS", "--spin"),), only="4 active"),
    "lighttpd-select": Program(waits_by="select", settings=lighttpd("select"),
                               connections_max=SELECT_CONNECTIONS_MAX, **HIT),
    "lighttpd-poll": Program(waits_by="poll", settings=lighttpd("poll"), **HIT),
    "lighttpd-epoll": Program(waits_by="epoll", settings=lighttpd("linux-sysepoll"), **HIT),
    "lighttpd-poll-uselect": Program(waits_by="uselect", settings=lighttpd("poll"), is_tracked=True,
                                     is_preloaded=True, **HIT),
    "haproxy-poll": Program("haproxy", "poll", (("HAPROXY_OPTS", "-de"),)),
    "haproxy-epoll": Program("haproxy", "epoll"),
    "haproxy-poll-uselect": Program("haproxy", "uselect", (("HAPROXY_OPTS", "-de"),),
                                    is_tracked=True, is_preloaded=True),
}


@dataclass(frozen=True)
class Load:
    """Which connections make requests, and when."""

    title: str
    has_own_core: bool  # the client; else all programs share the first core
    active: int  # connections that make requests; 0: all of them in turn
    rate: int  # per second; 0: closed loop
    seconds: float  # of a window, at least
    value: str  # the column of the results that is drawn
    axis: str
    # A fixed rate leaves the core idle. On a virtual machine the time to resume a halted core
    # depends on the host, so a process of the idle class keeps the core from halting.
    is_awake: bool = False
    spins: bool = False  # the client never sleeps, so response times do not contain its wake-up


CPU = "CPU time per request, us"
LOADS = {
    # The paper's rate, at which the cost of a wait dominates: a scan of 10,000 descriptors takes
    # 4 ms, and each wait makes two. At a higher rate programs that scan would find several requests
    # in one wait, and their cost per request would look smaller.
    "all": Load("100 requests/s over all connections", False, 0, 100, 1.0, "cpu_us", CPU, True),
    # For programs that do not scan: at this rate a difference of 5 % is significant.
    "busy": Load("2,000 requests/s over all connections", False, 0, 2000, 1.0, "cpu_us", CPU,
                 True),
    "32 active": Load("closed loop over 32 connections", False, 32, 0, 0.0, "cpu_us", CPU),
    # A request every 50 us, so that the program would sleep between any two. It has a core of its
    # own, on which it may spin. A closed loop over 4 connections would leave no time to sleep.
    "4 active": Load("20,000 requests/s over 4 connections, two cores", True, 4, 20000, 0.0,
                     "p50_us", "median response time, us", spins=True),
}


@dataclass(frozen=True)
class Bar:
    """The value of one program divided by that of another (or of itself at the first point)."""

    load: str
    program: str
    other: str
    most: float = 0.0  # 0: shown, not judged
    least: float = 0.0
    at: tuple = ()  # the points that are judged; empty: all
    floor: tuple = ()  # two bare programs, whose ratio may replace the bar

    def title(self, first):
        other = f"itself at {first:,}" if self.other == self.program else self.other
        return f"{self.program} / {other}"


@dataclass(frozen=True)
class Figure:
    title: str
    loads: tuple
    connections: tuple
    sizes: tuple
    bars: tuple
    is_by_size: bool = False  # the x axis has sizes, not connections


COUNTS = (250, 1000, 2500, 4000, 10000)
FIGURES = {
    "kernel-support-fig4": Figure(
        "Hits of 8 KiB by number of connections", tuple(LOADS), COUNTS, (8 * KIB,),
        (
            Bar("all", "uselect", "select"),
            Bar("all", "uselect", "poll"),
            Bar("all", "uselect", "epoll"),
            Bar("busy", "uselect", "uselect", 1.05, 0.95),
            Bar("busy", "epoll", "epoll"),
            Bar("busy", "uselect", "epoll"),
            Bar("32 active", "uselect", "uselect", 1.05, 0.95),
            Bar("32 active", "epoll", "epoll"),
            Bar("32 active", "uselect", "select", 0.10, at=(10000,)),
            Bar("32 active", "uselect", "poll", 0.10, at=(10000,)),
            Bar("32 active", "uselect", "epoll", 1.03),
            Bar("32 active", "lighttpd-poll-uselect", "lighttpd-epoll", 1.10, at=(4000,)),
            Bar("32 active", "lighttpd-poll-uselect", "lighttpd-poll"),
            Bar("32 active", "haproxy-poll-uselect", "haproxy-epoll"),
            Bar("32 active", "haproxy-poll-uselect", "haproxy-poll"),
            Bar("4 active", "uselect-spin", "epoll", 0.35, floor=("floor-spin", "floor")),
            Bar("4 active", "floor-spin", "floor"),
        ),
    ),
    "kernel-support-fig5": Figure(
        "Hits by size, at 5,000 and 10,000 connections", ("all",), (5000, 10000),
        tuple(size * KIB for size in (4, 8, 16, 32, 64, 128)),
        (
            Bar("all", "uselect", "select"),
            Bar("all", "uselect", "poll"),
            Bar("all", "uselect", "epoll"),
            Bar("all", "lighttpd-poll-uselect", "lighttpd-epoll"),
            Bar("all", "haproxy-poll-uselect", "haproxy-epoll"),
        ),
        is_by_size=True,
    ),
}
