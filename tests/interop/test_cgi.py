"""CGI: programs of a folder with their environment and bodies, programs that die, stall and leave
processes behind, and the end of the launcher."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading
import unittest

from support import pattern, wire
from support.case import InteropCase
from support.millrace import program

PYTHON = "/usr/bin/python3"


def alive(process):
    """Returns whether a process runs: a zombie does not."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


class Programs(InteropCase):
    programs = (PYTHON,)

    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.cgi = self.folder / "cgi"
        self.cgi.mkdir()
        # Programs write here as another user.
        self.notes = self.folder / "notes"
        self.notes.mkdir()
        self.notes.chmod(0o777)

    def program(self, name, text, mode=0o755):
        path = self.cgi / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def shell(self, name, text):
        return self.program(name, f"#!/bin/sh\n{text}\n")

    def python(self, name, text):
        return self.program(name, f"#!{PYTHON}\n{text}\n")

    def start(self, *options, **how):
        return self.serve("--cgi", self.cgi, *options, **how)

    def get(self, proxy, target, extra=""):
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            connection.get(target, extra=f"Connection: close\r\n{extra}")
            return connection.read_response()

    def post(self, proxy, target, body):
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            head = f"POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            # A program may respond while it reads, and waits until its response is read.
            send = threading.Thread(target=connection.send, args=(head.encode() + body,))
            send.start()
            try:
                return connection.read_response()
            finally:
                send.join()

    def cut(self, proxy, target):
        """Checks that the response is cut: the connection ends without the end of the body."""
        with self.assertRaises((EOFError, ConnectionResetError)):
            self.get(proxy, target)

    def noted(self, name):
        """Waits for the process id that a program notes, and returns it."""
        path = self.notes / name
        self.wait_until(f"{name} is noted", lambda: path.exists() and path.read_text().strip())
        return int(path.read_text())

    def wait_gone(self, *processes):
        for process in processes:
            self.wait_until(f"{process} has ended", lambda process=process: not alive(process))

    def children(self, proxy):
        """Returns the processes that millrace started: the guard and its launchers."""
        found = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,args="], check=True, capture_output=True, text=True
        ).stdout
        lines = [line.split(None, 2) for line in found.splitlines()]
        command = re.compile(rf"^millrace cgi-(guard|launcher) .* {proxy.process.pid} ")
        return [int(line[0]) for line in lines if command.match(line[2])]

    def launcher(self, proxy):
        processes = self.children(proxy)
        names = {pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes}
        return next(pid for pid, name in names.items() if b"cgi-launcher" in name)


