"""The errors, messages and exit reports of `uselect run`."""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import unittest

from preloaded import BACKEND, LINE, PROGRAMS, SECONDS_MAX, PreloadCase

NOBODY = 65534
# A connection of the process with itself. Each wait() sends a byte over it and waits for that byte.
WAITS = """
import os, select, socket, sys
with socket.create_server(("127.0.0.1", 0)) as listener:
    one = socket.create_connection(listener.getsockname())
    other = listener.accept()[0]
poll = select.poll()
poll.register(other, select.POLLIN)

def wait():
    one.send(b"x")
    assert poll.poll(10_000), "no byte arrived"
    other.recv(1)
"""


class Absent(PreloadCase):
    """A named backend that is not available is an error before the program runs."""

    def run_refused(self, *options, programs=PROGRAMS, **kwargs):
        command = [programs / "uselect", "run", "--backend", "bpf", *options, "true"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, **kwargs
        )
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr

    def test_no_daemon(self):
        path = self.folder / "nobody.sock"
        stderr = f"uselect: backend bpf is not available: uselectd is not running at {path}\n"
        self.assertEqual(self.run_refused("--socket", path), stderr)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        self.assertEqual(self.run_refused("--socket", path), stderr)

    @unittest.skipUnless(BACKEND == "bpf", "about uselectd")
    def test_another_user(self):
        programs = self.programs_for_all()
        stderr = self.run_refused(*self.options, programs=programs, user=NOBODY, group=NOBODY)
        self.assertIn("uselectd does not serve this user (--allow-user of uselectd(8))", stderr)


class Help(PreloadCase):
    def test_help_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            command = [PROGRAMS / "uselect", "--help"]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^uselect: cannot write to standard output: .*\n$")


class Lines(PreloadCase):
    def run_script(self, script, *options, **kwargs):
        command = [PROGRAMS / "uselect", "run", *options, "--", sys.executable, "-c", script]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            **kwargs,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_each_backend_counts_calls_that_sleep(self):
        script = WAITS + "for _ in range(10): assert not poll.poll(1)"
        for options in (self.options, ["--backend", "calls"], ["--backend", "multishot"]):
            stderr = self.run_script(script, "--stats", *options)
            ((_, waits, _, sleeps, _),) = LINE.findall(stderr)
            self.assertGreaterEqual(int(waits), 10)
            self.assertGreaterEqual(int(sleeps), 10, stderr)

    def test_each_process_appends_a_line_to_the_file(self):
        """So do processes with another directory, standard error or user."""
        file = self.folder / "stats"
        script = (
            WAITS
            + """
os.chdir("/")
null = os.open("/dev/null", os.O_WRONLY)
os.dup2(null, 2)
for _ in range(3):
    if not os.fork():
        os.setuid(65534) if not os.getuid() else None
        wait()
        sys.exit()
    os.wait()
"""
        )
        stderr = self.run_script(script, "--stats=stats", *self.options, cwd=self.folder)
        self.assertEqual(stderr, "")
        lines = file.read_text().splitlines()
        self.assertEqual(len({LINE.match(line)[1] for line in lines}), 3, lines)
        name = re.escape(pathlib.Path(sys.executable).name[:15])
        for line in lines:
            self.assertRegex(line, rf"^uselect: process \d+ \({name}\): .*; backend \w+")
        refused = subprocess.run(
            [PROGRAMS / "uselect", "run", f"--stats={self.folder}", "true"],
            capture_output=True,
            text=True,
        )
        stderr = f"uselect: --stats={self.folder}: Is a directory (os error 21)\n"
        self.assertEqual((refused.returncode, refused.stderr), (1, stderr))

    def test_standard_error_that_is_a_log_gets_the_line(self):
        log = self.folder / "log"
        flags = "os.O_WRONLY | os.O_CREAT | os.O_APPEND"
        script = f"{WAITS}os.dup2(os.open({str(log)!r}, {flags}), 2)\nwait()"
        self.assertEqual(self.run_script(script, "--stats", *self.options), "")
        self.assertRegex(log.read_text(), LINE)
        file = self.folder / "file"
        script = script.replace(str(log), str(file)).replace(" | os.O_APPEND", "")
        self.assertEqual(self.run_script(script, "--stats", *self.options), "")
        self.assertEqual(file.read_text(), "", "standard error may be a data file of the program")

    @unittest.skipUnless(BACKEND == "bpf", "about uselectd")
    def test_children_without_the_backend_report_that_once(self):
        script = (
            WAITS
            + """
wait()
for _ in range(3):
    if not os.fork():
        os.setuid(65534)
        wait()
        sys.exit()
    os.wait()
"""
        )
        self.folder.chmod(0o755)
        stderr = self.run_script(script, *self.options, "--backend", "bpf")
        self.assertRegex(
            stderr,
            r"^uselect: process \d+ \(.+\): no backend bpf for user 65534: uselectd does not serve "
            r"this user \(--allow-user of uselectd\(8\)\); waits are system calls\n$",
        )
        self.assertEqual(self.run_script(script, *self.options), "", "auto uses the next backend")

    @unittest.skipUnless(BACKEND == "bpf", "about uselectd")
    def test_sockets_opened_while_another_thread_registers_are_tracked(self):
        """The daemon is stopped until the sockets are open."""
        self.addCleanup(self.daemon.send_signal, signal.SIGCONT)
        script = f"""
import os, signal, socket, threading, time

def has_socket():
    links = (f"/proc/self/fd/{{fd}}" for fd in os.listdir("/proc/self/fd"))
    return any("socket:" in os.path.realpath(link) for link in links)

os.kill({self.daemon.pid}, signal.SIGSTOP)
first = threading.Thread(target=socket.socket)
first.start()
while not has_socket():
    time.sleep(0.01)
{WAITS}
os.kill({self.daemon.pid}, signal.SIGCONT)
first.join()
for _ in range(100):
    wait()
"""
        stderr = self.run_script(script, "--stats", *self.options)
        ((_, waits, without, _, backend),) = LINE.findall(stderr)
        self.assertEqual((int(waits), backend), (100, "backend bpf"))
        self.assertGreater(int(without), 50, stderr)

    @unittest.skipUnless(BACKEND == "bpf", "about uselectd")
    def test_the_end_of_the_daemon_is_reported_once(self):
        script = WAITS + "print(flush=True)\ninput()\nfor _ in range(600): wait()"
        for option in ("--stats", ""):
            options = self._daemon(f"other{option}.sock")
            command = [PROGRAMS / "uselect", "run", *filter(None, [option]), *options, "--"]
            with subprocess.Popen(
                [*command, sys.executable, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                process.stdout.readline()
                self.daemon.send_signal(signal.SIGKILL)
                self.daemon.wait()
                stderr = process.communicate("\n", SECONDS_MAX)[1]
            self.assertEqual(process.returncode, 0, stderr)
            if not option:
                self.assertEqual(stderr, "")
                continue
            loss, line = stderr.splitlines()
            self.assertRegex(loss, r"^uselect: process \d+ \(.+\): uselectd has ended; waits are")
            self.assertEqual(LINE.match(line)[5], "backend calls (uselectd has ended)")


if __name__ == "__main__":
    unittest.main()
