"""A single-page application as Vite builds it, by examples/single-page-app.toml, in headless
Chromium: deep links, its interface on another server, assets from the browser's cache, and a
missing asset."""

import json

from support import wire
from support.chromium import ChromiumCase

# As in the folder `dist` of `vite build`: names of assets contain a hash, other files do not.
FILES = {
    "index.html": """<!doctype html>
<html lang="en">
  <head>
    <meta charset="UTF-8" />
    <link rel="icon" type="image/svg+xml" href="/vite.svg" />
    <title>Items</title>
    <script type="module" crossorigin src="/assets/index-B4f0aZ1x.js"></script>
    <link rel="modulepreload" crossorigin href="/assets/vendor-Dq3_kL9s.js">
    <link rel="stylesheet" crossorigin href="/assets/index-C0ffee12.css">
  </head>
  <body><div id="app"></div></body>
</html>
""",
    "vite.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"></svg>',
    "assets/index-C0ffee12.css": (
        "#app { color: rgb(1, 2, 3) }\n" + ".filler { color: red }\n" * 200
    ),
    "assets/vendor-Dq3_kL9s.js": (
        "export const show = (text) => { document.querySelector('#app').textContent = text; };\n"
        + "// filler\n" * 2000
    ),
    "assets/about-Ab12Cd34.js": "export const text = 'about ' + location.pathname;\n",
    "assets/logo-D3adBeef.svg": (
        '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16"></svg>'
    ),
    "assets/index-B4f0aZ1x.js": """
import { show } from "./vendor-Dq3_kL9s.js";
const logo = document.body.appendChild(new Image());
logo.src = "/assets/logo-D3adBeef.svg";
async function route() {
  const path = location.pathname;
  if (path.startsWith("/about")) {
    show((await import("./about-Ab12Cd34.js")).text);
  } else if (path.startsWith("/items/")) {
    const made = await fetch("/api/items?from=app", {method: "POST", body: path});
    const item = await made.json();
    show(`item ${path} ${item.method} ${item.length}`);
  } else {
    show("start " + path);
  }
}
addEventListener("popstate", route);
window.go = (path) => { history.pushState({}, "", path); return route(); };
await Promise.all([route(), logo.decode()]);
window.isReady = true;
""",
}
ASSETS = {f"/{name}" for name in FILES if name.startswith("assets/")}


class SinglePageApp(ChromiumCase):
    def setUp(self):
        super().setUp()
        self.dist, self.api = self.site / "dist", self.origin()
        for name, text in FILES.items():
            path = self.dist / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.proxy = self.example(
            "single-page-app.toml",
            {"/srv/app/dist": self.dist, "http://127.0.0.1:3000": self.api.url},
        )

    def shown(self, page):
        """Returns the text of the application once it is complete."""
        page.wait("window.isReady")
        return page.evaluate("document.querySelector('#app').textContent")

    def records(self):
        """Ends millrace and returns the records of its log."""
        self.assertEqual(self.proxy.stop(), 0)
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def test_in_a_browser(self):
        page, url = self.drive(), self.proxy.url
        page.open(f"{url}/")
        self.assertEqual(self.shown(page), "start /")
        color = "getComputedStyle(document.querySelector('#app')).color"
        self.assertEqual(page.evaluate(color), "rgb(1, 2, 3)")
        page.evaluate("go('/about/us')")
        self.assertEqual(self.shown(page), "about /about/us")
        # The browser asks the server for paths that only the application has.
        page.reload()
        self.assertEqual(self.shown(page), "about /about/us")
        page.open(f"{url}/items/7?tab=2")
        self.assertEqual(self.shown(page), "item /items/7 POST 8")
        page.reload()
        self.assertEqual(self.shown(page), "item /items/7 POST 8")
        page.open("about:blank")
        page.open(f"{url}/")
        self.assertEqual(self.shown(page), "start /")
        loaded = "performance.getEntriesByType('resource')"
        loaded += ".filter(it => it.name.includes('/assets/'))"
        sizes = page.evaluate(f"{loaded}.map(it => it.transferSize)")
        self.assertEqual(sizes, [0] * 4, "each asset comes from the browser's cache")
        missing = "import('/assets/index-0ldHash0.js').then(() => 'loaded', () => 'failed')"
        self.assertEqual(page.evaluate(missing), "failed")
        calls = [(method, target) for method, target, _ in self.api.seen]
        self.assertEqual(calls, [("POST", "/api/items?from=app")] * 2)
        self.assertEqual(self.api.bodies, [b"/items/7"] * 2)
        self.check(self.records())

    def check(self, records):
        """Checks the records of the test: the assets were requested once each."""
        assets = [each for each in records if each["target"] in ASSETS]
        self.assertEqual(sorted(each["target"] for each in assets), sorted(ASSETS))
        for each in assets:
            self.assertEqual((each["status"], each["file"]), (200, f"{self.dist}{each['target']}"))
        pages = [each for each in records if each.get("file") == f"{self.dist}/index.html"]
        self.assertEqual(
            sorted(each["target"] for each in pages),
            ["/", "/", "/about/us", "/items/7?tab=2", "/items/7?tab=2"],
        )
        self.assertLessEqual({each["status"] for each in pages}, {200, 304})
        lost = [each for each in records if each["status"] not in (200, 304)]
        self.assertEqual(
            [(each["target"], each["status"]) for each in lost],
            [("/assets/index-0ldHash0.js", 404)],
        )
        api = [each for each in records if each["target"].startswith("/api/")]
        self.assertEqual({each["origin"] for each in api}, {f"127.0.0.1:{self.api.port}"})

    def test_header_fields(self):
        asset, lifetime = "/assets/index-B4f0aZ1x.js", "public, max-age=31536000, immutable"
        found = wire.get(self.proxy.address, asset)
        self.assertEqual(found.body.decode(), FILES[asset[1:]])
        self.assertEqual(found.fields["content-type"], "text/javascript; charset=utf-8")
        self.assertEqual(found.fields["cache-control"], lifetime)
        for target, status in (("/deep/link", 200), ("/vite.svg", 200), ("/assets/none.js", 404),
                               ("/assets/", 404)):
            found = wire.get(self.proxy.address, target)
            self.assertEqual(found.status, status, target)
            self.assertNotIn("immutable", found.fields.get("cache-control", ""), target)
            self.assertEqual(b"Items" in found.body, target == "/deep/link", target)