class Requests(Programs):
    def test_environment_of_a_python_program(self):
        self.python(
            "sub/env.py",
            "import json, os\nprint('Content-Type: application/json\\n')\n"
            "descriptors = {}\nfor fd in os.listdir('/proc/self/fd'):\n"
            "    try: descriptors[fd] = os.readlink(f'/proc/self/fd/{fd}')\n"
            "    except OSError: pass\n"
            "print(json.dumps([dict(os.environ), descriptors, os.getcwd(), os.getuid(),"
            " os.getgroups(), os.getpgrp() == os.getpid()]))",
        )
        proxy = self.start()
        fields = (
            "Authorization: Basic eA==\r\nProxy: evil\r\nA_B: no\r\nX-A: 1\r\nX-A: 2\r\n"
            "Cookie: a=1\r\nContent-Type: text/x\r\n"
        )
        found = self.get(proxy, "/cgi-bin/sub/env.py/more/%20x?a=b&c", fields)
        self.assertEqual(found.status, 200, found.body)
        environment, descriptors, folder, user, groups, leads = json.loads(found.body)
        peer = {name: environment.pop(name) for name in ("REMOTE_PORT", "SERVER_PORT", "HTTP_VIA")}
        self.assertEqual(peer["SERVER_PORT"], str(proxy.address[1]))
        forwarded = [name for name in environment if name.startswith(("HTTP_X_FORW", "HTTP_FORW"))]
        for name in forwarded + ["LC_CTYPE"]:
            environment.pop(name, None)
        self.assertEqual(
            environment,
            {
                "CONTENT_TYPE": "text/x",
                "GATEWAY_INTERFACE": "CGI/1.1",
                "HTTP_COOKIE": "a=1",
                "HTTP_HOST": "interop.test",
                "HTTP_X_A": "1, 2",
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "PATH_INFO": "/more/ x",
                "PATH_TRANSLATED": f"{self.cgi}/more/ x",
                "QUERY_STRING": "a=b&c",
                "REMOTE_ADDR": "127.0.0.1",
                "REQUEST_METHOD": "GET",
                "REQUEST_SCHEME": "http",
                "REQUEST_URI": "/cgi-bin/sub/env.py/more/%20x?a=b&c",
                "SCRIPT_FILENAME": f"{self.cgi}/sub/env.py",
                "SCRIPT_NAME": "/cgi-bin/sub/env.py",
                "SERVER_ADDR": "127.0.0.1",
                "SERVER_NAME": "interop.test",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "SERVER_SOFTWARE": "millrace",
            },
        )
        self.assertEqual(folder, f"{self.cgi}/sub")
        self.assertTrue(leads, "the program leads a process group")
        # The interpreter opens the script by a descriptor, which stays open. The listing of
        # /proc/self/fd is gone when its link is read.
        others = {fd: path for fd, path in descriptors.items() if int(fd) > 2}
        self.assertEqual(list(others.values()), [f"{self.cgi}/sub/env.py"])
        self.assertTrue(all(descriptors[fd].startswith("pipe:") for fd in "012"), descriptors)
        if os.getuid() == 0:
            own = os.stat(f"/proc/{proxy.process.pid}").st_uid
            self.assertEqual((user in (0, own), groups), (False, []))

    def test_a_binary_has_no_descriptor(self):
        shell = self.cgi / "shell"
        # A shell that reads its program from standard input.
        shell.write_bytes(pathlib.Path("/bin/sh").read_bytes())
        shell.chmod(0o755)
        # A pipeline would have pipes in the shell for a moment.
        script = b"printf '\\n'; set -- /proc/$$/fd/*; echo $#; echo $0"
        found = self.post(self.start(), "/cgi-bin/shell", script)
        # The three standard streams, and the folder that is read.
        self.assertEqual((found.status, found.body), (200, b"4\nshell\n"))

    def test_a_shell_program(self):
        self.shell(
            "post.sh",
            'printf "Status: 201 Made\\nX-Length: %s\\n\\n" "$CONTENT_LENGTH"; cat',
        )
        proxy = self.start()
        made = self.post(proxy, "/cgi-bin/post.sh", b"some body")
        self.assertEqual((made.status, made.fields["x-length"]), (201, "9"))
        self.assertEqual(made.body, b"some body")

    def test_bodies(self):
        self.shell("hash.sh", "printf '\\n'; sha256sum | cut -c -64 | tr -d '\\n'")
        self.shell("echo.sh", "printf '\\n'; exec cat")
        proxy = self.start()
        for length in (0, 1, 1000, 65535, 65536, 200_000, 1 << 20, (1 << 20) + 1, 5 << 20):
            body = b"".join(pattern.blocks(length))
            digest = hashlib.sha256(body).hexdigest()
            found = self.post(proxy, "/cgi-bin/hash.sh", body)
            self.assertEqual((found.status, found.body), (200, digest.encode()), length)
            echoed = self.post(proxy, "/cgi-bin/echo.sh", body)
            self.assertEqual((echoed.status, echoed.digest), (200, digest), length)

    def test_a_body_that_is_not_read(self):
        self.shell("deaf.sh", "printf '\\nok'")
        proxy = self.start()
        for length in (100_000, 3 << 20):
            self.assertEqual(self.post(proxy, "/cgi-bin/deaf.sh", b"x" * length).body, b"ok")

    def test_status_and_location(self):
        self.shell("tea.sh", "printf 'Status: 418 Teapot\\r\\n\\r\\ntea'")
        self.shell("move.sh", "printf 'Location: http://other/\\n\\n'")
        proxy = self.start()
        tea = self.get(proxy, "/cgi-bin/tea.sh")
        self.assertEqual((tea.status, tea.body), (418, b"tea"))
        moved = self.get(proxy, "/cgi-bin/move.sh")
        self.assertEqual((moved.status, moved.fields["location"]), (302, "http://other/"))

    def test_what_is_no_program(self):
        source = self.shell("a.sh", "printf '\\nrun'")
        self.program("text", "secret text", 0o644)
        self.program("no-interpreter", "#!/no/such\n")
        self.program("no-format", "secret text")
        self.program(".hidden", "#!/bin/sh\nprintf '\\nrun'\n")
        (self.folder / "outside").write_text("#!/bin/sh\nprintf '\\nrun'\n")
        (self.folder / "outside").chmod(0o755)
        (self.cgi / "link").symlink_to(self.folder / "outside")
        (self.cgi / "inside").symlink_to("a.sh")
        (self.cgi / "up").symlink_to("..")
        os.mkfifo(self.cgi / "fifo")
        proxy = self.start()
        self.assertEqual(self.get(proxy, "/cgi-bin/a.sh").body, b"run")
        self.assertEqual(self.get(proxy, "/cgi-bin//x/../%61.sh/").body, b"run")
        paths = (
            "none a.sh.bak link inside up/outside ..%2foutside %2e%2e%2foutside "
            "x%2f..%2f..%2foutside a%00.sh .hidden fifo %2fbin%2fsh"
        )
        for missing in ["", *paths.split(" ")]:
            found = self.get(proxy, f"/cgi-bin/{missing}")
            self.assertIn(found.status, (400, 404), missing)
            self.assertNotIn(b"run", found.body)
        self.assertEqual(self.get(proxy, "/cgi-bin/text").status, 403)
        for broken in ("no-interpreter", "no-format"):
            found = self.get(proxy, f"/cgi-bin/{broken}")
            self.assertEqual(found.status, 502, broken)
            self.assertNotIn(b"secret", found.body)
        self.wait_until(
            "the error is reported",
            lambda: any("cannot run /no-interpreter" in line for line in proxy.lines),
        )
        source.chmod(0o600)
        self.assertEqual(self.get(proxy, "/cgi-bin/a.sh").status, 403)

    def test_a_program_is_never_sent_as_a_file(self):
        self.cgi = self.site / "programs"
        self.cgi.mkdir()
        self.shell("a.sh", "printf '\\nrun'")
        (self.site / "link").symlink_to("programs/a.sh")
        (self.site / "folder").symlink_to("programs")
        (self.site / "page.html").write_text("page")
        proxy = self.start("--listing", "--program-extensions", ".none")
        self.assertEqual(self.get(proxy, "/cgi-bin/a.sh").body, b"run")
        self.assertEqual(self.get(proxy, "/page.html").body, b"page")
        for target in ("programs/a.sh", "programs/", "link", "folder/a.sh", "folder/"):
            found = self.get(proxy, f"/{target}")
            self.assertEqual(found.status, 404, target)
            self.assertNotIn(b"bin/sh", found.body)

    def test_a_file_of_the_configuration(self):
        self.shell("a.sh", 'printf "\\n$SCRIPT_NAME $PATH_INFO"')
        (self.site / "page.html").write_text("page")
        config = self.folder / "millrace.toml"
        table = (
            '[[serve]]\nlisten = "127.0.0.1:0"\nfolder = "{}"\n[[serve.route]]\n'
            'path = "/run/"\ncgi = "{}"\n'
        )
        config.write_text(table.format(self.site, self.cgi))
        checked = subprocess.run(
            [program(), "check", config], check=True, capture_output=True, text=True, timeout=60
        )
        self.assertNotIn("may not connect", checked.stderr)
        proxy = self.millrace("run", config)
        self.assertEqual(self.get(proxy, "/run/a.sh/x").body, b"/run/a.sh /x")
        self.assertEqual(self.get(proxy, "/page.html").body, b"page")
        before = self.children(proxy)
        config.write_text(table.format(self.site, self.cgi) + "[limits]\nidle_ms = 9000\n")
        self.reload(proxy, "2 is in force")
        self.assertEqual(self.get(proxy, "/run/a.sh").body, b"/run/a.sh ")
        self.assertEqual(self.children(proxy), before, "the folders are the same")

    def reload(self, proxy, line):
        """Reloads the configuration, and waits for a line of the log."""
        proxy.process.send_signal(signal.SIGHUP)
        self.wait_until(line, lambda: any(line in it for it in proxy.lines))

    def test_a_reload_that_changes_the_folders(self):
        config = self.folder / "millrace.toml"
        first = f'[[serve]]\nlisten = "{{}}"\n[[serve.route]]\npath = "/a/"\ncgi = "{self.cgi}"\n'
        other = self.folder / "other"
        other.mkdir()
        second = f'[[serve.route]]\npath = "/b/"\ncgi = "{other}"\n'
        self.shell("name.sh", "printf '\\nfirst'")
        (other / "name.sh").write_text("#!/bin/sh\nprintf '\\nsecond'\n")
        (other / "name.sh").chmod(0o755)
        self.shell(
            "slow.sh",
            f"printf '\\nbegun'; echo $$ > {self.notes}/slow; while [ -e {self.notes}/slow ]; do"
            " sleep 0.05; done; printf ' and ended'",
        )
        config.write_text(first.format("127.0.0.1:0"))
        proxy = self.millrace("run", config)
        launcher = self.launcher(proxy)
        slow = wire.Connection(proxy.address)
        slow.get("/a/slow.sh", extra="Connection: close\r\n")
        self.noted("slow")
        with self.subTest("a folder is added"):
            config.write_text(first.format("127.0.0.1:0") + second)
            self.reload(proxy, "2 is in force")
            self.assertEqual(self.get(proxy, "/a/name.sh").body, b"first")
            self.assertEqual(self.get(proxy, "/b/name.sh").body, b"second")
        with self.subTest("a program of before is completed, then its launcher ends"):
            self.assertTrue(alive(launcher))
            (self.notes / "slow").unlink()
            self.assertEqual(slow.read_response().body, b"begun and ended")
            slow.socket.close()
            self.wait_gone(launcher)
        with self.subTest("a launcher that ended is replaced"):
            launcher = self.launcher(proxy)
            os.kill(launcher, signal.SIGKILL)
            self.wait_until(
                "its end is reported",
                lambda: any("reload to start another" in line for line in proxy.lines),
            )
            self.reload(proxy, "3 is in force")
            self.assertEqual(self.get(proxy, "/b/name.sh").body, b"second")
        with self.subTest("without programs there is no launcher"):
            launcher = self.launcher(proxy)
            config.write_text(f'[[serve]]\nlisten = "127.0.0.1:0"\nfolder = "{self.site}"\n')
            self.reload(proxy, "4 is in force")
            self.wait_gone(launcher)
            self.assertEqual(len(self.children(proxy)), 1, "the guard stays")
        with self.subTest("programs are added again"):
            config.write_text(first.format("127.0.0.1:0"))
            self.reload(proxy, "5 is in force")
            self.assertEqual(self.get(proxy, "/a/name.sh").body, b"first")
        with self.subTest("a folder that is missing"):
            config.write_text(first.format("127.0.0.1:0") + second.replace("other", "missing"))
            self.reload(proxy, "reload refused")
            self.assertEqual(self.get(proxy, "/a/name.sh").body, b"first")
        processes = self.children(proxy)
        self.assertEqual(proxy.stop(), 0)
        self.wait_gone(*processes)

    def test_a_reload_that_adds_the_first_folder(self):
        config = self.folder / "millrace.toml"
        config.write_text(f'[[serve]]\nlisten = "127.0.0.1:0"\nfolder = "{self.site}"\n')
        proxy = self.millrace("run", config)
        route = f'[[serve.route]]\npath = "/a/"\ncgi = "{self.cgi}"\n'
        config.write_text(config.read_text() + route)
        self.reload(proxy, "this process was started without cgi (restart or upgrade to use it)")


