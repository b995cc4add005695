"""Locks that keep two measurements on one machine apart."""
import fcntl
import sys
import time

from runner.settings import HOLD, LOCK


def wait_for(file):
    """Locks an open file. If another program holds the lock, prints that before waiting."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for {file.name}", file=sys.stderr, flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)


class BenchLock:
    """The lock that is held during each timed window.

    It stays held between windows. A window that begins more than HOLD seconds later takes it anew.
    """

    def __init__(self):
        self.file = None
        self.since = 0

    def take(self):
        if self.file and time.time() - self.since > HOLD:
            self.close()
        if not self.file:
            self.file = open(LOCK, "w")
            wait_for(self.file)
            self.since = time.time()
        return self

    def close(self):
        if self.file:
            self.file.close()
            self.file = None


BENCH_LOCK = BenchLock()
