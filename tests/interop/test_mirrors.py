"""pip, npm, cargo and apt through the mirrors of docs/mirror.md: `millrace boost` with TLS on both
sides. The origin is the registry that the client itself is configured to use on this machine.

Each client runs twice with empty caches of its own. Skips if the machine has no registry.
"""

import glob
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import urllib.parse

from support import packages
from support.ports import free_port
from support.secure import SecureCase

# Small packages that change rarely.
PYTHON, NODE, RUST = "six", "is-number", "itoa"


OWN_CONFIG = """
access-log = "{log}"
log-format = "json"
[[boost]]
listen = "tls://{address}"
certificate = "{certificate}"
key = "{key}"
cache-ttl = "default 5m"
[[boost.route]]
path = "/config.json"
origins = "{site}"
[[boost.route]]
path = "{path}/"
origins = "{files}"
host-header = "origin"
[[boost.route]]
origins = "{index}"
host-header = "origin"
"""


class MirrorCase(SecureCase):
    def setUp(self):
        super().setUp()
        # Files that go past the mirror come from servers with certificates of the system.
        self.roots = self.folder / "roots.pem"
        system = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
        self.roots.write_text(pathlib.Path(system).read_text() + self.authority.path.read_text())
        self.log = self.folder / "log"

    def require(self, url):
        """Returns the URL of a registry without its last slash. Skips if it cannot be reached."""
        parts = urllib.parse.urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), 10).close()
        except OSError as error:
            self.skipTest(f"unsupported: the registry cannot be reached ({error})")
        return url.rstrip("/")

    def mirror(self, registry, *options):
        """Starts a mirror of a registry and returns (millrace, its URL for the client)."""
        parts = urllib.parse.urlsplit(registry)
        proxy = self.secure_boost(
            f"{parts.scheme}://{parts.netloc}", "--host-header", "origin",
            "--access-log", self.log, "--log-format", "json", *options,
        )
        return proxy, f"https://localhost:{proxy.address[1]}{parts.path}"

    def results(self, proxy):
        """Ends the proxy. Returns the results of the cache for each path, in their order."""
        self.assertEqual(proxy.stop(), 0)
        results = {}
        for line in self.log.read_text().splitlines():
            record = json.loads(line)
            self.assertEqual(record["status"], 200, record)
            results.setdefault(record["target"], []).append(record["cache"])
        return results

    def check_hits(self, results, pattern):
        """Checks that paths that match a pattern were requested, and are hits from the second
        request on."""
        found = [each for path, each in results.items() if re.search(pattern, path)]
        self.assertTrue(found, results)
        for each in found:
            self.assertGreaterEqual(len(each), 2, results)
            self.assertEqual(set(each[1:]), {"hit"}, results)


class Pip(MirrorCase):
    def test_the_index_is_cached(self):
        words = [sys.executable, "-c", "from pip._internal.models.index import PyPI as it\n"
                 "print(it.simple_url)"]
        shown = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
            capture_output=True, text=True,
        )
        if shown.returncode:
            shown = subprocess.run(words, capture_output=True, text=True, check=True)
        registry = self.require(shown.stdout.strip())
        proxy, url = self.mirror(
            registry, "--cache-ttl", "default 5m", "--cache-request-directives", "off"
        )
        for turn in range(2):
            self.run_client(
                sys.executable, "-m", "pip", "download", "--no-cache-dir", "--no-deps",
                "--disable-pip-version-check", "--index-url", url, "--cert", self.roots,
                "--dest", self.folder / f"got-{turn}", PYTHON,
                environment=self.environment(PIP_CONFIG_FILE="/dev/null"),
            )
            self.assertEqual(len(list((self.folder / f"got-{turn}").iterdir())), 1)
        self.check_hits(self.results(proxy), f"/{PYTHON}/$")


class Npm(MirrorCase):
    programs = ("npm",)

    def test_packages_are_cached(self):
        shown = subprocess.run(["npm", "config", "get", "registry"], capture_output=True, text=True)
        registry = self.require(shown.stdout.strip())
        proxy, url = self.mirror(registry, "--cache-ttl", "default 5m")
        for turn in range(2):
            got = self.folder / f"got-{turn}"
            got.mkdir()
            self.run_client(
                "npm", "pack", NODE, "--registry", url, "--replace-registry-host", "always",
                "--cafile", self.roots, "--cache", self.folder / f"cache-{turn}",
                "--no-update-notifier", "--no-audit",
                cwd=got,
            )
        results = self.results(proxy)
        self.check_hits(results, rf"/{NODE}$")
        self.check_hits(results, r"\.tgz$")


