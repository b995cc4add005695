"""A running millrace, started by its command line."""

import os
import re
import resource
import signal
import subprocess
import threading

from . import PROJECT

READY = re.compile(r"^millrace: listening on (\S+)$")
START_SECONDS_MAX = 30
STOP_SECONDS_MAX = 60


def program():
    """Returns the path of the program under test: MILLRACE, or the build of this tree."""
    target = os.environ.get("CARGO_TARGET_DIR") or PROJECT / "target"
    path = os.environ.get("MILLRACE") or os.path.join(target, "debug", "millrace")
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path}: build it (cargo build -p millrace) or set MILLRACE")
    return path


class Millrace:
    """One running millrace. `address` is the (host, port) of its first TCP listener. `before` is
    called in the child before exec. `binary` replaces the program under test."""

    def __init__(self, *arguments, descriptors_max=None, before=None, binary=None):
        self.lines = []
        self._ready = threading.Event()
        self.addresses = []

        def limit():
            if descriptors_max:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
            if before:
                before()

        is_free = "ENGINE" in os.environ and "--engine" not in arguments
        engine = ["--engine", os.environ["ENGINE"]] if is_free else []
        self.process = subprocess.Popen(
            [str(binary or program()), *map(str, arguments), *engine],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=limit,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_SECONDS_MAX) or not self.addresses:
            self.kill()
            raise RuntimeError(f"millrace {arguments} does not listen: {self.lines}")

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = READY.match(self.lines[-1])
            if found:
                self.addresses.append(found[1])
                self._ready.set()
        self._ready.set()

    @property
    def address(self):
        host, _, port = self.addresses[0].rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def url(self):
        return f"http://{self.addresses[0]}"

    def rss_bytes(self):
        """Returns the resident memory from smaps_rollup, which is exact; VmRSS lags by a batch per
        thread."""
        with open(f"/proc/{self.process.pid}/smaps_rollup") as rollup:
            return next(int(line.split()[1]) for line in rollup if line.startswith("Rss:")) * 1024

    def descriptors(self):
        """Returns the number of open descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def pause(self):
        """Stops all threads until `resume`."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def resume(self):
        """Continues all threads."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self):
        """Sends SIGTERM, which drains and ends the process, and does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        """Waits for the end of the process and returns its exit status."""
        status = self.process.wait(STOP_SECONDS_MAX)
        self._reader.join(STOP_SECONDS_MAX)
        self.process.stderr.close()
        return status

    def stop(self):
        """Ends the process by SIGTERM and returns its exit status."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self):
        """Kills the process."""
        self.process.kill()
        self.process.wait()
