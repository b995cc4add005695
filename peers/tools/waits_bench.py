"""Measures the figures about waiting: one program at a time with many connections.

uselectd runs only beside the programs that it tracks, so that only these pay for its hooks in the
kernel, and its own CPU time is added to theirs. The connections are made and used once before the
first window of a round and reset after the last one, so that none stays in TIME_WAIT. The origin
must see no request in a window.
"""
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.request

from results import VERSIONS, version
from runner.cases import Spec
from runner.checks import check_connections, check_origin_requests, verify
from runner.client import Wrong, fetch, load_command, origin_requests, start_load
from runner.lock import BENCH_LOCK
from runner.process import Process, idle_seconds, is_listening
from runner.settings import BIN, FILES, PEERS, PORT, WORK, Options, peer_env
from waits import LOADS, PROGRAMS

OPTIONS = Options()
COLUMNS = ("load", "program", "connections", "bytes", "rate", "round", "total", "cpu_us",
           "client_us", "daemon_us", "mean_us", "p50_us", "p99_us", "max_us", "rps", "foreign",
           "noisy")
WARM_SECONDS = 0.15
SESSION_SECONDS_MAX = 180  # after which a client is killed
DESCRIPTORS = 20000  # of a program: lighttpd needs two for each connection
UNKNOWN_OPTION = 2  # exit status
STATS = "uselect: "  # the start of the line with the preload's statistics
AWAKE = "kill -STOP $$; while :; do :; done"
CASE = "reverse-hit"  # for the checks: the origin must see no request


class LeftOut(Exception):
    """The reason why a curve is omitted."""


