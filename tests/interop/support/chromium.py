"""Headless Chromium, which trusts the certificate of a test by its key."""

import json
import os
import signal
import subprocess

from . import devtools, tls
from .secure import NAME, SecureCase

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-port=0",
    f"--host-resolver-rules=MAP {NAME} 127.0.0.1",
]


class ChromiumCase(SecureCase):
    """Tests with pages that report to an `Origin`."""

    programs = ("chromium",)

    def browse(self, url, *flags):
        """Starts the browser in a session of its own, so that all of its processes can be ended."""
        trust = f"--ignore-certificate-errors-spki-list={tls.key_digest(self.pair[0])}"
        output = open(self.folder / "chromium.log", "wb")
        browser = subprocess.Popen(
            ["chromium", *FLAGS, trust, f"--user-data-dir={self.folder / 'profile'}",
             f"--log-net-log={self.folder / 'events'}", *flags, url],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=self.environment(), start_new_session=True,
        )
        output.close()
        self.addCleanup(self.end, browser)
        return browser

    def drive(self):
        """Starts the browser with an empty page, which the test drives. No name has an address, so
        that the browser only finds servers of the test."""
        hosts = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        browser = self.browse("about:blank", hosts)
        found = self.folder / "profile" / "DevToolsActivePort"

        def lines():
            return found.read_text().split() if found.exists() else []

        self.wait_until(
            "the browser listens", lambda: len(lines()) == 2 or browser.poll() is not None
        )
        self.assertIsNone(browser.poll(), (self.folder / "chromium.log").read_text()[-2000:])
        port, path = lines()
        page = devtools.Page(("127.0.0.1", int(port)), path)
        self.addCleanup(page.close)
        return page

    def end(self, browser):
        """Kills all processes of the browser."""
        if browser.returncode is None:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait(30)

    def report(self, browser, reports):
        """Waits until the page has sent its report, a JSON object, and returns it."""

        def received():
            return [body for body in reports.bodies if body.startswith(b"{")]

        self.wait_until(
            "the page's report", lambda: received() or browser.poll() is not None, 180
        )
        log = (self.folder / "chromium.log").read_text(errors="replace")[-2000:]
        self.assertTrue(received(), f"the browser reported nothing: {log}")
        return json.loads(received()[0])
