"""What the scripts share that watch millrace under load: started programs, and an address."""

import pathlib
import queue
import socket
import subprocess
import threading
import time

PROJECT = pathlib.Path(__file__).resolve().parent.parent


def free_address():
    """One that nobody has now. The kernel's choice, port 0, would be another at each start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "%s:%d" % probe.getsockname()


class Process:
    """A started program; its lines come with the time at which they were read."""

    def __init__(self, *words, stream, **how):
        how[stream] = subprocess.PIPE
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, text=True, **how
        )
        self.lines, self.said = queue.Queue(), []
        self.reader = threading.Thread(target=self._read, args=(getattr(self.process, stream),))
        self.reader.daemon = True
        self.reader.start()

    def _read(self, pipe):
        for line in pipe:
            self.lines.put((time.time(), line.rstrip("\n")))
        self.lines.put((time.time(), None))

    def wait_for(self, part, seconds=60):
        """The time and text of the next line that holds `part`."""
        end = time.monotonic() + seconds
        while True:
            try:
                at, line = self.lines.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"nobody said {part!r}; last: {self.said[-5:]}") from None
            if line is None:
                raise SystemExit(f"ended before it said {part!r}; last: {self.said[-5:]}")
            self.said.append(line)
            if part in line:
                return at, line

    def rest(self, seconds):
        """Waits for the end; gives the status and the lines that were not read until now."""
        status = self.process.wait(seconds)
        self.reader.join(seconds)
        lines = []
        while not self.lines.empty():
            at, line = self.lines.get()
            if line is not None:
                lines.append((at, line))
                self.said.append(line)
        return status, lines

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
