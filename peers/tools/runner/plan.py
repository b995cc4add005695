"""Which cases are measured with which peers and modes, and the order of the windows."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import names
from runner import cases, checks, lock, programs, report
from runner.client import Failed, Wrong, origin_requests, write_files
from runner.process import Process, is_listening
from runner.settings import (BIN, CERT, COLD, FILES, KEY, PEERS, PORT, SCRIPTS, SIZES, TLS_PORT,
                             WORK, peer_env, prepare)
from runner.windows import Bench, commands, has_two_cores, many_command, measure, measure_many

CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"


@dataclass
class Entry:
    """One case of the command line with its own modes and peers."""

    case: str
    modes: list
    peers: list


def parse(text, peers, modes):
    """Returns the entries of CASE[/MODE+MODE][@PEER+PEER],... ; the rest has default values. Exits
    if a mode or a peer is unknown, or if none of the peers serves a case."""
    known_modes = list(names.MODES.values())
    check_known("peer", peers, [it for it in sorted(os.listdir(PEERS + "/start")) if it[0] != "_"])
    entries = []
    for word in text.split(","):
        found = re.fullmatch(r"([\w-]+)(?:/([\w+-]+))?(?:@([\w+-]+))?", word)
        if not found:
            raise SystemExit(f'run-case: invalid case "{word}" (expected: '
                             "CASE[/MODE+MODE][@PEER+PEER])")
        case = names.case(found[1])
        chosen = found[2].split("+") if found[2] else modes or cases.default_modes(case)
        entry = Entry(case, [names.mode(mode) for mode in chosen],
                      found[3].split("+") if found[3] else peers)
        check_known("mode", entry.modes, known_modes)
        check_known("peer", entry.peers, peers)
        if not any(cases.spec(case, peer) for peer in entry.peers):
            raise SystemExit(f'run-case: no peer serves the case "{found[1]}" (expected: a case of '
                             f"run-case --help that {', '.join(entry.peers)} can serve)")
        entries.append(entry)
    return entries


def needs_tls(entries):
    """Returns whether a case of the entries is over TLS."""
    return any(entry.case.startswith("tls-") for entry in entries)


def programs_of(entries):
    """Returns {(peer, kind): None} of the programs behind the peers that the entries need."""
    found = {}
    for entry in entries:
        for peer in entry.peers:
            spec = cases.spec(entry.case, peer)
            if spec and spec.program:
                found[peer, spec.program] = None
    return found


def check_known(what, words, known):
    """Exits if one of the words is not known."""
    for word in words:
        if word not in known:
            raise SystemExit(f'run-case: unknown {what} "{word}" (expected: {", ".join(known)})')


def print_commands(entries, peers, options):
    """Prints the client's command of each window instead of making it."""
    for entry in entries:
        for mode in entry.modes:
            for peer in entry.peers:
                spec = cases.spec(entry.case, peer, options.idle)
                base = PORT + 100 * (peers.index(peer) + 1)
                if not spec:
                    command = ["not served"]
                elif entry.case.startswith("many-connections-"):
                    command = many_command(spec, base, options)
                else:
                    command = commands(spec, base, mode, options)
                print(entry.case, mode, peer, *command)


class congestion_control:
    """Sets the TCP congestion control of all programs and restores it afterwards.

    The kernel's default is cubic. With bbr, which paces, a request costs 1.4 to 5 times the CPU
    time on the loopback interface.
    """

    def __init__(self, name):
        self.name = name
        with open(CONGESTION) as file:
            self.before = file.read().strip()

    def set(self, name):
        if self.name != self.before:
            with open(CONGESTION, "w") as file:
                file.write(name)

    def __enter__(self):
        self.set(self.name)

    def __exit__(self, *_):
        self.set(self.before)


