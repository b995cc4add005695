"""Certificates and keys in files: bad ones at `millrace check`, at a start and at a reload, their
replacement under load, their expiry, and their permissions."""

import os
import pathlib
import pwd
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time

from support import tls, wire
from support.millrace import program
from support.secure import NAME, Connection, SecureCase


def stamp(days):
    """Returns the time `days` from now in the form of certificates."""
    return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + days * 86_400))


class Case(SecureCase):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.chain, self.key = self.folder / "chain.pem", self.folder / "key.pem"
        self.config = self.folder / "millrace.toml"
        self.upstream = self.origin()
        self.use(self.pair)

    def use(self, pair, owner=-1):
        """Replaces the certificate and the key, as `mv` does. `owner` is the number of a user."""
        for source, target in zip(pair, (self.chain, self.key)):
            new = target.with_suffix(".new")
            shutil.copyfile(source, new)
            new.chmod(0o600)
            os.chown(new, owner, -1)
            os.replace(new, target)

    def write(self, user="root"):
        """Writes a configuration with these files."""
        self.config.write_text(
            f'user = "{user}"\nlimits = {{ certificate_check_ms = 100 }}\n[boost]\n'
            f'listen = "tls://127.0.0.1:0"\ncertificate = "{self.chain}"\nkey = "{self.key}"\n'
            f'[[boost.route]]\norigins = "{self.upstream.url}"\n'
        )

    def check(self):
        """Runs `millrace check`. Returns its status and its lines on standard error."""
        done = subprocess.run(
            [program(), "check", self.config], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stderr.splitlines()

    def serial(self, proxy):
        """Returns the serial number of the certificate that a new client gets."""
        client = Connection(proxy.address, self.context)
        try:
            return client.tls.getpeercert()["serialNumber"]
        finally:
            client.close()

    def serial_of(self, pair):
        return tls.openssl("x509", "-noout", "-serial", "-in", pair[0]).decode().strip()[7:]


class BadFiles(Case):
    def bad_files(self):
        """Yields (name, certificate, key, the text that the error must have)."""
        good, key = self.pair
        other = self.authority.issue(f"DNS:{NAME}")
        folder = self.folder / "folder"
        folder.mkdir()

        def made(name, data, mode=0o600):
            path = self.folder / name
            path.write_bytes(data)
            path.chmod(mode)
            return path

        def converted(name, *arguments):
            tls.openssl(*arguments, "-out", self.folder / name)
            (self.folder / name).chmod(0o600)
            return self.folder / name

        chain = f"certificate {self.folder}/"
        swapped = f"is not the key of certificate {good} (expected: its key; keys are in the order"
        yield "another key", good, other[1], swapped
        yield "missing certificate", self.folder / "no", key, chain + "no: No such file"
        yield "missing key", good, self.folder / "no", f"key {self.folder}/no: No such file"
        yield "folder as certificate", folder, key, "folder: is not a regular file"
        yield "folder as key", good, folder, "folder: is not a regular file"
        yield "empty certificate", made("empty", b""), key, "empty: is not PEM"
        yield "empty key", good, made("empty-key", b""), "empty-key: is not PEM"
        yield "text", made("text", b"hello\n"), key, "text: is not PEM"
        yield "key as certificate", key, key, "contains no certificate"
        yield "certificate as key", good, made("as-key", good.read_bytes()), "contains no private key"
        damaged = good.read_bytes().replace(b"MII", b"M!I", 1)
        yield "damaged base64", made("damaged", damaged), key, "damaged: is not PEM"
        cut = good.read_bytes()[:200]
        yield "cut certificate", made("cut", cut), key, "cut: is not complete PEM"
        der = converted("der", "x509", "-in", good, "-outform", "DER")
        yield "DER", der, key, "is DER; convert it with: openssl x509 -inform DER"
        der_key = converted("der-key", "pkey", "-in", key, "-outform", "DER")
        yield "DER key", good, der_key, "is DER; convert it with: openssl pkey -inform DER"
        p12 = converted("p12", "pkcs12", "-export", "-in", good, "-inkey", key, "-passout", "pass:x")
        yield "PKCS#12", p12, key, "is PKCS#12; convert it with: openssl pkcs12"
        secret = converted("secret", "pkey", "-in", key, "-aes128", "-passout", "pass:x")
        yield "encrypted key", good, secret, "is encrypted; decrypt it with: openssl pkey"
        readable = made("readable", key.read_bytes(), 0o604)
        yield "readable key", good, readable, "is readable by other users (mode 604)"
        weak = self.authority.issue(f"DNS:{NAME}", kind="weak")
        yield "weak key", *weak, "weak RSA key of 1024 bits"
        curve = self.authority.issue(f"DNS:{NAME}", kind="weak curve")
        yield "weak curve", *curve, "has a key of an unsupported kind (supported: ECDSA by P-256,"
        expired = self.authority.issue(f"DNS:{NAME}", since=stamp(-20), until=stamp(-10))
        yield "expired", *expired, "expired "
        early = self.authority.issue(f"DNS:{NAME}", since=stamp(10), until=stamp(20))
        yield "not yet valid", *early, "is not valid before"
        gap = made("gap", good.read_bytes() + tls.Authority(self.folder, "b").path.read_bytes())
        yield "gap in the chain", gap, key, "has a gap"
        large = made("large", good.read_bytes() + b"\n" * (1 << 20))
        yield "large", large, key, "has more than 1048576 bytes"

    def test_check_start_and_reload_refuse_them(self):
        """One line with the option, the file and the problem; status 2; and after a refused reload
        the old certificate serves on."""
        self.write()
        running = self.millrace("run", self.config)
        serial = self.serial(running)
        count = 0
        for name, chain, key, text in self.bad_files():
            with self.subTest(name):
                count += 1
                self.write()
                written = self.config.read_text()
                old = f'certificate = "{self.chain}"\nkey = "{self.key}"'
                self.assertIn(old, written)
                self.config.write_text(
                    written.replace(old, f'certificate = "{chain}"\nkey = "{key}"')
                )
                status, lines = self.check()
                self.assertEqual((status, len(lines)), (2, 1), lines)
                self.assertIn(text, lines[0])
                expected = "its key" if name == "another key" else "a PEM file"
                self.assertIn(f"(expected: {expected}", lines[0])
                start = ["boost", "--origin", "http://a", "--listen", "tls://127.0.0.1:0"]
                done = subprocess.run(
                    [program(), *start, "--certificate", chain, "--key", key],
                    capture_output=True, text=True, timeout=60,
                )
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertIn("--key" if f"key {key}" in lines[0] else "--certificate", done.stderr)
                running.process.send_signal(signal.SIGHUP)
                self.wait_until(
                    "the reload is refused",
                    lambda: sum("reload refused" in line for line in running.lines) == count,
                )
                self.assertIn(text, [x for x in running.lines if "reload refused" in x][-1])
                self.assertEqual(self.serial(running), serial)
                self.config.write_text(written)

    def test_a_link_to_a_file_without_an_end(self):
        """Reading /proc/kmsg, a regular file by its type, would wait for the kernel."""
        link = self.folder / "kmsg"
        link.symlink_to("/proc/kmsg")
        try:
            os.close(os.open(link, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            self.skipTest(f"/proc/kmsg needs CAP_SYSLOG: {error}")
        self.write()
        self.config.write_text(self.config.read_text().replace(str(self.chain), str(link)))
        status, lines = self.check()
        self.assertEqual((status, len(lines)), (2, 1), lines)
        self.assertIn("kmsg: is not a regular file", lines[0])

    def test_a_certificate_without_its_key(self):
        """And the reverse: one line at check and at a reload, and the service goes on."""
        self.write()
        running, written = self.millrace("run", self.config), self.config.read_text()
        serial, refused = self.serial(running), 0
        for option, problem in [
            ("key", "1 certificate and 0 key"), ("certificate", "0 certificate and 1 key"),
        ]:
            lines = written.splitlines(keepends=True)
            self.config.write_text("".join(it for it in lines if not it.startswith(f"{option} =")))
            status, lines = self.check()
            self.assertEqual((status, len(lines)), (2, 1), lines)
            self.assertIn(f"{problem} (expected: as many keys as certificates", lines[0])
            running.process.send_signal(signal.SIGHUP)
            refused += 1
            self.wait_until(
                "the reload is refused",
                lambda: sum("reload refused" in line for line in running.lines) == refused,
            )
            self.assertIn(problem, [x for x in running.lines if "reload refused" in x][-1])
            self.assertEqual(self.serial(running), serial)

    def test_notes_about_certificates(self):
        """Reported at check and at start: a certificate that expires soon, one that lacks its
        issuer, one with a private root, and an RSA key."""
        middle = tls.Authority(self.folder, "middle", self.authority)
        alone, whole = middle.issue(f"DNS:{NAME}"), self.folder / "whole.pem"
        whole.write_bytes(alone[0].read_bytes() + middle.path.read_bytes())
        top = self.folder / "top.pem"
        top.write_bytes(whole.read_bytes() + self.authority.path.read_bytes())
        lacks = ' lacks its issuer "CN=interop {}", which is no authority of this system: clients'
        ends = (
            ' ends at "CN=interop authority", which is no authority of this system: clients need'
            " that root"
        )
        for (chain, key), expected in [
            (alone, [lacks.format("middle")]),
            ((whole, alone[1]), [ends]),
            ((top, alone[1]), []),
            (self.authority.issue(f"DNS:{NAME}", days=90), [lacks.format("authority")]),
            (self.with_issuer(days=90), []),
            (self.with_issuer(days=6), []),
            (self.with_issuer(since=stamp(-60), until=stamp(13)), [" expires in 12 days"]),
            (self.with_issuer(since=stamp(-60), until=stamp(16)), []),
            (self.with_issuer(since=stamp(-5), until=stamp(2)), [" expires in 47 hours"]),
            (self.with_issuer(kind="rsa"), [" has an RSA key"]),
        ]:
            with self.subTest(chain=chain, expected=expected):
                self.use((chain, key))
                self.write()
                status, lines = self.check()
                self.assertEqual(status, 0, lines)
                self.assertEqual(sum(f" for {NAME}: expires in " in line for line in lines), 1)
                running = self.millrace("run", self.config)
                for shown in (lines, running.lines):
                    found = [line for line in shown if f"certificate {self.chain} " in line]
                    found = [line for line in found if f" for {NAME}" not in line]
                    self.assertEqual(len(found), len(expected), shown)
                    for text in expected:
                        self.assertIn(text, found[0])
                running.stop()

    def test_a_certificate_without_a_host_is_noted(self):
        for name, noted in [("email:a@b.example", 1), ("IP:127.0.0.1", 0)]:
            self.use(self.authority.issue(name))
            self.write()
            status, lines = self.check()
            self.assertEqual(status, 0, lines)
            self.assertEqual(sum("names no host (subjectAltName)" in it for it in lines), noted)
            self.assertEqual(sum(f"{self.chain}: expires in " in it for it in lines), 1, lines)

    def test_a_missing_issuer_is_noted_at_a_reload(self):
        self.use(self.with_issuer())
        self.write()
        running = self.millrace("run", self.config)
        count = lambda: sum("lacks its issuer" in line for line in running.lines)
        self.assertEqual(count(), 0, running.lines)
        pair = self.authority.issue(f"DNS:{NAME}")
        self.use(pair)
        self.wait_until("it is noted", lambda: count() > 0)
        self.assertEqual(self.serial(running), self.serial_of(pair))

    def with_issuer(self, **how):
        """Issues a certificate. Returns the files (chain with the issuer, key)."""
        signed, key = self.authority.issue(f"DNS:{NAME}", **how)
        chain = signed.with_suffix(".chain")
        chain.write_bytes(signed.read_bytes() + self.authority.path.read_bytes())
        return chain, key

    def test_doctor_names_the_implementation(self):
        done = subprocess.run([program(), "doctor"], capture_output=True, text=True)
        self.assertRegex(done.stdout, r"ok +TLS records +(ring|aws-lc-rs)\n")


class Replaced(Case):
    def wait_for(self, proxy, pair):
        """Waits until new clients get a certificate."""
        expected = self.serial_of(pair)
        self.wait_until("the certificate is served", lambda: self.serial(proxy) == expected)

    def test_replaced_files_are_noticed(self):
        """Without a signal. A half-replaced pair is refused, and noticed when it is complete."""
        self.write()
        running = self.millrace("run", self.config)
        self.wait_for(running, self.pair)
        for _ in range(3):
            pair = self.authority.issue(f"DNS:{NAME}")
            self.use(pair)
            self.wait_for(running, pair)
        last = self.authority.issue(f"DNS:{NAME}")
        self.use((last[0], self.key))
        self.wait_until(
            "it is refused", lambda: any("is not the key of" in line for line in running.lines)
        )
        self.assertEqual(self.serial(running), self.serial_of(pair))
        self.use(last)
        self.wait_for(running, last)

    def test_replaced_files_are_noticed_after_another_refusal(self):
        """A mistake elsewhere in the configuration refuses the reload. When it is corrected, the
        certificate of that time is served without a signal."""
        self.write()
        written = self.config.read_text()
        running = self.millrace("run", self.config)
        for mistake, refusal in [('memory = "300M"', "memory"), ("no-such = 1", "no-such")]:
            with self.subTest(mistake):
                self.config.write_text(f"{mistake}\n{written}")
                pair = self.authority.issue(f"DNS:{NAME}")
                self.use(pair)
                self.wait_until(
                    "it is refused",
                    lambda: any(
                        "reload refused" in line and refusal in line for line in running.lines
                    ),
                )
                self.config.write_text(written)
                self.wait_for(running, pair)

    def test_a_command_line_reads_replaced_files_again(self):
        """Without a signal, and at SIGHUP. A bad certificate is refused, and the old one serves
        on. All of it works after root was given up, too."""
        for user in ("root", "nobody") if os.getuid() == 0 else ("root",):
            with self.subTest(user=user):
                owner = pwd.getpwnam(user).pw_uid if os.getuid() == 0 else -1
                self.use(self.pair, owner)
                running = self.millrace(
                    *["boost", "--origin", self.upstream.url, "--listen", "tls://127.0.0.1:0"],
                    *["--certificate", self.chain, "--key", self.key, "--user", user],
                    *["--limit", "certificate_check_ms=100"],
                )
                self.wait_for(running, self.pair)
                pair, other = (self.authority.issue(f"DNS:{NAME}") for _ in range(2))
                self.use(pair, owner)
                self.wait_for(running, pair)
                self.use((other[0], self.key), owner)
                refused = f"reload refused: --key {self.key}: is not the key of certificate"
                self.wait_until(
                    "it is refused", lambda: any(refused in line for line in running.lines)
                )
                self.assertEqual(self.serial(running), self.serial_of(pair))
                self.use(other, owner)
                self.wait_for(running, other)
                in_force = lambda: sum("is in force" in line for line in running.lines)
                before = in_force()
                running.process.send_signal(signal.SIGHUP)
                self.wait_until("it is reloaded", lambda: in_force() > before)
                self.assertEqual(self.serial(running), self.serial_of(other))
                self.assertEqual(running.stop(), 0)

    def test_a_listener_that_loses_tls_during_a_handshake(self):
        """The handshake ends, and the worker serves the other clients on."""
        self.write()
        written = "workers = 1\n" + self.config.read_text()
        self.config.write_text(written)
        running = self.millrace("run", self.config)

        def reload_in_the_hello(data):
            yield data[:9]
            # The only worker accepts this client after the first one.
            self.serial(running)
            files = f'certificate = "{self.chain}"\nkey = "{self.key}"\n'
            self.config.write_text(written.replace("tls://", "").replace(files, ""))
            running.process.send_signal(signal.SIGHUP)
            self.wait_until(
                "TLS is off", lambda: any("2 is in force" in line for line in running.lines)
            )
            yield data[9:]

        with self.assertRaises(OSError):
            self.connect(running, pieces=reload_in_the_hello)
        self.assertEqual(wire.get(running.address, "/bytes/5").status, 200)

    def test_200_reloads_under_load(self):
        """Clients on old and new connections see no failure, and each reload is applied."""
        self.write()
        running = self.millrace("run", self.config)
        pairs = [self.authority.issue(f"DNS:{NAME}") for _ in range(4)]
        failed, counts, ending = [], [], threading.Event()

        def load(is_kept):
            count, client = 0, None
            while not ending.is_set():
                try:
                    client = client or Connection(running.address, self.context)
                    client.get("/bytes/20000", extra="" if is_kept else "Connection: close\r\n")
                    if client.read_response().length != 20_000:
                        failed.append("another length")
                    if not is_kept:
                        client.close()
                        client = None
                    count += 1
                except (OSError, EOFError) as error:
                    failed.append(repr(error))
                    client = None
            counts.append(count)
            if client:
                client.close()

        threads = [threading.Thread(target=load, args=(kept,)) for kept in (True, False) * 2]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 201):
                self.use(pairs[number % 4])
                before = sum("is in force" in line for line in running.lines)
                running.process.send_signal(signal.SIGHUP)
                self.wait_until(
                    "the reload is applied",
                    lambda: sum("is in force" in line for line in running.lines) > before,
                )
            self.wait_for(running, pairs[200 % 4])
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])
        self.assertGreater(min(counts), 10)