class Misbehaviour(Programs):
    def test_programs_that_die(self):
        self.shell("before.sh", "exit 3")
        self.shell("killed.sh", "kill -9 $$")
        self.shell("inside.sh", "printf 'Content-Type: text'; exit 1")
        self.shell("garbage.sh", "printf 'no field\\n\\n'")
        self.shell("after.sh", "printf 'Content-Length: 9\\n\\nshort'")
        self.shell("body.sh", "printf '\\nshort'; sleep 0.2; kill -9 $$")
        proxy = self.start()
        for name in ("before", "killed", "inside", "garbage"):
            self.assertEqual(self.get(proxy, f"/cgi-bin/{name}.sh").status, 502, name)
        for name in ("after", "body"):
            self.cut(proxy, f"/cgi-bin/{name}.sh")

    def test_a_program_that_never_responds(self):
        self.shell("never.sh", f"trap '' TERM; echo $$ > {self.notes}/never; sleep 600")
        for limit in ("first_byte_ms=300ms", "cgi_ms=300ms"):
            (self.notes / "never").unlink(missing_ok=True)
            proxy = self.start("--limit", limit)
            self.assertEqual(self.get(proxy, "/cgi-bin/never.sh").status, 504, limit)
            self.wait_gone(self.noted("never"))

    def test_a_program_that_takes_too_long(self):
        self.python(
            "drip.py",
            "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            f"open('{self.notes}/drip', 'w').write(str(os.getpid()))\n"
            "print('\\n', flush=True)\nwhile True: print('drip', flush=True); time.sleep(0.05)",
        )
        proxy = self.start("--limit", "cgi_ms=500ms")
        self.cut(proxy, "/cgi-bin/drip.py")
        self.wait_gone(self.noted("drip"))

    def test_a_slow_program(self):
        self.shell("slow.sh", "printf '\\n'; for i in 1 2 3 4 5; do echo $i; sleep 0.1; done")
        self.assertEqual(self.get(self.start(), "/cgi-bin/slow.sh").body, b"1\n2\n3\n4\n5\n")

    def test_a_flood_of_errors(self):
        self.shell("flood.sh", "head -c 1000000 /dev/zero | tr '\\0' e >&2; printf '\\nok'")
        proxy = self.start()
        self.assertEqual(self.get(proxy, "/cgi-bin/flood.sh").body, b"ok")
        wrote = lambda: [line for line in proxy.lines if "eeeeeeee" in line]  # noqa: E731
        self.wait_until("the errors are reported", wrote)
        self.assertLess(sum(map(len, wrote())), 9000)

    def test_a_child_that_holds_the_output(self):
        self.shell(
            "child.sh",
            f"(trap '' TERM HUP; sleep 600) & echo $! > {self.notes}/child; printf '\\nok'",
        )
        self.shell(
            "daemon.sh",
            f"setsid sh -c 'echo $$ > {self.notes}/daemon; exec sleep 600' & printf '\\nok';"
            f"while [ ! -s {self.notes}/daemon ]; do sleep 0.01; done",
        )
        proxy = self.start()
        self.assertEqual(self.get(proxy, "/cgi-bin/child.sh").body, b"ok")
        self.wait_gone(self.noted("child"))
        self.assertEqual(self.get(proxy, "/cgi-bin/daemon.sh").body, b"ok")
        daemon = self.noted("daemon")
        if any("in a control group each" in line for line in proxy.lines):
            self.wait_gone(daemon)
        else:
            os.kill(daemon, signal.SIGKILL)

    def test_a_client_that_leaves(self):
        self.shell(
            "wait.sh",
            f"printf '\\nbegun'; trap '' TERM; sleep 600 & echo $! > {self.notes}/child;"
            f"echo $$ > {self.notes}/program; wait",
        )
        self.shell(
            "drip.sh",
            f"printf '\\nbegun'; sleep 600 & echo $! > {self.notes}/child;"
            f"echo $$ > {self.notes}/program; trap '' PIPE; while sleep 0.05; do echo drip; done",
        )
        proxy = self.start()
        # An orderly end may be half a close: the client has left when it takes no more bytes.
        for name, resets in (("wait", True), ("drip", False)):
            connection = wire.Connection(proxy.address)
            connection.get(f"/cgi-bin/{name}.sh")
            self.assertEqual(connection.head()[1], 200)
            processes = self.noted("program"), self.noted("child")
            self.assertTrue(all(map(alive, processes)))
            if resets:
                linger = struct.pack("ii", 1, 0)
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.socket.close()
            self.wait_gone(*processes)
            for note in self.notes.iterdir():
                note.unlink()

    def test_more_requests_than_programs(self):
        self.shell("slow.sh", "sleep 0.2; printf '\\nok'")
        proxy = self.start("--limit", "cgi_programs=2", "--workers", "1")
        connections = [wire.Connection(proxy.address) for _ in range(8)]
        for connection in connections:
            connection.get("/cgi-bin/slow.sh?" + str(connection.socket.fileno()))
        for connection in connections:
            with contextlib.closing(connection.socket):
                self.assertEqual(connection.read_response().body, b"ok")