class Run:
    """The origin and all peers of one run, and the result lines so far."""

    def __init__(self, entries, peers, options):
        self.entries, self.peers, self.options = entries, peers, options
        self.bases = {peer: PORT + 100 * number for number, peer in enumerate(peers, 1)}
        self.processes = {}
        self.programs = {}  # {(peer, kind): program behind it}
        self.specs = {}  # {(case, peer): spec} of those that passed the checks
        self.rows = []
        self.has_failed = False

    def start(self):
        """Starts the origin and the programs, writes the files and starts the peers."""
        self.processes["origin"] = Process("origin", [BIN + "/pborigin", str(PORT)], core=1)
        if not is_listening(PORT):
            raise SystemExit(f"run-case: the origin does not start; see {WORK}/origin.log")
        tls = needs_tls(self.entries)
        if tls:
            self.processes["tls-origin"] = Process(
                "tls-origin", [BIN + "/pbtls-floor", str(TLS_PORT), CERT, KEY], core=1)
            if not is_listening(TLS_PORT):
                raise SystemExit(f"run-case: the origin over TLS does not start; see "
                                 f"{WORK}/tls-origin.log")
        self.write_files()
        for peer, kind in programs_of(self.entries):
            program = programs.KINDS[kind](peer, self.options.conns)
            self.programs[peer, kind] = program
            self.processes[f"{peer}-{kind}"] = program.process
        for peer in self.peers:
            self.start_peer(peer)

    def write_files(self):
        """Writes the files that the entries need."""
        write_files()
        names_used = [entry.case for entry in self.entries]
        if any(case.startswith("static-file-surge") for case in names_used):
            subprocess.check_call([BIN + "/pbfiles", "surge", FILES + "/c"])
        if cases.COLD_CASE in names_used:
            os.makedirs(COLD, exist_ok=True)
            subprocess.check_call([BIN + "/pbfiles", "write", COLD + "/f", str(cases.COLD_FILES),
                                   str(SIZES["64k"])])
            if self.cached_pages():
                raise SystemExit(f"run-case: {COLD} stays in memory (expected: a folder on a disk, "
                                 "see PB_DISK)")
        if any(case.startswith("fastcgi-php-") for case in names_used):
            programs.write_script()

    def cached_pages(self):
        """Drops the files of COLD_CASE from the page cache. Returns the pages that stay there."""
        command = [BIN + "/pbfiles", "drop", COLD + "/f", str(cases.COLD_FILES)]
        return int(subprocess.check_output(command))

    def start_peer(self, peer):
        folder = f"{WORK}/run-{peer}"
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        more = {"PB_SCRIPTS": SCRIPTS}
        for kind, name in (("echo", "PB_ECHO"), ("php", "PB_PHP"), ("copy-free", "PB_PROGRAM")):
            if (peer, kind) in self.programs:
                more[name] = self.programs[peer, kind].address
        if any(entry.case == cases.COLD_CASE for entry in self.entries):
            more["PB_COLD"] = COLD
        if self.options.client_network:
            more["PB_HOST"] = "0.0.0.0"
        env = peer_env(folder, self.bases[peer], needs_tls(self.entries), **more)
        self.processes[peer] = Process(peer, [f"{PEERS}/start/{peer}"], env=env)

    def stop(self):
        for process in self.processes.values():
            process.stop()

    def check(self):
        """Checks each peer in each of its cases. One that fails is left out of the case."""
        pairs = {(entry.case, peer): None for case in dict.fromkeys(e.case for e in self.entries)
                 for entry in self.entries if entry.case == case for peer in entry.peers}
        failures = []
        for case, peer in pairs:
            spec = cases.spec(case, peer, self.options.idle)
            if not spec:
                continue
            try:
                self.check_peer(case, peer, spec)
                self.specs[case, peer] = spec
            except (Failed, Wrong) as error:
                self.has_failed = True
                failures.append({"case": case, "peer": peer, "mode": "check", "rep": 0,
                                 "failed": str(error)[:300]})
                print("FAILED", error, flush=True)
        print("responses checked:", *(f"{case}/{peer}" for case, peer in self.specs), flush=True)
        return failures

    def check_peer(self, case, peer, spec):
        """Waits until a peer listens and checks its responses, which also warms it up."""
        self.wait_for_peer(peer, spec)
        checks.check(case, peer, spec, self.bases[peer], self.options, self.count_of(peer, spec))

    def wait_for_peer(self, peer, spec):
        """Waits until a peer listens."""
        if not is_listening(self.bases[peer] + spec.offset):
            raise SystemExit(f"run-case: {peer} does not listen on port +{spec.offset}; see "
                             f"{WORK}/{peer}.log")
        time.sleep(0.05)

    def count_of(self, peer, spec):
        """Returns the function that returns the requests which the origin has served."""
        if spec.program:
            return self.programs[peer, spec.program].requests
        return lambda: origin_requests(spec.tls_origin)

    def restart(self, case, peer, spec):
        """Starts a peer anew before a window. Then neither it nor the kernel has any cold file."""
        self.processes[peer].stop()
        self.start_peer(peer)
        if not spec.files:
            self.check_peer(case, peer, spec)
            return
        self.wait_for_peer(peer, spec)
        cached = self.cached_pages()
        if cached:
            raise Failed(f"{peer} {case}: {cached} pages of the files are still cached")

    def measure(self, out):
        """Makes all windows, round after round; every other round in reverse order of peers."""
        # Again, as some peers set their own affinity while they start.
        for peer in self.peers:
            self.processes[peer].pin({0})
        for entry in self.entries:
            able = [peer for peer in entry.peers if (entry.case, peer) in self.specs]
            for number in range(self.options.reps):
                for mode in entry.modes:
                    for peer in able[:: 1 if number % 2 == 0 else -1]:
                        self.window(out, entry.case, mode, peer, number)

    def window(self, out, case, mode, peer, number):
        """Makes one window, again if it failed or was disturbed, and keeps its result lines."""
        spec = self.specs[case, peer]
        origin = self.processes[f"{peer}-{spec.program}" if spec.program else
                                "tls-origin" if spec.tls_origin else "origin"]
        failure = {"case": case, "peer": peer, "mode": mode, "rep": number}
        rows = []
        for attempt in range(1, self.options.tries + 1):
            try:
                if self.options.restart or spec.files:
                    self.restart(case, peer, spec)
                if spec.coding:
                    checks.wait_for_coding(case, peer, spec, self.bases[peer])
                bench = Bench(case, peer, spec, self.bases[peer], self.processes[peer], origin,
                              self.options, self.count_of(peer, spec))
                is_many = case.startswith("many-connections-")
                rows = measure_many(bench) if is_many else [measure(bench, mode)]
            except Wrong as error:
                print(f"FAILED {mode} {error}", flush=True)
                self.fail(out, failure | {"failed": str(error)})
                return
            except Exception as error:  # any error, so that the other peers are measured
                print(f"FAILED {case} {peer} {mode}: {str(error)[:300]}", flush=True)
                rows = []
                if attempt == self.options.tries:
                    self.fail(out, failure | {"failed": str(error)[:300]})
                continue
            if foreign(rows, mode) <= self.options.maxforeign:
                break
        for row in rows:
            row["rep"] = number
            row["noisy"] = foreign(rows, mode) > self.options.maxforeign
            self.rows.append(row)
            write_line(out, row)

    def fail(self, out, row):
        self.has_failed = True
        write_line(out, row)


def foreign(rows, mode):
    """Returns the greatest part of a measured core that other programs used."""
    cores = ("foreign0", "foreign1") if has_two_cores(mode) else ("foreign0",)
    return max(row[core] for row in rows for core in cores)


def write_line(out, row):
    out.write(json.dumps(row) + "\n")
    out.flush()


def execute(entries, peers, options, path):
    """Checks and measures all entries. Returns the exit status."""
    os.makedirs(WORK, exist_ok=True)
    # One run at a time: ports and cgroups are shared.
    alone = open(WORK + "/run-case.lock", "w")
    lock.wait_for(alone)
    kinds = [kind for _, kind in programs_of(entries)]
    prepare(needs_tls(entries), "echo" in kinds, "copy-free" in kinds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run = Run(entries, peers, options)
    try:
        with congestion_control(os.environ.get("PB_CC", "cubic")):
            try:
                run.start()
                failures = run.check()
                if options.reps == 0:
                    return int(run.has_failed)
                time.sleep(0.5)
                with open(path, "a") as out:
                    for row in failures:
                        write_line(out, row)
                    run.measure(out)
            finally:
                lock.BENCH_LOCK.close()
                run.stop()
    finally:
        alone.close()
    report.print_table(run.rows)
    return int(run.has_failed)
