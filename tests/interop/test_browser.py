"""Headless Chromium through `millrace forward`: a site with 50 resources, which the page hashes."""

import json
import os
import signal
import subprocess

from support import pattern
from support.case import InteropCase

RESOURCES = 50

# The page has images, style sheets and scripts, and also fetches all fifty resources. At the end it
# reports the hash of each resource and the number of loaded elements.
PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>fifty</title>%(elements)s</head><body><script>
const hex = (buffer) =>
  [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
async function one(name) {
  const response = await fetch(name, {cache: "no-store"});
  return [name, hex(await crypto.subtle.digest("SHA-256", await response.arrayBuffer()))];
}
const loaded = new Promise((done) => addEventListener("load", done));
(async () => {
  const hashes = Object.fromEntries(await Promise.all(%(names)s.map(one)));
  await loaded;
  const styles = document.styleSheets.length, scripts = window.ran || 0;
  const images = [...document.images].filter((image) => image.naturalWidth === 8).length;
  await fetch("%(report)s", {method: "POST", mode: "no-cors",
    body: JSON.stringify({hashes, styles, scripts, images})});
})();
</script>%(images)s</body></html>
"""

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-port=0",
    # Without it a browser goes to loopback addresses directly.
    "--proxy-bypass-list=<-loopback>",
]


class Chromium(InteropCase):
    programs = ("chromium",)

    def publish(self, report_url):
        """Writes the site and returns the hash of each resource."""
        hashes, elements, images = {}, [], []
        for number in range(RESOURCES):
            kind = ("svg", "css", "js", "bin", "json")[number % 5]
            name = f"resource-{number}.{kind}"
            if kind == "svg":
                size = 'xmlns="http://www.w3.org/2000/svg" width="8" height="8"'
                text = f"<svg {size}><!--{'x' * 500 * number}--></svg>"
                images.append(f'<img src="{name}">')
            elif kind == "css":
                text = f"p.c{number} {{ color: red }}\n" * (100 * number)
                elements.append(f'<link rel="stylesheet" href="{name}">')
            elif kind == "js":
                text = "window.ran = (window.ran || 0) + 1;\n" + "// padding\n" * (300 * number)
                elements.append(f'<script src="{name}"></script>')
            elif kind == "json":
                text = json.dumps(list(range(100 * number)))
            if kind == "bin":
                pattern.write(self.site / name, 37_000 * number + 1, seed=number)
            else:
                (self.site / name).write_text(text)
            hashes[name] = pattern.of_file(self.site / name)
        page = PAGE % {
            "elements": "".join(elements),
            "images": "".join(images),
            "names": json.dumps(sorted(hashes)),
            "report": report_url,
        }
        (self.site / "index.html").write_text(page)
        return hashes

    def browse(self, proxy, url):
        """Starts the browser in a session of its own, so that all of its processes can be ended."""
        output = open(self.folder / "chromium.log", "wb")
        browser = subprocess.Popen(
            ["chromium", *FLAGS, f"--proxy-server={proxy.url}",
             f"--user-data-dir={self.folder / 'profile'}", url],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=self.environment(), start_new_session=True,
        )

        def end():
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait(30)

        self.addCleanup(end)
        return browser

    def test_chromium_loads_fifty_resources(self):
        reports = self.origin()
        hashes = self.publish(f"{reports.url}/report")
        # Compressed responses are chunked; the others have a Content-Length.
        nginx = self.nginx(location="gzip on;", extra="location = / { rewrite ^ /index.html; }")
        proxy = self.forward()
        browser = self.browse(proxy, f"{nginx.url}/index.html")
        self.wait_until(
            "the page's report", lambda: reports.bodies or browser.poll() is not None, 180
        )
        log = (self.folder / "chromium.log").read_text(errors="replace")[-2000:]
        self.assertTrue(reports.bodies, f"the browser reported nothing: {log}")
        report = json.loads(reports.bodies[0])
        self.assertEqual(report["hashes"], hashes)
        kinds = RESOURCES // 5
        self.assertEqual(
            (report["images"], report["styles"], report["scripts"]), (kinds, kinds, kinds)
        )
        self.assert_all_through_the_proxy(nginx, RESOURCES + 1)
        self.assertIn("Via", reports.seen[-1][2])