class Cargo(MirrorCase):
    programs = ("cargo",)

    def registry(self):
        """Returns the URL of the sparse index, of which cargo keeps a folder with its host."""
        home = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo")
        for settings in home.glob("registry/index/*/config.json"):
            host = settings.parent.name.rpartition("-")[0]
            return self.require(f"https://{host}"), json.loads(settings.read_text())["dl"]
        self.skipTest("unsupported: cargo has used no sparse index on this machine")

    def fetch(self, url):
        """Fetches a crate twice, with a home of cargo that has the mirror."""
        project = self.folder / "project"
        (project / "src").mkdir(parents=True)
        (project / "src" / "lib.rs").touch()
        (project / "Cargo.toml").write_text(
            f'[package]\nname = "user"\nversion = "0.1.0"\n\n[dependencies]\n{RUST} = "1"\n'
        )
        found = subprocess.run(["rustup", "show", "home"], capture_output=True, text=True)
        for turn in range(2):
            home = self.folder / f"home-{turn}"
            home.mkdir()
            (home / "config.toml").write_text(
                f'[source.crates-io]\nreplace-with = "mirror"\n'
                f'[source.mirror]\nregistry = "sparse+{url}/"\n[http]\ncainfo = "{self.roots}"\n'
            )
            environment = self.environment(CARGO_HOME=str(home))
            environment.setdefault("RUSTUP_HOME", found.stdout.strip())
            self.run_client("cargo", "fetch", environment=environment, cwd=project)
            self.assertEqual(len(list(home.glob(f"registry/cache/*/{RUST}-*.crate"))), 1)
            (project / "Cargo.lock").unlink()

    def test_the_index_is_cached(self):
        index, _ = self.registry()
        proxy, url = self.mirror(index, "--cache-ttl", "default 5m")
        self.fetch(url)
        results = self.results(proxy)
        self.check_hits(results, r"^/config\.json$")
        self.check_hits(results, f"/{RUST}$")

    def test_crates_are_cached_with_an_own_config(self):
        """A route has its own config.json, by which crates are downloaded from the mirror too."""
        index, files = self.registry()
        files = urllib.parse.urlsplit(files)
        address = f"localhost:{free_port()}"
        (self.site / "config.json").write_text(
            json.dumps({"dl": f"https://{address}{files.path}"})
        )
        settings = self.folder / "millrace.toml"
        settings.write_text(
            OWN_CONFIG.format(
                log=self.log, address=address, certificate=self.pair[0], key=self.pair[1],
                site=self.nginx().url, path=files.path, files=f"{files.scheme}://{files.netloc}",
                index=index,
            )
        )
        proxy = self.millrace("run", settings)
        self.fetch(f"https://{address}")
        results = self.results(proxy)
        self.check_hits(results, f"/{RUST}$")
        self.check_hits(results, "^" + re.escape(files.path) + f".*{RUST}")


class Apt(MirrorCase):
    programs = ("apt-get",)

    def target(self):
        """Returns the (URL, suite, component) of the smallest index that the machine has."""
        shown = subprocess.run(
            ["apt-get", "indextargets", "--format",
             "$(FILENAME)|$(SITE)|$(RELEASE)|$(COMPONENT)", "Identifier: Packages"],
            capture_output=True, text=True,
        )
        found = [line.split("|") for line in shown.stdout.splitlines()]
        present = [each for each in found if os.path.exists(each[0])]
        if not present:
            self.skipTest("unsupported: this machine has no index of apt")
        return min(present, key=lambda each: os.path.getsize(each[0]))[1:]

    def configure(self, folder, url, suite, component):
        """Writes a configuration with one signed source. Returns its path."""
        configuration = packages.apt_configuration(folder, url, "DIRECT")
        keys = ",".join(glob.glob("/usr/share/keyrings/*-archive-keyring.gpg"))
        (folder / "sources.list").write_text(f"deb [signed-by={keys}] {url} {suite} {component}\n")
        with open(configuration, "a") as opened:
            opened.write(f'Acquire::https::CaInfo "{self.roots}";\n')
        return configuration

    def smallest(self, environment):
        """Returns the name of the smallest package."""
        shown = self.run_client("apt-cache", "dumpavail", environment=environment).stdout.decode()
        sizes = re.findall(r"(?ms)^Package: (\S+)$.*?^Size: (\d+)$", shown)
        return min(sizes, key=lambda each: int(each[1]))[0]

    def test_packages_are_cached(self):
        registry, suite, component = self.target()
        proxy, url = self.mirror(self.require(registry), "--cache-ttl", "default 1h")
        for turn in range(2):
            folder = self.folder / f"apt-{turn}"
            configuration = self.configure(folder, url, suite, component)
            environment = self.environment(APT_CONFIG=str(configuration))
            self.run_client("apt-get", "-q", "update", environment=environment)
            name = self.smallest(environment)
            self.run_client("apt-get", "-q", "download", name, environment=environment, cwd=folder)
            self.assertEqual(len(list(folder.glob("*.deb"))), 1)
        results = self.results(proxy)
        self.check_hits(results, r"\.deb$")
        # apt requests validation of it, so that it never gets an old one.
        (release,) = [each for path, each in results.items() if path.endswith("/InRelease")]
        self.assertNotIn("hit", release)
