"""`ticket-key-file`: servers of a cluster that share the keys of session tickets. The clients are
openssl s_client and Python."""

import os
import secrets
import signal
import ssl
import subprocess

from support.millrace import program
from support.secure import NAME, Connection, SecureCase


class TicketKeys(SecureCase):
    programs = ("openssl",)

    def setUp(self):
        super().setUp()
        self.upstream = self.origin()
        self.file = self.keys("keys", secrets.token_bytes(80))

    def keys(self, name, content, mode=0o600):
        """Writes a file of keys, as `mv` replaces it."""
        path, new = self.folder / name, self.folder / "new"
        new.write_bytes(content)
        new.chmod(mode)
        os.replace(new, path)
        return path

    def server(self, *files):
        """Starts a server of the cluster."""
        options = [word for file in files for word in ("--ticket-key-file", file)]
        return self.secure_boost(self.upstream.url, *options)

    def visit(self, proxy, *, saved=None, name=NAME, version=ssl.TLSVersion.TLSv1_3):
        """Makes a request. Returns whether the session was resumed, and the session."""
        self.context.minimum_version = self.context.maximum_version = version
        client = Connection(proxy.address, self.context, name=name, saved=saved)
        try:
            client.get("/bytes/10", host=name, extra="Connection: close\r\n")
            self.assertEqual(client.read_response().status, 200)
            return client.tls.session_reused, client.tls.session
        finally:
            client.close()

    def test_servers_with_the_same_file_resume_each_others_sessions(self):
        first, second = self.server(self.file), self.server(self.file)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for here, there in [(first, second), (second, first)]:
                saved = self.visit(here, version=version)[1]
                self.assertTrue(self.visit(there, saved=saved, version=version)[0], version)
        alone = self.server()
        self.assertFalse(self.visit(alone, saved=self.visit(first)[1])[0])
        self.assertFalse(self.visit(first, saved=self.visit(alone)[1])[0])

    def test_openssl_resumes_at_the_other_server(self):
        first, second = self.server(self.file), self.server(self.file)
        request = f"GET /bytes/10 HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
        for version in ("-tls1_2", "-tls1_3"):
            session = self.folder / f"session{version}"
            how = (version, "-ign_eof")
            output = self.s_client(first, *how, "-sess_out", session, request=request)[1]
            self.assertIn("New, TLSv1", output)
            output = self.s_client(second, *how, "-sess_in", session, request=request)[1]
            self.assertIn("Reused, TLSv1", output)

    def config(self, *, files=(), names=("boost",), check_ms=100):
        """Writes a configuration with services of these names. Returns its path."""
        certificate, key = self.pair
        path = self.folder / "millrace.toml"
        files = list(map(str, files)) or [str(self.file)]
        path.write_text(f"limits = {{ certificate_check_ms = {check_ms} }}\n" + "".join(
            f'[[boost]]\nname = "{name}"\nlisten = "tls://127.0.0.1:0"\n'
            f'certificate = "{certificate}"\nkey = "{key}"\nticket-key-file = {files}\n'
            f'[[boost.route]]\norigins = "{self.upstream.url}"\n'
            for name in names
        ))
        return path

    def test_a_ticket_is_valid_for_one_service_and_name(self):
        both = self.millrace("run", self.config(names=("boost", "other")))
        self.wait_until("both services listen", lambda: len(both.addresses) == 2)
        first, saved = self.visit(both)
        self.assertFalse(first)
        self.assertTrue(self.visit(both, saved=saved)[0])
        self.assertFalse(self.visit(both, saved=saved, name="localhost")[0])
        both.addresses.reverse()
        self.assertFalse(self.visit(both, saved=saved)[0], "a ticket of another service")
        both.addresses.reverse()
        self.assertTrue(self.visit(self.server(self.file), saved=saved)[0], "the same name")

    def test_keys_are_replaced_while_the_process_runs(self):
        old, new = secrets.token_bytes(80), secrets.token_bytes(80)
        self.keys("keys", old)
        running = self.millrace("run", self.config())
        saved = self.visit(running)[1]

        def replace(content):
            before = sum("is in force" in line for line in running.lines)
            self.keys("keys", content)
            self.wait_until(
                "the keys are in force",
                lambda: sum("is in force" in line for line in running.lines) > before,
            )

        replace(new + old)
        self.assertTrue(self.visit(running, saved=saved)[0], "the old key is listed")
        of_new = self.visit(running)[1]
        replace(new)
        self.assertFalse(self.visit(running, saved=saved)[0], "the old key is gone")
        self.assertTrue(self.visit(running, saved=of_new)[0], "the new key sealed")
        self.keys("keys", b"short")
        self.wait_until(
            "the reload is refused", lambda: any("has 5 bytes" in line for line in running.lines)
        )
        self.assertTrue(self.visit(running, saved=of_new)[0], "the keys before it are in force")
        readable = secrets.token_bytes(80)
        self.keys("keys", readable, 0o644)
        self.wait_until(
            "it is refused", lambda: any("(mode 644)" in line for line in running.lines)
        )
        self.assertTrue(self.visit(running, saved=of_new)[0], "they still are")

    def test_a_signal_reads_the_keys_again(self):
        running = self.millrace("run", self.config(check_ms=3_600_000))
        saved = self.visit(running)[1]
        self.keys("keys", secrets.token_bytes(80))
        self.assertTrue(self.visit(running, saved=saved)[0])
        running.process.send_signal(signal.SIGHUP)
        self.wait_until(
            "the keys are in force", lambda: any("is in force" in line for line in running.lines)
        )
        self.assertFalse(self.visit(running, saved=saved)[0])

    def test_bad_files_are_refused(self):
        key = secrets.token_bytes(48)
        other, third = secrets.token_bytes(48), secrets.token_bytes(80)
        readable = self.keys("readable", key, 0o604)
        for files, text in [
            ([self.folder / "none"], "none: No such file"),
            ([self.folder], "is not a regular file"),
            ([self.keys("empty", b"")], "has 0 bytes"),
            ([self.keys("short", key[:47])], "has 47 bytes"),
            ([self.keys("four", third * 4)], "has 320 bytes"),
            ([readable], "is readable by other users (mode 604)"),
            ([self.keys("a", key), self.keys("b", key)], "has a key whose name another key has"),
            ([self.keys("c", key + other), self.keys("d", third + secrets.token_bytes(80))],
             "has too many keys"),
        ]:
            words = [word for file in files for word in ("--ticket-key-file", file)]
            options = ["boost", "--origin", self.upstream.url, *self.options(), *words]
            config = self.config(files=files)
            for command in [options, ["check", config]]:
                done = subprocess.run(
                    [str(program()), *map(str, command)],
                    capture_output=True, text=True, timeout=60,
                )
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn("ticket-key-file ", done.stderr)
                self.assertIn(text, done.stderr)
                self.assertIn("(expected: 48 or 80 random bytes", done.stderr)

    def test_several_files_are_one_list(self):
        old = self.keys("old", secrets.token_bytes(48))
        new = self.keys("newest", secrets.token_bytes(80))
        saved = self.visit(self.server(old))[1]
        both = self.server(new, old)
        self.assertTrue(self.visit(both, saved=saved)[0])
        self.assertFalse(self.visit(self.server(old), saved=self.visit(both)[1])[0])
