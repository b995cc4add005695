"""Measures the CPU cost of forwarding by size on the loopback interface. The relay, and the load
and origin of peers/tools, run on one core, together with the kernel's threads."""

import json
import pathlib
import socket
import statistics
import subprocess
import time

from relayed import PORT, Relay
from started import PROJECT, Process, free_address

CORE = "0"
SIZES = (4, 8, 16, 32, 64, 128, 1024)
KINDS = ("copy", "splice", "kernel")
CONNECTIONS = 8


def cpu_ns(pid):
    """Returns the CPU time of a process or a kernel thread."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def kernel_threads():
    """Returns the kernel threads that do deferred work of this core."""
    found = []
    for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
        try:
            name = comm.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith((f"kworker/{CORE}:", f"ksoftirqd/{CORE}")):
            found.append(int(comm.parent.name))
    return found


def await_port(port):
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the origin does not listen")


class Bench:
    def __init__(self, relay_program, folder, mark):
        subprocess.run([PROJECT / "peers/tools/build.sh", folder], check=True)
        self.relay_program, self.folder, self.mark = relay_program, folder, mark

    def measure(self, kind, kib, seconds, is_short):
        """Returns microseconds per request: of the relay, of the kernel's threads, and of all
        processes. If `is_short` is true, each request has a new connection."""
        pin = ("taskset", "-c", CORE)
        port = free_address().partition(":")[2]
        origin = Process(*pin, self.folder / "pborigin", port, stream="stderr")
        relay = None
        try:
            await_port(int(port))
            relay = Relay(self.relay_program, kind, ("127.0.0.1", port), False, self.mark, pin)
            load = [*pin, self.folder / "pbload", "-p", str(PORT), "-u", f"/n/{kib << 10}"]
            load += ["-c", str(CONNECTIONS), "-d", str(seconds), *(["-k"] if is_short else [])]
            # One round warms up, so that starting is not counted.
            self._load([*load[:-2], "-d", "0.1"] if not is_short else load)
            threads = kernel_threads()
            before = self._used(threads, relay.pid, origin.process.pid)
            requests, load_us = self._load(load)
            used = [(after - then) / 1000 for after, then in
                    zip(self._used(threads, relay.pid, origin.process.pid), before)]
            return [each / requests for each in (used[1], used[0], sum(used) + load_us)]
        finally:
            if relay:
                relay.process.kill()
            origin.kill()

    def _used(self, threads, relay, origin):
        return sum(map(cpu_ns, threads)), cpu_ns(relay), cpu_ns(origin)

    def _load(self, words):
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        output = json.loads(output)
        if output["errors"] or not output["total"]:
            raise RuntimeError(f"the load: {output}")
        return output["total"], output["client_cpu_s"] * 1e6


def curve(relay_program, folder, mark, reps, seconds):
    """Prints tables with the medians of interleaved rounds."""
    bench = Bench(relay_program, folder, mark)
    for is_short in (False, True):
        found = {}
        for _ in range(reps):
            for kib in SIZES:
                for kind in KINDS:
                    words = bench.measure(kind, kib, seconds, is_short)
                    found.setdefault((kind, kib), []).append(words)
        connections = "a connection per request" if is_short else "persistent connections"
        print(f"\n{connections}: us a request, "
              f"medians of {reps}; relay / kernel's threads / all with load and origin")
        print("| KiB | " + " | ".join(KINDS) + " |\n| ---: |" + " ---: |" * len(KINDS))
        for kib in SIZES:
            cells = []
            for kind in KINDS:
                columns = zip(*found[kind, kib])
                cells.append(" / ".join(f"{statistics.median(each):.1f}" for each in columns))
            print(f"| {kib} | " + " | ".join(cells) + " |", flush=True)