class Launcher(Programs):
    def begin(self, proxy):
        """Starts a program that never ends. Returns its connection and its process id."""
        self.shell("wait.sh", f"printf '\\nbegun'; echo $$ > {self.notes}/wait; sleep 600")
        connection = wire.Connection(proxy.address)
        connection.get("/cgi-bin/wait.sh")
        self.assertEqual(connection.head()[1], 200)
        return connection, self.noted("wait")

    def test_millrace_is_killed(self):
        proxy = self.start()
        connection, program = self.begin(proxy)
        processes = self.children(proxy)
        self.assertTrue(processes)
        proxy.kill()
        self.wait_gone(program, *processes)
        connection.socket.close()

    def test_the_launcher_is_killed(self):
        (self.site / "page.html").write_text("page")
        proxy = self.start()
        connection, program = self.begin(proxy)
        os.kill(self.launcher(proxy), signal.SIGKILL)
        self.wait_gone(program)
        with contextlib.closing(connection.socket), self.assertRaises((EOFError, OSError)):
            while True:
                connection.exactly(1, lambda _: None)
        self.assertIn(self.get(proxy, "/cgi-bin/wait.sh").status, (502, 503))
        self.assertEqual(self.get(proxy, "/page.html").body, b"page")
        self.wait_until(
            "the end is reported",
            lambda: any("launcher of CGI programs has ended" in line for line in proxy.lines),
        )

    def test_nothing_stays_after_the_end(self):
        proxy = self.start()
        processes = self.children(proxy)
        # Other tests remove theirs at the same time, which ends a search of all groups.
        own = pathlib.Path("/proc/self/cgroup").read_text().partition("0::/")[2].strip()
        mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        mount = next((line.split()[4] for line in mounts if " - cgroup2 " in line), "/none")
        folder = pathlib.Path(mount) / own
        groups = [
            path for process in processes for path in folder.glob(f"millrace-cgi-{process}-*")
        ]
        has_groups = any("in a control group each" in line for line in proxy.lines)
        self.assertEqual(bool(groups), has_groups)
        self.assertEqual(proxy.stop(), 0)
        self.wait_gone(*processes)
        self.assertEqual([path for path in groups if path.exists()], [])

    @unittest.skipIf(os.getuid() != 0, "skip: only root starts programs as another user")
    def test_users(self):
        self.shell("id.sh", "printf '\\n'; id -u; grep NoNewPrivs /proc/self/status")
        words = [program(), "serve", self.site, "--cgi", self.cgi, "--listen", "127.0.0.1:0"]
        words += ["--user", "12345:12345", "--cgi-user", "12345:12345"]
        done = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, timeout=60
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is also the user of millrace", done.stderr)
        proxy = self.start()
        own = os.stat(f"/proc/{proxy.process.pid}").st_uid
        first = self.get(proxy, "/cgi-bin/id.sh").body.split()[0]
        self.assertNotEqual(int(first), own, "a program could kill millrace")
        proxy = self.start("--cgi-user", "12345:12345")
        self.assertEqual(self.get(proxy, "/cgi-bin/id.sh").body, b"12345\nNoNewPrivs:\t1\n")

        def drop():
            os.setgroups([])
            os.setgid(12346)
            os.setuid(12346)

        proxy = self.start(before=drop)
        self.assertEqual(self.get(proxy, "/cgi-bin/id.sh").body, b"12346\nNoNewPrivs:\t1\n")
        self.assertTrue(any("in a process group each" in line for line in proxy.lines))

    @unittest.skipIf(os.getuid() != 0, "skip: only root starts programs as another user")
    def test_a_program_cannot_end_the_launcher(self):
        self.python(
            "attack.py",
            "import os, resource\n"
            "print()\n"
            "launcher = os.getppid()\n"
            "limit = lambda: resource.prlimit(launcher, resource.RLIMIT_CPU, (0, 0))\n"
            "for attack in lambda: os.kill(launcher, 9), limit:\n"
            "    try:\n"
            "        print('done', attack())\n"
            "    except PermissionError:\n"
            "        print('refused')\n"
            "print(os.getresuid(), os.getresgid())\n",
        )
        proxy = self.start("--user", "12344:12344", "--cgi-user", "12345:12346")
        launcher = self.launcher(proxy)
        lines = self.get(proxy, "/cgi-bin/attack.py").body.decode().splitlines()
        ids = "(12345, 12345, 12345) (12346, 12346, 12346)"
        self.assertEqual(lines, ["refused", "refused", ids])
        self.assertEqual(self.launcher(proxy), launcher)

    def test_programs_handle_signals_as_usual(self):
        # A shell with nohup ignores SIGHUP, and millrace inherits that.
        self.shell("hangup.sh", "printf '\\n'; grep SigIgn /proc/self/status")
        ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
        proxy = self.start(before=ignore)
        ignored = self.get(proxy, "/cgi-bin/hangup.sh").body.split()[1]
        self.assertEqual(int(ignored, 16) >> (signal.SIGHUP - 1) & 1, 0)

    def test_only_allowed_programs_are_executed(self):
        copy = self.notes / "copy"
        copy.write_bytes(pathlib.Path("/bin/true").read_bytes())
        copy.chmod(0o755)
        self.shell("run.sh", f"printf '\\n'; {copy} 2>/dev/null && echo yes || echo no")
        proxy = self.start()
        is_restricted = any("restricted by Landlock" in line for line in proxy.lines)
        expected = b"no\n" if is_restricted else b"yes\n"
        self.assertEqual(self.get(proxy, "/cgi-bin/run.sh").body, expected)