class Permissions(Case):
    def setUp(self):
        super().setUp()
        if os.getuid() != 0:
            self.skipTest("only root has privileges to drop")

    def test_a_key_of_the_group_is_read_again(self):
        """The user of the service may read the key: a reload works after root was given up."""
        nobody = pwd.getpwnam("nobody")
        self.write(user="nobody")
        self.chain.chmod(0o644)
        self.key.chmod(0o640)
        os.chown(self.key, 0, nobody.pw_gid)
        self.assertEqual([x for x in self.check()[1] if "may not read" in x], [])
        running = self.millrace("run", self.config)
        running.process.send_signal(signal.SIGHUP)
        self.wait_until(
            "it is reloaded", lambda: any("2 is in force" in line for line in running.lines)
        )

    def test_files_of_root_are_unreadable_for_a_user(self):
        """One line at check and at start, which names the file."""
        self.write(user="nobody")
        self.config.chmod(0o644)
        for chain, key in [(0o644, 0o600), (0o600, 0o600)]:
            self.chain.chmod(chain)
            self.key.chmod(key)
            option, path = ("key", self.key) if chain == 0o644 else ("certificate", self.chain)
            for command in ("check", "run"):
                done = subprocess.run(
                    [program(), command, self.config], user="nobody", group="nogroup",
                    extra_groups=[], capture_output=True, text=True, timeout=60,
                )
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
                self.assertIn(f"{option} {path}: Permission denied", done.stderr)

    def test_a_key_of_root_is_reported(self):
        """At check, and at start; a reload is refused, and the old certificate serves on."""
        self.write(user="nobody")
        self.chain.chmod(0o644)
        text = f"may not read {self.key}, which a reload has to read"
        status, lines = self.check()
        self.assertEqual(status, 0, lines)
        self.assertEqual(sum(text in line for line in lines), 1, lines)
        running = self.millrace("run", self.config)
        self.assertEqual(sum(text in line for line in running.lines), 1, running.lines)
        running.process.send_signal(signal.SIGHUP)
        self.wait_until(
            "it is refused",
            lambda: any(f"key {self.key}: Permission denied" in x for x in running.lines),
        )
        self.assertEqual(self.serial(running), self.serial_of(self.pair))

    def test_unreachable_files_have_not_changed(self):
        """The user of the service may not enter the folder of the files: nothing is reloaded until
        it may, and until they are readable."""
        self.use(self.pair, pwd.getpwnam("nobody").pw_uid)
        self.write(user="nobody")
        self.config.chmod(0o644)
        self.folder.chmod(0o700)
        running = self.millrace("run", self.config)
        before = self.wake_ups(running)
        self.wait_until("several checks are done", lambda: self.wake_ups(running) > before + 4)
        self.assertEqual([x for x in running.lines if "have changed" in x or "refused" in x], [])
        self.folder.chmod(0o755)
        self.wait_until(
            "it is reloaded", lambda: any("2 is in force" in line for line in running.lines)
        )

    def wake_ups(self, proxy):
        """Returns how often the main thread has slept. While nothing else happens, it wakes up only
        to check the files."""
        status = pathlib.Path(f"/proc/{proxy.process.pid}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", status, re.MULTILINE)[1])

    def test_the_automatic_user_stays_root_for_it(self):
        self.write(user="auto")
        self.chain.chmod(0o644)
        self.assertEqual(sum("it stays root" in line for line in self.check()[1]), 1)
        running = self.millrace("run", self.config)
        running.process.send_signal(signal.SIGHUP)
        self.wait_until(
            "it is reloaded", lambda: any("2 is in force" in line for line in running.lines)
        )
