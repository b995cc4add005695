"""The relay of scripts/in-kernel-trial, built and started, and transfers through it."""

import json
import pathlib
import random
import subprocess
import time

from proxied import Client, Transfer
from started import Process
from verdict import Verdict

SOURCE = pathlib.Path(__file__).resolve().parent / "relay.c"
PORT = 3129
# The application inverts the bits of all bytes beyond the limit.
_TURNED = bytes(255 - byte for byte in range(256))


def build(folder):
    program = folder / "relay"
    words = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE]
    subprocess.run(words, check=True)
    return program


class Relay:
    """A running relay in this thread's namespace. `target` is a host and a port; `kind` is kernel,
    copy or splice; `mark` is in bytes; `before` is a command prefix."""

    def __init__(self, program, kind, target, is_limited, mark, before=(), keeps_overlaps=False):
        words = [*before, program, kind, PORT, *target, int(is_limited)]
        how = {}
        if kind == "kernel":
            verdict = Verdict(keeps_overlaps)
            words += [*verdict.fds, mark]
            how["pass_fds"] = verdict.fds
        self.process = Process(*words, stream="stdout", **how)
        self.process.wait_for("listening")
        if kind == "kernel":
            verdict.close()
        self.pid = self.process.process.pid
        self.open_at_start = self._open()

    def _open(self):
        return len(list(pathlib.Path(f"/proc/{self.pid}/fd").iterdir()))

    def stop(self, seconds):
        """Waits until all connections are closed, at most `seconds`. Ends the relay and returns its
        counts."""
        end = time.monotonic() + seconds
        while self._open() > self.open_at_start and time.monotonic() < end:
            time.sleep(0.1)
        self.process.process.terminate()
        status, lines = self.process.rest(20)
        if status != 0:
            raise RuntimeError(f"the relay ended with {status}")
        return json.loads(lines[-1][1])


class Relayed(Transfer):
    """A transfer both ways. In half of the transfers, the relay inverts the bytes from the client
    beyond a limit."""

    def __init__(self, seed, number):
        super().__init__(seed, number, kinds=("tunnel",))
        dice = random.Random(f"limit {seed} {number}")
        self.limit = dice.randrange(self.up + 1) if dice.random() < 0.5 else None

    def __str__(self):
        limit = "" if self.limit is None else f", limit {self.limit}"
        return super().__str__() + limit

    def kind_name(self):
        limit = "no limit" if self.limit is None else "limit"
        return f"{limit}, cut by the {self.cut_by}" if self.cut_by else limit

    def relayed(self, is_up, start, end):
        if not is_up or self.limit is None or end <= self.limit:
            return self.noise(is_up, start, end)
        middle = max(start, self.limit)
        turned = bytes(self.noise(is_up, middle, end)).translate(_TURNED)
        return bytes(self.noise(is_up, start, middle)) + turned


class Peer(Client):
    """A client of the relay. It first sends the limit, and then the number of the transfer."""

    def __init__(self, host, hang_seconds, may_miss_cuts):
        super().__init__((host, PORT), None, hang_seconds, may_miss_cuts)

    def _exchange(self, wire, transfer):
        line = f"TUNNEL {transfer.number}\r\n".encode()
        limit = (1 << 63) if transfer.limit is None else len(line) + transfer.limit
        wire.peer.sendall(limit.to_bytes(8, "little") + line)
        wire.exchange()
        return False
