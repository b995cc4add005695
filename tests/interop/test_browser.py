"""Headless Chromium through `millrace forward`: a site with 50 resources, which the page hashes."""

import json

from support import pattern
from support.chromium import ChromiumCase
from support.secure import NAME

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

class Chromium(ChromiumCase):
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

    def load_through(self, url):
        """Loads a page with fifty resources by a proxy at `url`, and checks them."""
        reports = self.origin()
        hashes = self.publish(f"{reports.url}/report")
        # Compressed responses are chunked; the others have a Content-Length.
        nginx = self.nginx(location="gzip on;", extra="location = / { rewrite ^ /index.html; }")
        # Without the bypass list a browser goes to loopback addresses directly.
        browser = self.browse(
            f"{nginx.url}/index.html", f"--proxy-server={url}", "--proxy-bypass-list=<-loopback>"
        )
        report = self.report(browser, reports)
        self.assertEqual(report["hashes"], hashes)
        kinds = RESOURCES // 5
        self.assertEqual(
            (report["images"], report["styles"], report["scripts"]), (kinds, kinds, kinds)
        )
        self.assert_all_through_the_proxy(nginx, RESOURCES + 1)
        self.assertIn("Via", reports.seen[-1][2])

    def test_chromium_loads_fifty_resources(self):
        self.load_through(self.forward().url)

    def test_chromium_loads_them_by_a_proxy_with_tls(self):
        proxy = self.secure_forward()
        self.load_through(f"https://{NAME}:{proxy.address[1]}")
