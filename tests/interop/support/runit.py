"""runsv(8) of runit, which supervises the program with the run script of examples/runit."""

import os
import shlex
import signal
import subprocess
import threading
import time

from . import PROJECT
from .sockets import passing_on

COMMAND = "/usr/bin/millrace run /etc/millrace/millrace.toml"
TIMEOUT_SECONDS = 60


class Service:
    """runsv, and the millrace that it keeps running with the configuration `file`. runsv holds the
    sockets `passed`, as a service manager does, and passes them to each process that it starts.

    `lines` has the output of all these processes."""

    def __init__(self, folder, program, file, passed=()):
        self.folder, self.lines = folder, []
        folder.mkdir()
        script = (PROJECT / "examples" / "runit" / "run").read_text()
        assert script.count(COMMAND) == 1, "the example has changed"
        script = script.replace(COMMAND, shlex.join((str(program), "run", str(file))))
        if passed:
            variables = f"export LISTEN_FDS={len(passed)} LISTEN_PID=$$\n"
            script = script.replace("\nexec ", f"\n{variables}exec ")
        (folder / "run").write_text(script)
        (folder / "run").chmod(0o755)

        self.process = subprocess.Popen(
            ["runsv", str(folder)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", close_fds=not passed,
            preexec_fn=passing_on(passed),
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def pid(self):
        """Returns the process id of millrace, or of the run script before it executes millrace."""
        return int((self.folder / "supervise" / "pid").read_text())

    def starts(self):
        """Returns how many processes have reported that they serve."""
        return sum(line.startswith("millrace: engine ") for line in self.lines)

    def wait_for_start(self, number):
        """Waits until `number` processes have reported that they serve."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.starts() < number:
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"runsv does not get it to serve: {self.lines[-10:]}")
            time.sleep(0.001)

    def kill(self):
        """Kills millrace by SIGKILL."""
        os.kill(self.pid(), signal.SIGKILL)

    def stop(self):
        """Ends runsv, which ends millrace by SIGTERM first. Returns the status of runsv."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            status = self.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.kill()
            raise
        self.reader.join(TIMEOUT_SECONDS)
        self.process.stdout.close()
        return status
