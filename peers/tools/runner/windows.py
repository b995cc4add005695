"""The timed windows: the CPU time of each program while the client makes requests."""
import os
import subprocess
import time
from dataclasses import dataclass

from runner.cases import COLD_WARM_UP, RATES
from runner.checks import check_connections, check_handshakes, check_origin_requests
from runner.client import Failed, Load, Wrong, h2_command, h2_row, load_command, origin_requests
from runner.lock import BENCH_LOCK
from runner.process import Process, available_memory, idle_seconds, task_seconds

WARM_UP_SECONDS = 0.15
MANY_SECONDS_MAX = 55  # of a client that holds many connections
MANY_RATES = (100, 500, 2000)  # requests per second over many connections


@dataclass
class Bench:
    """The case, the peer and the programs of a window."""

    case: str
    peer: str
    spec: object
    base: int  # the peer's first port
    proxy: Process
    origin: Process
    options: object
    count: object = None  # a function that returns what origin_requests() does; None: that one

    def seen(self):
        """Returns how many requests the origin has served, and their hashes."""
        return self.count() if self.count else origin_requests(self.spec.tls_origin)


@dataclass
class Clocks:
    """Readings of all clocks at one time, or the differences of two such readings."""

    idle: dict  # {core: seconds}
    tasks: dict  # {core: seconds}, or {}
    proxy: float
    origin: float
    wall: float

    @classmethod
    def now(cls, bench):
        return cls(idle_seconds(), task_seconds(), bench.proxy.cpu(), bench.origin.cpu(),
                   time.monotonic())

    def since(self, before):
        idle = {core: seconds - before.idle[core] for core, seconds in self.idle.items()}
        tasks = {core: seconds - before.tasks[core] for core, seconds in self.tasks.items()}
        return Clocks(idle, tasks, self.proxy - before.proxy, self.origin - before.origin,
                      self.wall - before.wall)

    def busy(self):
        return {core: self.wall - seconds for core, seconds in self.idle.items()}


def is_closed_loop(mode):
    return mode.startswith("closed-loop-")


def has_two_cores(mode):
    """Returns whether origin and client have the second core for themselves."""
    return mode.endswith("-2cores")


def client_cores(mode):
    """Returns the cores of origin and client, as taskset takes them."""
    if mode == "closed-loop-unpinned":
        return "0,1"
    return "1" if has_two_cores(mode) else "0"


def proxy_cores(mode):
    return {0, 1} if mode == "closed-loop-unpinned" else {0}


def rate_of(spec, mode, options):
    """Returns the requests per second of a window; 0 in a closed loop."""
    if is_closed_loop(mode):
        return 0
    return spec.rate or options.rate or float(RATES.get(spec.size, 100))


def commands(spec, base, mode, options):
    """Returns the client's command line in a mode."""
    pinned = ["taskset", "-c", client_cores(mode)]
    if options.client_network:
        pinned += ["nsenter", f"--net={options.client_network}"]
    if spec.tls == "h2":
        return pinned + h2_command(spec, base, options)[0]
    connections = str(spec.connections or options.conns)
    more = ["-A", options.peer_address] if options.client_network else []
    return pinned + (spec.client or load_command(spec, base, "-c", connections, "-E", "-S", *more))


def measure(bench, mode):
    """Makes one window and returns its result line."""
    BENCH_LOCK.take()
    bench.origin.pin({int(core) for core in client_cores(mode).split(",")})
    bench.proxy.pin(proxy_cores(mode))
    try:
        row, used = (h2_window if bench.spec.tls == "h2" else window)(bench, mode)
    except Failed as error:
        raise Failed(f"{bench.peer} {bench.case}: {error}") from None
    return row | costs(bench, mode, row, used)


def h2_window(bench, mode):
    """Makes a window by h2load, which starts with it."""
    count = h2_command(bench.spec, bench.base, bench.options)[1]
    command = commands(bench.spec, bench.base, mode, bench.options)
    before, own = Clocks.now(bench), os.times()
    done = subprocess.run(command, capture_output=True, text=True)
    own_after, used = os.times(), Clocks.now(bench).since(before)
    row = h2_row(done.stdout, count)
    if not row:
        raise Failed(f"{done.stdout} {done.stderr}")
    row["client_cpu_s"] = (own_after.children_user + own_after.children_system
                           - own.children_user - own.children_system)
    return row, used