class Bench:
    """The origin, the files that lighttpd serves, and the ports of all programs."""

    def __init__(self, figure, arguments):
        self.figure, self.seconds = figure, arguments.secs
        self.socket = f"{WORK}/uselectd.sock"
        built = os.path.dirname(os.path.abspath(os.environ.get("MILLRACE", "millrace")))
        self.uselect = os.environ.get("USELECT", built + "/uselect")
        self.uselectd = os.environ.get("USELECTD", built + "/uselectd")
        self.bases = {name: PORT + 100 * number
                      for number, name in enumerate(PROGRAMS, 1)}
        self.statistics = {}  # {program: the line of its preload}

    def prepare(self):
        # Starts stopped, and runs in the windows of loads with is_awake.
        self.keep_awake = Process("awake", ["chrt", "--idle", "0", "sh", "-c", AWAKE])
        self.origin = Process("origin", [BIN + "/pborigin", str(PORT)])
        if not is_listening(PORT):
            raise SystemExit(f"figure: the origin does not start; see {WORK}/origin.log")
        for size in self.figure.sizes:
            url = f"http://127.0.0.1:{PORT}/n/{size}"
            with open(f"{FILES}/c/{size}", "wb") as file:
                file.write(urllib.request.urlopen(url).read())

    def stop(self):
        os.kill(self.keep_awake.popen.pid, signal.SIGCONT)
        self.keep_awake.stop()
        self.origin.stop()

    def spec(self, name, size, count):
        """Returns the requests for a size over this many connections."""
        return Spec(PROGRAMS[name].offset, f"/c/{size}", bytes=size, connections=count,
                    flags=["-R"])

    def check(self, name):
        """Compares every byte of some responses. Raises LeftOut if the program cannot run."""
        program = PROGRAMS[name]
        if program.file in VERSIONS and not shutil.which(program.file):
            raise LeftOut(f"{program.file} is not installed")
        if program.is_tracked and not os.access(self.uselectd, os.X_OK):
            raise LeftOut("uselectd is neither beside millrace nor in $USELECTD")
        if program.is_preloaded and not os.access(self.uselect, os.X_OK):
            raise LeftOut("uselect is neither beside millrace nor in $USELECT")
        with self.started(name):
            for size in self.figure.sizes:
                spec = self.spec(name, size, 16)
                spec.checked = 200
                verify(CASE, name, spec, self.bases[name])

    @contextlib.contextmanager
    def started(self, name):
        """Starts the program and, if it is tracked, uselectd. Yields both with a warm cache."""
        program = PROGRAMS[name]
        run = f"{WORK}/run-{name}"
        shutil.rmtree(run, ignore_errors=True)
        os.makedirs(run)
        env = peer_env(run, self.bases[name]) | dict(program.settings)
        env["USELECT_SOCKET"] = self.socket
        if program.is_preloaded:
            words = [self.uselect, "run", "--stats", "--socket", self.socket, "--"]
            env["PB_PRELOAD"] = " ".join(words)
        with contextlib.ExitStack() as at_end:
            daemon = self.started_daemon(at_end) if program.is_tracked else None
            with contextlib.suppress(FileNotFoundError):
                os.remove(f"{WORK}/{name}.log")
            process = Process(name, [f"{PEERS}/start/{program.file}"], env=env)
            at_end.callback(self.keep_statistics, name)
            at_end.callback(process.stop)
            self.wait(name, process)
            process.pin({0})
            for _ in range(2):
                for size in self.figure.sizes:
                    fetch(self.spec(name, size, 1), self.bases[name])
            yield process, daemon

    def started_daemon(self, at_end):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.socket)
        daemon = Process("uselectd", [self.uselectd, "--socket", self.socket])
        at_end.callback(daemon.stop)
        end = time.monotonic() + 10
        while time.monotonic() < end and daemon.popen.poll() is None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.socket)
                return daemon
            time.sleep(0.02)
        raise SystemExit(f"figure: uselectd does not start; see {WORK}/uselectd.log")

    def wait(self, name, process):
        """Waits until the program listens. Raises LeftOut if millrace lacks its options."""
        port = self.bases[name] + PROGRAMS[name].offset
        end = time.monotonic() + 10
        while time.monotonic() < end and process.popen.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            time.sleep(0.02)
        if PROGRAMS[name].is_optional and process.popen.poll() == UNKNOWN_OPTION:
            raise LeftOut(f"millrace refuses its options: {self.last_line(name)}")
        raise SystemExit(f"figure: {name} does not start; see {WORK}/{name}.log")

    def last_line(self, name, start=""):
        """Returns the last line of a log that begins with `start`, or an empty text."""
        with open(f"{WORK}/{name}.log", errors="replace") as file:
            lines = [line for line in file.read().splitlines() if line.startswith(start)]
        return lines[-1] if lines else ""

    def keep_statistics(self, name):
        """Keeps the line with statistics that the preload writes when the program ends."""
        if PROGRAMS[name].is_preloaded:
            line = self.last_line(name, STATS)
            self.statistics[name] = line or "no statistics: a signal ended the program"

    @contextlib.contextmanager
    def awake(self, load):
        """Keeps the core from halting if the load requires that."""
        pid = self.keep_awake.popen.pid
        if load.is_awake:
            os.kill(pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGSTOP)

    def loads(self, name, count):
        """Returns the windows of a program with this many connections."""
        return [(load, size) for load in self.figure.loads for size in self.figure.sizes
                if PROGRAMS[name].takes(load) and LOADS[load].active <= count]

    def session(self, name, count):
        """Makes all windows of a program over the same connections and returns their rows."""
        BENCH_LOCK.take()
        with self.started(name) as (process, daemon):
            spec = self.spec(name, self.figure.sizes[0], count)
            words = ["-c", str(count), "-E", "-S"]
            client = start_load(
                ["taskset", "-c", "0", *load_command(spec, self.bases[name], *words)])
            guard = threading.Timer(SESSION_SECONDS_MAX, client.kill)
            guard.start()
            try:
                session = Session(self, name, count, client, process, daemon)
                rows = [session.window(load, size) for load, size in self.loads(name, count)]
                # The client ends at the end of its input, and resets the connections.
                client.stdin.close()
                client.wait()
                return rows
            finally:
                guard.cancel()
                client.kill()
                client.wait()


