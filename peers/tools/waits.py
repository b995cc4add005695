"""Which figures are about waiting for many connections, and how: curves, loads, points and bars.

They are figures 4 and 5 of section 5.1 of "Kernel Support for Faster Web Proxies": hits alone,
answers from memory (lighttpd: static files), over connections that are made and used once before
anything is measured, and then stay.
"""
from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True)
class Program:
    """A curve: a file in start/, and how it is told to wait."""

    file: str
    waits_by: str  # gives the colour
    settings: tuple = ()  # (name, value) of the environment
    offset: int = 2  # of its port
    tracked: bool = False  # by uselectd, which is started for it alone
    preloaded: bool = False  # as well as tracked
    new: bool = False  # may be refused with status 2: then there is no such curve
    only: str = ""  # the only load that it is for
    most: int = 1 << 16  # connections that it can hold

    def takes(self, load):
        if self.only:
            return load == self.only
        return load in ("all", "32 active") or self.waits_by not in ("select", "poll")


def millrace(engine, **more):
    return Program("millrace-hits", engine, (("ENGINE", engine),), **more)


# lighttpd takes half as many connections as it may have descriptors, which for select(2) are 1024.
SELECT_MOST = 500
HIT = {"file": "lighttpd", "offset": 4}


def lighttpd(handler):
    return ("HANDLER", handler), ("FDS", "20000")


SPIN = (("ENGINE", "uselect"), ("MILLRACE_OPTS", "--spin-us 50"))
PROGRAMS = {
    "select": millrace("select"),
    "poll": millrace("poll"),
    "epoll": millrace("epoll"),
    "uring": millrace("uring"),
    "uselect": millrace("uselect", tracked=True, new=True),
    # Spinning is for who has a core to himself.
    "uselect-spin": Program("millrace-hits", "spin", SPIN, tracked=True, new=True,
                            only="4 active"),
    # What is left of a server without its work, for the bar on response times.
    "floor": Program("floor-hits", "epoll", only="4 active"),
    "floor-spin": Program("floor-hits", "spin", (("FLOOR_OPTS", "--spin"),), only="4 active"),
    "lighttpd-select": Program(waits_by="select", settings=lighttpd("select"),
                               most=SELECT_MOST, **HIT),
    "lighttpd-poll": Program(waits_by="poll", settings=lighttpd("poll"), **HIT),
    "lighttpd-epoll": Program(waits_by="epoll", settings=lighttpd("linux-sysepoll"), **HIT),
    "lighttpd-poll-uselect": Program(waits_by="uselect", settings=lighttpd("poll"), tracked=True,
                                     preloaded=True, **HIT),
    "haproxy-poll": Program("haproxy", "poll", (("HAPROXY_OPTS", "-de"),)),
    "haproxy-epoll": Program("haproxy", "epoll"),
    "haproxy-poll-uselect": Program("haproxy", "uselect", (("HAPROXY_OPTS", "-de"),),
                                    tracked=True, preloaded=True),
}


@dataclass(frozen=True)
class Load:
    """Who asks, and when."""

    title: str
    mode: str  # where, as run-case has it
    active: int  # connections that make requests; 0: all in turn
    rate: int  # per second; 0: each asks again as soon as it is answered
    seconds: float  # at least
    value: str  # the column that is drawn
    axis: str
    # Rates leave the core idle, and how it comes back from a halt is the host's affair on a virtual
    # machine: a process of the idle class keeps it from halting.
    awake: bool = False
    spins: bool = False  # the client never sleeps, so no answer's time has its waking in it

    def is_apart(self):
        """Whether the client has the other core."""
        return self.mode == "sat2"


CPU = "CPU time per request, us"
LOADS = {
    # The paper's rate, at which little else is seen than what a wait takes: of 10,000 descriptors a
    # scan takes 4 ms, and there are two in each wait. At any higher rate those that scan would find
    # several requests in a wait and seem to take less.
    "all": Load("100 requests/s over all connections", "rate1", 0, 100, 1.0, "cpu_us", CPU, True),
    # For those that do not scan: a rate at which 5 % can be told apart.
    "busy": Load("2,000 requests/s over all connections", "rate1", 0, 2000, 1.0, "cpu_us", CPU,
                 True),
    "32 active": Load("closed loop over 32 connections", "sat1", 32, 0, 0.0, "cpu_us", CPU),
    # A request each 50 us, so that the program would sleep between any two. It has a core to
    # itself, on which it may spin. (A closed loop over 4 leaves it no time to sleep.)
    "4 active": Load("20,000 requests/s over 4 connections, two cores", "sat2", 4, 20000, 0.0,
                     "p50_us", "median response time, us", spins=True),
}


@dataclass(frozen=True)
class Bar:
    """What one program takes, divided by what another one does (or itself, at the first point)."""

    load: str
    program: str
    other: str
    most: float = 0.0  # 0: shown, not judged
    least: float = 0.0
    at: tuple = ()  # where it is judged; everywhere unless said
    floor: tuple = ()  # the same two of bare programs, whose ratio may stand in for the bar

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
    is_by_size: bool = False  # the x axis, in place of connections


COUNTS = (250, 1000, 2500, 4000, 10000)
FIGURES = {
    "000.4": Figure(
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
    "000.5": Figure(
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
