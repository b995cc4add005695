"""Measures the figures about splicing: misses and tunnels, by size or by rate.

The proxy, the origin and the client share core 0, as in the mode fixed-rate-1core of run-case, at a
rate far below what they can do. In closed-loop-1core requests come in batches, so that only CPU
time by size is meaningful. The programs of a point are measured in turn, in reverse order every
other round. A window during which other programs used the core is repeated. Before the windows,
each program serves some requests of each point whose every byte is compared, and its cache is
filled, so that each cacheable miss evicts something older. In each window the origin must see
exactly the client's requests. Over TLS each byte is compared instead, and the client counts the
responses.
"""
import os
import shutil
import sys
import time

from figures import MIB, VARIANTS, Load, programs
from runner import cases, checks, settings
from runner.client import fetch, load_command, origin_requests
from runner.lock import BENCH_LOCK
from runner.process import Process, available_memory, is_listening
from runner.settings import BIN, CERT, KEY, PEERS, PORT, TLS_PORT, WORK
from runner.windows import Bench, measure as measure_window

COLUMNS = ("kind", "program", "bytes", "rate", "round", "total", "cpu_us", "cpu_share", "mean_us",
           "p50_us", "p99_us", "max_us", "rps", "origin_us", "client_us", "foreign", "noisy")
CHECKED_BYTES = 16 * MIB  # of each point and program, before the windows
FILL = 2560  # responses of 1 MiB: more than the cache of start/millrace-misses can hold


class Programs:
    """The origins, and the programs that are compared, each at ports of its own."""

    def __init__(self, engine, chosen):
        self.options = settings.Options()
        self.chosen, self.bases, self.started, self.proxies = chosen, {}, [], {}
        self.origin = self.start("origin", [BIN + "/pborigin", str(PORT)])
        self.tls = self.start("tls", [BIN + "/pbtls-floor", str(TLS_PORT), CERT, KEY])
        for number, (name, (file, options)) in enumerate(chosen.items(), 1):
            self.bases[name] = PORT + 100 * number
            run = f"{WORK}/run-{name}"
            shutil.rmtree(run, ignore_errors=True)
            os.makedirs(run)
            env = settings.peer_env(run, self.bases[name])
            env.update(ENGINE=engine, MILLRACE_OPTS=options)
            self.proxies[name] = self.start(name, [f"{PEERS}/start/{file}"], env)

    def start(self, name, words, env=None):
        process = Process(name, words, env=env, core=0)
        self.started.append(process)
        return process

    def stop(self):
        for process in self.started:
            process.stop()

    def wait(self):
        """Waits until all programs listen."""
        ports = {"origin": PORT, "tls": TLS_PORT}
        ports.update((name, base + 5) for name, base in self.bases.items())
        for name, port in ports.items():
            if not is_listening(port):
                raise SystemExit(f"figure: {name} does not start; see {WORK}/{name}.log")

    def can_serve(self, load, name):
        service = "tunnel" if load.kind in ("connect", "tls") else "forward"
        return service in cases.services(self.chosen[name][0])

    def spec(self, load, name):
        """Returns the requests of a load."""
        path = f"/{'c' if load.kind == 'cacheable' else 'n'}/{load.bytes}"
        spec = cases.Spec(5, path, bytes=load.bytes, rate=load.rate,
                          connections=load.connections())
        if load.kind == "tls":
            # One request at a time: a tunnel, a full handshake, a response and the end.
            spec.tls, spec.tunnel, spec.closes = "h1", f"127.0.0.1:{TLS_PORT}", True
            spec.client = load_command(spec, self.bases[name], "-c", "1", "-V", "-S")
        elif load.kind == "connect":
            spec.tunnel, spec.closes = cases.ORIGIN, True
        else:
            spec.absolute, spec.flags = cases.ORIGIN, ["-U"]
        return spec

    def prepare(self, loads):
        """Compares bytes, and fills the caches where cacheable misses are measured."""
        caching = [name for name in self.bases if name in VARIANTS]
        has_fill = any(load.kind == "cacheable" for load in loads)
        if has_fill and available_memory() < FILL * 1024 * len(caching):
            raise SystemExit(f"figure: {len(caching)} caches of {FILL} MiB need more memory")
        for name, base in self.bases.items():
            if has_fill and name in caching:
                spec = self.spec(Load("cacheable", MIB, 1), name)
                spec.checked = FILL
                checks.verify("fill", name, spec, base)
            for load in loads:
                if load.kind == "tls" or not self.can_serve(load, name):
                    continue  # pbtls-load compares every byte in the windows too
                spec = self.spec(load, name)
                spec.checked = max(2, min(200, CHECKED_BYTES // load.bytes))
                checks.verify(load.kind, name, spec, base)
                if load.kind == "cacheable" and name in caching:
                    self.check_stored(spec, name)

    def check_stored(self, spec, name):
        """Raises unless the second request for a URL is served from the cache."""
        spec.path += f"?id={time.time_ns()}"
        before = origin_requests()[0]
        for _ in range(2):
            fetch(spec, self.bases[name])
            time.sleep(0.1)
        seen = origin_requests()[0] - before
        if seen != 1:
            raise SystemExit(f"figure: {name} did not store {spec.path}: the origin saw {seen} "
                             "requests")

    def window(self, load, name, seconds, mode):
        """Makes one window and returns its row; its rate is 0 in a closed loop."""
        spec = self.spec(load, name)
        spec.seconds = load.seconds(seconds)
        origin = self.tls if load.kind == "tls" else self.origin
        bench = Bench(load.kind, name, spec, self.bases[name], self.proxies[name], origin,
                      self.options)
        for _ in range(self.options.tries):
            found = measure_window(bench, mode)
            if found["foreign0"] <= self.options.maxforeign:
                break
        row = {key: found[key] for key in COLUMNS if key in found}
        rate = load.rate if mode == "fixed-rate-1core" else 0
        row.update(kind=load.kind, program=name, bytes=load.bytes, rate=rate)
        row.update(cpu_us=found["proxy_us"], cpu_share=100 * found["proxy_util"])
        row.update(foreign=found["foreign0"],
                   noisy=int(found["foreign0"] > self.options.maxforeign))
        return {key: f"{value:.4f}" if isinstance(value, float) else value
                for key, value in row.items()}


def measure(figure, loads, arguments):
    """Makes every window of a figure's curves and returns the rows."""
    chosen = programs(figure.engine)
    if arguments.programs:
        chosen = {name: chosen[name] for name in arguments.programs.split(",")}
    bench = Programs(figure.engine, chosen)
    try:
        bench.wait()
        bench.prepare(loads)
        rows = []
        for number in range(arguments.reps):
            for load in loads:
                able = [name for name in chosen if bench.can_serve(load, name)]
                for name in able[:: 1 if number % 2 == 0 else -1]:
                    row = bench.window(load, name, arguments.secs, arguments.mode)
                    rows.append(row | {"round": number})
            print(f"figure: round {number + 1} of {arguments.reps}", file=sys.stderr, flush=True)
        return rows
    finally:
        BENCH_LOCK.close()
        bench.stop()