class Session:
    """A client that holds connections to a program."""

    def __init__(self, bench, name, count, client, process, daemon):
        self.bench, self.name, self.count = bench, name, count
        self.client, self.process, self.daemon = client, process, daemon

    def window(self, name, size):
        """Makes one window and returns its row. A disturbed window is repeated."""
        load = LOADS[name]
        for _ in range(OPTIONS.tries):
            row = self.measure(load, size)
            if row["foreign"] <= OPTIONS.maxforeign:
                break
        row.update(load=name, program=self.name, connections=self.count, bytes=size,
                   rate=load.rate, noisy=int(row["foreign"] > OPTIONS.maxforeign))
        return {key: f"{row[key]:.4f}" if isinstance(row[key], float) else row[key]
                for key in COLUMNS if key in row}

    def measure(self, load, size):
        """Makes one window and returns the counts and costs per request."""
        with self.bench.awake(load):
            self.phase(load, size, WARM_SECONDS)
            seen, before = origin_requests(), self.clocks()
            done = self.phase(load, size, max(self.bench.seconds, load.seconds))
            after = self.clocks()
        wall, idle, beside, own, daemon = (new - old for new, old in zip(after, before))
        check_origin_requests(CASE, self.name, done, seen, origin_requests())
        check_connections(CASE, self.name, done, self.count)
        if done["errors"]:
            raise Wrong(f"{self.name} at {self.count} connections: {done}")
        busy, client = own + daemon, done["client_cpu_s"]
        foreign = wall - idle - busy - (0 if load.has_own_core else client)
        if load.has_own_core:
            foreign = max(foreign, wall - beside - client)
        each = 1e6 / max(1, done["total"])
        return done | {"cpu_us": busy * each, "daemon_us": daemon * each,
                       "client_us": client * each, "foreign": foreign / wall}

    def phase(self, load, size, seconds):
        """Lets the client make requests for this long and returns its counts."""
        line = self.client.stderr.readline()
        if "warm" not in line:
            raise SystemExit(f"figure: {self.name}: {line}{self.client.stderr.read()}")
        os.sched_setaffinity(self.client.pid, {1 if load.has_own_core else 0})
        self.client.stdin.write(f"{load.rate} {seconds} {load.active} {size} {int(load.spins)}\n")
        self.client.stdin.flush()
        return json.loads(self.client.stdout.readline())

    def clocks(self):
        """Returns seconds: the time, idle time of both cores, CPU time of program and uselectd."""
        idle, daemon = idle_seconds(), self.daemon.cpu() if self.daemon else 0
        awake = self.bench.keep_awake.cpu()  # on the first core
        return time.monotonic(), idle[0] + awake, idle.get(1, 0), self.process.cpu(), daemon


def measure(figure, arguments):
    """Returns the rows of all windows of a figure, and the notes for its page."""
    raise_limit()
    names = arguments.programs.split(",") if arguments.programs else list(PROGRAMS)
    bench, notes, rows = Bench(figure, arguments), {}, []
    try:
        bench.prepare()
        usable = [name for name in names if can_run(bench, name, notes)]
        for number in range(arguments.reps):
            for count in figure.connections:
                able = [name for name in usable if count <= PROGRAMS[name].connections_max]
                for name in able[:: 1 if number % 2 == 0 else -1]:
                    rows += [row | {"round": number} for row in bench.session(name, count)]
            print(f"figure: round {number + 1} of {arguments.reps}", file=sys.stderr, flush=True)
    finally:
        BENCH_LOCK.close()
        bench.stop()
    files = dict.fromkeys(PROGRAMS[name].file for name in usable)
    peers = [f"{file} {version(file)}" for file in files if file in VERSIONS]
    notes["peers"] = ", ".join(peers) or "no peers"
    return rows, notes | {f"waits of {name}": text for name, text in bench.statistics.items()}


def can_run(bench, name, notes):
    """Returns whether there can be such a curve. If not, the notes get the reason."""
    try:
        bench.check(name)
    except LeftOut as reason:
        notes[f"left out {name}"] = re.sub(r"\s+", " ", str(reason))
        print(f"figure: without {name}: {reason}", file=sys.stderr, flush=True)
        return False
    return True


def raise_limit():
    """Allows enough descriptors for every program, which inherits the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < DESCRIPTORS:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        except ValueError:
            raise SystemExit(f"figure: programs need {DESCRIPTORS} descriptors, and the hard "
                             f"limit is {hard} (ulimit -Hn)") from None