def window(bench, mode):
    """Makes a window by pbload after a short warm-up, and checks what the origin saw."""
    spec, options = bench.spec, bench.options
    rate = rate_of(spec, mode, options)
    load = Load(commands(spec, bench.base, mode, options))
    try:
        load.wait_ready()
        load.phase(rate, WARM_UP_SECONDS, COLD_WARM_UP if spec.files else 0)
        load.wait_ready()
        seen = None if spec.client else bench.seen()
        before, ticks = Clocks.now(bench), bench.proxy.user_and_system()
        row = load.phase(rate, spec.seconds or options.secs, spec.requests)
        used, ticks_after = Clocks.now(bench).since(before), bench.proxy.user_and_system()
        if seen:
            check_origin_requests(bench.case, bench.peer, row, seen, bench.seen())
        if spec.handshake:
            check_handshakes(bench.case, bench.peer, row, spec.handshake)
        if not spec.closes:
            check_connections(bench.case, bench.peer, row, spec.connections or options.conns)
        load.finish()
    finally:
        load.kill()
    row["user"], row["sys"] = ((after - then) / 100 for after, then in zip(ticks_after, ticks))
    if row["errors"]:
        raise Wrong(f"{bench.peer} {bench.case} {mode}: errors {row}")
    return row, used


def costs(bench, mode, row, used):
    """Returns the columns of a result line that follow from the clocks."""
    client, busy = row["client_cpu_s"], used.busy()
    total, apart = max(1, row["total"]), has_two_cores(mode)
    beside = used.origin + client
    own = used.proxy + (0 if apart else beside)
    if mode == "closed-loop-unpinned":
        # The kernel chose the cores, so both count as one.
        busy[0] += busy.pop(1, 0)
    other_busy = busy.get(1, 0)
    each = 1e6 / total
    return {
        "case": bench.case, "peer": bench.peer, "mode": mode,
        "proxy_us": used.proxy * each, "origin_us": used.origin * each, "client_us": client * each,
        "sys_us": (used.proxy + beside) * each,
        "proxy_util": used.proxy / used.wall, "other_util": beside / used.wall,
        "busy0": busy[0] / used.wall, "busy1": other_busy / used.wall,
        "stat_us": (busy[0] + (other_busy if apart else 0)) * each,
        "foreign0": (busy[0] - own) / used.wall,
        "foreign1": (other_busy - (beside if apart else 0)) / used.wall,
        "time": time.time(),
    } | (packet_costs(used, beside, each) if bench.options.client_network and used.tasks else {})


def packet_costs(used, beside, each):
    """Returns the columns of a window whose packets cross cores. Handling them is not the work of
    other programs, even where no task is charged for it: on an idle core, and in ksoftirqd."""
    foreign = [used.tasks[0] - used.proxy, used.tasks[1] - beside]
    return {"core_us": (used.busy()[0] - foreign[0]) * each,
            "foreign0": foreign[0] / used.wall, "foreign1": foreign[1] / used.wall}


def many_command(spec, base, options):
    """Returns the command line of the client that holds many connections."""
    return ["taskset", "-c", "0", *load_command(spec, base, "-c", str(options.idle), "-E", "-S",
                                                *spec.set_up)]


def measure_many(bench):
    """Measures requests over many connections, and the memory of these. Returns result lines."""
    spec, options = bench.spec, bench.options
    BENCH_LOCK.take()
    bench.origin.pin({0})
    pss, available = bench.proxy.pss(), available_memory()
    load = Load(many_command(spec, bench.base, options), MANY_SECONDS_MAX)
    rows = []
    try:
        load.wait_ready()
        time.sleep(0.2)
        memory = {"pss_per_conn": (bench.proxy.pss() - pss) * 1024 / options.idle,
                  "avail_per_conn": (available - available_memory()) * 1024 / options.idle,
                  "base_pss_kib": pss, "idle_cpu": cpu_while_idle(bench.proxy)}
        is_miss = bench.case.startswith("many-connections-miss")
        for rate in MANY_RATES[-1:] if is_miss else MANY_RATES:
            case = bench.case if is_miss else f"{bench.case}-{rate}"
            rows.append(memory | many_row(bench, load, rate, case))
            load.popen.stderr.readline()
        load.finish()
    except Failed as error:
        raise Failed(f"{bench.peer} {bench.case}: {error}") from None
    finally:
        load.kill()
    return rows


def cpu_while_idle(process):
    """Returns the part of a core that a process uses in a second without requests."""
    before, start = process.cpu(), time.monotonic()
    time.sleep(1)
    return (process.cpu() - before) / (time.monotonic() - start)


def many_row(bench, load, rate, case):
    """Makes one window over many connections and returns its result line."""
    seen, before = origin_requests(), Clocks.now(bench)
    row = load.phase(rate, min(bench.options.secs, 1.5))
    used = Clocks.now(bench).since(before)
    if row["errors"]:
        raise Failed(f"errors {row}")
    check_origin_requests(bench.case, bench.peer, row, seen, origin_requests())
    check_connections(bench.case, bench.peer, row, bench.options.idle)
    found = costs(bench, "fixed-rate-1core", row, used)
    # The second core has no part in this.
    for key in ("foreign1", "busy1", "other_util"):
        found[key] = 0
    return row | found | {"case": case}
