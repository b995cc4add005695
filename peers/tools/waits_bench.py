"""Measures the figures about waiting: a program, the connections that it is held, and windows.

Of the programs only one is there at a time, and uselectd only beside those that are tracked: what
its hooks cost the rest of a machine is part of their price and of nobody else's. uselectd's own CPU
time counts as theirs. Connections are made and used once before the first window, and reset after
the last one, so that none stays in TIME_WAIT.
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
from waits import LOADS, PROGRAMS

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLUMNS = ("load", "program", "connections", "bytes", "rate", "round", "total", "cpu_us",
           "client_us", "daemon_us", "mean_us", "p50_us", "p99_us", "max_us", "rps", "foreign",
           "noisy")
WARM_SECONDS = 0.15
SESSION_SECONDS_MAX = 180  # after which a client is ended, whatever it waits for
DESCRIPTORS = 20000  # of a program: twice the connections, for lighttpd
REFUSED = 2  # the exit status of who does not know an option
STATS = "uselect: "  # so the preload's line begins
AWAKE = "kill -STOP $$; while :; do :; done"
CASE = "R2"  # for run-case: in the windows the origin sees nothing


class LeftOut(Exception):
    """Why there is no such curve."""


class Bench:
    """The origin, the files that lighttpd has, and where each program listens."""

    def __init__(self, rc, figure, arguments):
        self.rc, self.figure = rc, figure
        self.seconds = arguments.secs
        self.origin_port = rc.PORT0
        self.socket = f"{rc.WORK}/uselectd.sock"
        built = os.path.dirname(os.path.abspath(os.environ.get("MILLRACE", "millrace")))
        self.uselect = os.environ.get("USELECT", built + "/uselect")
        self.uselectd = os.environ.get("USELECTD", built + "/uselectd")
        self.bases = {name: self.origin_port + 100 * number
                      for number, name in enumerate(PROGRAMS, 1)}
        self.said = {}  # what a program said last, of those that tell how they waited

    def prepare(self):
        # It begins stopped, and goes on in the windows that want it.
        self.awake = self.rc.Proc("awake", ["chrt", "--idle", "0", "sh", "-c", AWAKE])
        self.origin = self.rc.Proc("origin", [self.rc.BIN + "/pborigin", str(self.origin_port)])
        if not self.rc.wait_port(self.origin_port):
            raise SystemExit(f"figure: the origin does not start; see {self.rc.WORK}/origin.log")
        for size in self.figure.sizes:
            url = f"http://127.0.0.1:{self.origin_port}/n/{size}"
            with open(f"{self.rc.FILES}/c/{size}", "wb") as file:
                file.write(urllib.request.urlopen(url).read())

    def stop(self):
        os.kill(self.awake.p.pid, signal.SIGCONT)
        self.awake.stop()
        self.origin.stop()

    def spec(self, name, size, count):
        """The requests for run-case."""
        return {"off": PROGRAMS[name].offset, "path": f"/c/{size}", "bytes": size,
                "conns": count, "flags": ["-R"]}

    def check(self, name):
        """Whether there can be such a curve, and that its answers are right, byte by byte."""
        program = PROGRAMS[name]
        if program.file in VERSIONS and not shutil.which(program.file):
            raise LeftOut(f"there is no {program.file}")
        if program.tracked and not os.access(self.uselectd, os.X_OK):
            raise LeftOut("there is no uselectd beside millrace, nor in $USELECTD")
        if program.preloaded and not os.access(self.uselect, os.X_OK):
            raise LeftOut("there is no uselect beside millrace, nor in $USELECT")
        with self.started(name):
            for size in self.figure.sizes:
                self.rc.verify(CASE, name, self.spec(name, size, 16) | {"verified": 200},
                               self.bases[name])

    @contextlib.contextmanager
    def started(self, name):
        """The program and, if it is tracked, uselectd; gives both, ready, with the answers cached.

        What the program says at its end is kept.
        """
        program = PROGRAMS[name]
        run = f"{self.rc.WORK}/run-{name}"
        shutil.rmtree(run, ignore_errors=True)
        os.makedirs(run)
        env = self.rc.peer_env(run, self.bases[name]) | dict(program.settings)
        env["USELECT_SOCKET"] = self.socket
        if program.preloaded:
            words = [self.uselect, "run", "--stats", "--socket", self.socket, "--"]
            env["PB_PRELOAD"] = " ".join(words)
        with contextlib.ExitStack() as at_end:
            daemon = self.started_daemon(at_end) if program.tracked else None
            with contextlib.suppress(FileNotFoundError):
                os.remove(f"{self.rc.WORK}/{name}.log")
            process = self.rc.Proc(name, [f"{HERE}/start/{program.file}"], env=env)
            at_end.callback(self.listen, name)
            at_end.callback(process.stop)
            self.wait(name, process)
            process.pin(0)
            for _ in range(2):
                for size in self.figure.sizes:
                    self.rc.fetch(self.spec(name, size, 1), self.bases[name])
            yield process, daemon

    def started_daemon(self, at_end):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.socket)
        daemon = self.rc.Proc("uselectd", [self.uselectd, "--socket", self.socket])
        at_end.callback(daemon.stop)
        end = time.monotonic() + 10
        while time.monotonic() < end and daemon.p.poll() is None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.socket)
                return daemon
            time.sleep(0.02)
        raise SystemExit(f"figure: uselectd does not start; see {self.rc.WORK}/uselectd.log")

    def wait(self, name, process):
        """Until the program listens."""
        port = self.bases[name] + PROGRAMS[name].offset
        end = time.monotonic() + 10
        while time.monotonic() < end and process.p.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            time.sleep(0.02)
        if PROGRAMS[name].new and process.p.poll() == REFUSED:
            raise LeftOut(f"millrace refuses it: {self.last_line(name)}")
        raise SystemExit(f"figure: {name} does not start; see {self.rc.WORK}/{name}.log")

    def last_line(self, name, start=""):
        """The last line of a log that begins so, or nothing."""
        with open(f"{self.rc.WORK}/{name}.log", errors="replace") as file:
            lines = [line for line in file.read().splitlines() if line.startswith(start)]
        return lines[-1] if lines else ""

    def listen(self, name):
        """Keeps what the preload tells of its waits when the program ends."""
        if PROGRAMS[name].preloaded:
            self.said[name] = self.last_line(name, STATS) or "nothing said: a signal ended it"

    @contextlib.contextmanager
    def awaking(self, load):
        """Keeps the core from halting, if the load wants that."""
        pid = self.awake.p.pid
        if load.awake:
            os.kill(pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGSTOP)

    def loads(self, name, count):
        """The windows of a program at so many connections."""
        return [(load, size) for load in self.figure.loads for size in self.figure.sizes
                if PROGRAMS[name].takes(load) and LOADS[load].active <= count]

    def session(self, name, count):
        """All windows of a program over the same connections."""
        self.rc.LK.take()
        with self.started(name) as (process, daemon):
            spec = self.spec(name, self.figure.sizes[0], count)
            words = ["-c", str(count), "-E", "-S"]
            client = self.rc.started_load(
                ["taskset", "-c", "0", *self.rc.loader(spec, self.bases[name], *words)])
            guard = threading.Timer(SESSION_SECONDS_MAX, client.kill)
            guard.start()
            try:
                session = Session(self, name, count, client, process, daemon)
                rows = [session.window(load, size) for load, size in self.loads(name, count)]
                # The end of its input is the end of the client, which resets the connections.
                client.stdin.close()
                client.wait()
                return rows
            finally:
                guard.cancel()
                client.kill()
                client.wait()


class Session:
    """A client that holds its connections to a program."""

    def __init__(self, bench, name, count, client, process, daemon):
        self.bench, self.rc, self.name, self.count = bench, bench.rc, name, count
        self.client, self.process, self.daemon = client, process, daemon

    def window(self, name, size):
        """One window: its row. A disturbed one is made again."""
        load = LOADS[name]
        for _ in range(self.rc.TRIES):
            row = self.measured(load, size)
            if row["foreign"] <= self.rc.MAXFOREIGN:
                break
        row.update(load=name, program=self.name, connections=self.count, bytes=size,
                   rate=load.rate, noisy=int(row["foreign"] > self.rc.MAXFOREIGN))
        return {key: f"{row[key]:.4f}" if isinstance(row[key], float) else row[key]
                for key in COLUMNS if key in row}

    def measured(self, load, size):
        with self.bench.awaking(load):
            self.phase(load, size, WARM_SECONDS)
            seen, before = self.rc.origin_seen(), self.clocks()
            done = self.phase(load, size, max(self.bench.seconds, load.seconds))
            after = self.clocks()
        wall, idle, beside, own, daemon = (new - old for new, old in zip(after, before))
        self.rc.check_seen(CASE, self.name, done, seen, self.rc.origin_seen())
        self.rc.check_kept(CASE, self.name, done, self.count)
        if done["errors"]:
            raise self.rc.Wrong(f"{self.name} at {self.count} connections: {done}")
        busy, client = own + daemon, done["client_cpu_s"]
        foreign = wall - idle - busy - (0 if load.is_apart() else client)
        if load.is_apart():
            foreign = max(foreign, wall - beside - client)
        each = 1e6 / max(1, done["total"])
        return done | {"cpu_us": busy * each, "daemon_us": daemon * each,
                       "client_us": client * each, "foreign": foreign / wall}

    def phase(self, load, size, seconds):
        """Has the client make requests for so long; what it counts."""
        said = self.client.stderr.readline()
        if "warm" not in said:
            raise SystemExit(f"figure: {self.name}: {said}{self.client.stderr.read()}")
        os.sched_setaffinity(self.client.pid, {1 if load.is_apart() else 0})
        self.client.stdin.write(f"{load.rate} {seconds} {load.active} {size} {int(load.spins)}\n")
        self.client.stdin.flush()
        return json.loads(self.client.stdout.readline())

    def clocks(self):
        """Seconds: now, when each core had nothing to do, of the program and of uselectd."""
        idle, daemon = self.rc.cpustat(), self.daemon.cpu() if self.daemon else 0
        awake = self.bench.awake.cpu()  # on the first core
        return time.monotonic(), idle[0] + awake, idle.get(1, 0), self.process.cpu(), daemon


def measure(rc, figure, arguments):
    """(every window of a figure, what the head of the CSV says of it)."""
    raise_limit()
    names = arguments.programs.split(",") if arguments.programs else list(PROGRAMS)
    bench, notes, rows = Bench(rc, figure, arguments), {}, []
    try:
        bench.prepare()
        there = [name for name in names if can(bench, name, notes)]
        for number in range(arguments.reps):
            for count in figure.connections:
                able = [name for name in there if count <= PROGRAMS[name].most]
                for name in able[:: 1 if number % 2 == 0 else -1]:
                    rows += [row | {"round": number} for row in bench.session(name, count)]
            print(f"figure: round {number + 1} of {arguments.reps}", file=sys.stderr, flush=True)
    finally:
        rc.LK.close()
        bench.stop()
    files = dict.fromkeys(PROGRAMS[name].file for name in there)
    peers = [f"{file} {version(file)}" for file in files if file in VERSIONS]
    notes["peers"] = ", ".join(peers) or "no peers"
    return rows, notes | {f"waits of {name}": text for name, text in bench.said.items()}


def can(bench, name, notes):
    """Whether there can be such a curve; if not, why is noted."""
    try:
        bench.check(name)
    except LeftOut as reason:
        notes[f"left out {name}"] = re.sub(r"\s+", " ", str(reason))
        print(f"figure: without {name}: {reason}", file=sys.stderr, flush=True)
        return False
    return True


def raise_limit():
    """Descriptors enough for every program; what the driver starts has its limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < DESCRIPTORS:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        except ValueError:
            raise SystemExit(f"figure: programs need {DESCRIPTORS} descriptors, and {hard} are "
                             "allowed: ulimit -Hn") from None
