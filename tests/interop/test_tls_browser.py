"""Headless Chromium at a tls:// listener, with each version: downloads, an upload, a WebSocket and
resumed sessions; and through a forward proxy with TLS to pages with TLS."""

import hashlib
import json
import re

from support import pattern, websocket
from support.chromium import ChromiumCase
from support.secure import NAME

ROUTES = """
access-log = "{log}"
log-format = "json"
[[boost]]
listen = "tls://127.0.0.1:0"
certificate = "{certificate}"
key = "{key}"
[[boost.route]]
path = "/echo"
origins = "{echo}"
[[boost.route]]
path = "/page/"
origins = "{pages}"
[[boost.route]]
origins = "{reports}"
"""

PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>secure</title></head><body><script>
const lengths = %s, messages = %s;
async function hash(data) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
async function fetched(length) {
  const response = await fetch(`/bytes/${length}`, {cache: "no-store"});
  return response.arrayBuffer();
}
function echoed() {
  return new Promise((done, failed) => {
    const socket = new WebSocket(`wss://${location.host}/echo`), got = [];
    socket.binaryType = "arraybuffer";
    socket.onopen = () => messages.forEach((size) => socket.send(new Uint8Array(size).fill(7)));
    socket.onmessage = (event) => {
      const bytes = new Uint8Array(event.data);
      got.push(bytes.every((byte) => byte === 7) ? bytes.length : -1);
      if (got.length === messages.length) socket.close(1000);
    };
    socket.onclose = (event) => done({got, code: event.code});
    socket.onerror = () => failed(new Error("the WebSocket failed"));
  });
}
(async () => {
  let report;
  try {
    const bodies = await Promise.all(lengths.map(fetched));
    const sent = await fetch("/upload", {method: "PUT", body: bodies.at(-1)});
    report = {hashes: await Promise.all(bodies.map(hash)), upload: (await sent.json()).sha256,
      echo: await echoed()};
  } catch (error) {
    report = {error: String(error)};
  }
  await fetch("/report", {method: "POST", body: JSON.stringify(report)});
})();
</script></body></html>
"""
# Groups by their numbers (IANA).
X25519, X25519MLKEM768 = 29, 4588
LENGTHS = [0, 1, 16383, 16384, 16385, 100_000, 1_000_000, 3_000_000, 20_000_000]
MESSAGES = [0, 1, 125, 126, 16_384, 70_000, 1_000_000]


def digest(length):
    """Returns the hash of the body of `/bytes/LENGTH`."""
    whole = hashlib.sha256()
    for block in pattern.blocks(length):
        whole.update(block)
    return whole.hexdigest()


class Secure(ChromiumCase):
    def setUp(self):
        super().setUp()
        self.reports, echo = self.origin(), websocket.EchoOrigin()
        self.addCleanup(echo.stop)
        page = self.site / "page"
        page.mkdir()
        (page / "index.html").write_text(PAGE % (json.dumps(LENGTHS), json.dumps(MESSAGES)))
        settings, self.log = self.folder / "millrace.toml", self.folder / "log"
        settings.write_text(
            ROUTES.format(
                log=self.log, certificate=self.pair[0], key=self.pair[1], echo=echo.url,
                pages=self.nginx().url, reports=self.reports.url,
            )
        )
        self.proxy = self.millrace("run", settings)

    def load(self, host, *flags):
        """Loads the page and checks its report."""
        url = f"https://{host}:{self.proxy.address[1]}/page/index.html"
        self.browser = self.browse(url, *flags)
        report = self.report(self.browser, self.reports)
        self.assertNotIn("error", report)
        self.assertEqual(report["hashes"], [digest(length) for length in LENGTHS])
        self.assertEqual(report["upload"], digest(LENGTHS[-1]))
        self.assertEqual(report["echo"], {"got": MESSAGES, "code": 1000})

    def handshakes(self):
        """Returns the (version, group, whether it was resumed) of the browser's connections so
        far."""
        found = []
        for event in (self.folder / "events").read_text(errors="replace").splitlines():
            if group := re.search(r'"key_exchange_group":(\d+)', event):
                version = re.search(r'"version":"([^"]+)"', event)[1]
                found.append((version, int(group[1]), '"is_resumed":true' in event))
        return found

    def records(self, proxy, log):
        """Ends a proxy and returns the records of its log."""
        self.assertEqual(proxy.stop(), 0)
        return [json.loads(line) for line in log.read_text().splitlines()]

    def check_version(self, version, group, *flags):
        """The first connection has a full handshake, and later ones resume its session."""
        self.load(NAME, *flags)
        self.wait_until(
            "a resumed session", lambda: (f"TLS {version}", group, True) in self.handshakes()
        )
        found = self.handshakes()
        self.assertEqual({each[:2] for each in found}, {(f"TLS {version}", group)})
        self.assertFalse(found[0][2])
        records = self.records(self.proxy, self.log)
        self.assertEqual({each["tls_version"] for each in records}, {f"TLSv{version}"})
        # The browser may use a later connection for its first request, and the first one for none.
        self.assertIn(True, {each["resumed"] for each in records})

    def test_tls_1_2(self):
        self.check_version("1.2", X25519, "--ssl-version-max=tls1.2")

    def test_tls_1_3(self):
        self.check_version("1.3", X25519MLKEM768)

    def test_by_a_proxy_with_tls(self):
        """Tunnels with TLS in TLS, one of them for the WebSocket."""
        log = self.folder / "tunnels"
        proxy = self.secure_forward("--access-log", log, "--log-format", "json")
        self.load(
            "localhost", f"--proxy-server=https://{NAME}:{proxy.address[1]}",
            # Without it a browser goes to loopback addresses directly.
            "--proxy-bypass-list=<-loopback>",
        )
        # Its tunnels would delay the ends of the proxies.
        self.end(self.browser)
        inner, tunnels = self.records(self.proxy, self.log), self.records(proxy, log)
        target = f"localhost:{self.proxy.address[1]}"
        # The browser may end while it opens a connection in advance.
        ended = (None, "client-closed")
        tunnels = [
            each for each in tunnels
            if each["target"] == target and (each["status"], each["reason"]) != ended
        ]
        self.assertEqual({(each["method"], each["status"]) for each in tunnels}, {("CONNECT", 200)})
        inner = [each for each in inner if each.get("method")]
        self.assertEqual({each["tls_version"] for each in inner + tunnels}, {"TLSv1.3"})
        self.assertEqual(len([each for each in inner if each["status"] == 101]), 1)
