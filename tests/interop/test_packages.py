"""Package managers and git through `millrace forward`: they fetch the published files."""

import subprocess
import sys

from support import packages, pattern
from support.case import InteropCase


class Apt(InteropCase):
    programs = ("apt-get", "dpkg-deb")

    def test_apt_updates_and_installs(self):
        """apt pipelines its requests. It installs 20 packages of 40 to 360 kB into a separate
        root."""
        published = packages.apt_repository(self.site, self.folder / "build", 20)
        nginx, proxy = self.nginx(), self.forward()
        where = self.folder / "apt"
        configuration = packages.apt_configuration(where, f"{nginx.url}/apt/", proxy.url)
        environment = self.environment(
            APT_CONFIG=str(configuration), DEBIAN_FRONTEND="noninteractive"
        )
        self.run_client("apt-get", "-q", "update", environment=environment)
        names = sorted(published)
        self.run_client(
            "apt-get", "-q", "-y", "--download-only", "install", *names, environment=environment
        )
        fetched = {file.name: pattern.of_file(file) for file in where.glob("cache/archives/*.deb")}
        stored = {file.name: pattern.of_file(file) for file in self.site.glob("apt/*.deb")}
        self.assertEqual(fetched, stored)
        self.run_client("apt-get", "-q", "-y", "install", *names, environment=environment)
        for file, digest in published.values():
            self.assertEqual(pattern.of_file(where / "root" / file), digest)
        self.assert_all_through_the_proxy(nginx, 22)


class Pip(InteropCase):
    def test_pip_downloads(self):
        payload = packages.noise(3 << 20, 5)
        file, digest = packages.python_index(self.site, "millraceprobe", payload)
        nginx, proxy = self.nginx(location="index index.html;"), self.forward()
        self.run_client(
            *[sys.executable, "-m", "pip", "--proxy", proxy.url, "download", "--no-cache-dir"],
            *["--no-deps", "--disable-pip-version-check", "--index-url", f"{nginx.url}/simple"],
            *["--dest", self.folder / "got", "millraceprobe"],
            environment=self.environment(PIP_CONFIG_FILE="/dev/null"),
        )
        self.assertEqual(pattern.of_file(self.folder / "got" / file), digest)
        self.assert_all_through_the_proxy(nginx, 2)


class Npm(InteropCase):
    programs = ("npm",)

    def test_npm_packs(self):
        nginx, proxy = self.nginx(location="default_type application/json;"), self.forward()
        payload = packages.noise(2 << 20, 6)
        digest = packages.npm_registry(self.site, nginx.url, "millraceprobe", payload)
        got = self.folder / "got"
        got.mkdir()
        self.run_client(
            *["npm", "pack", "millraceprobe", "--registry", nginx.url, "--proxy", proxy.url],
            *["--noproxy", "", "--cache", self.folder / "npm-cache", "--fetch-retries", "0"],
            *["--no-update-notifier", "--no-audit"],
            cwd=got,
        )
        self.assertEqual(pattern.of_file(got / "millraceprobe-1.0.0.tgz"), digest)
        self.assert_all_through_the_proxy(nginx, 2)


class Cargo(InteropCase):
    programs = ("cargo",)

    def test_cargo_fetches(self):
        nginx, proxy = self.nginx(), self.forward()
        payload = packages.noise(2 << 20, 7)
        name = "millrace-probe"
        digest = packages.cargo_registry(self.site, nginx.url, name, payload)
        project, home = packages.cargo_project(
            self.folder, name, nginx.url, proxy.url.removeprefix("http://")
        )
        environment = self.environment(CARGO_HOME=str(home))
        environment.setdefault("RUSTUP_HOME", self.rustup_home())
        self.run_client("cargo", "fetch", environment=environment, cwd=project)
        (crate,) = home.glob(f"registry/cache/*/{name}-1.0.0.crate")
        self.assertEqual(pattern.of_file(crate), digest)
        self.assert_all_through_the_proxy(nginx, 3)

    def rustup_home(self):
        """Returns the folder of the toolchains, because the test changes HOME."""
        found = subprocess.run(["rustup", "show", "home"], capture_output=True, text=True)
        return found.stdout.strip() if found.returncode == 0 else ""


class Git(InteropCase):
    programs = ("git",)

    def setUp(self):
        super().setUp()
        self.git_environment = self.environment(GIT_CONFIG_NOSYSTEM="1", GIT_TERMINAL_PROMPT="0")
        self.bare, self.head = packages.git_repository(self.folder, self.git_environment)

    def git(self, proxy, *arguments, where=None):
        """Runs git with the proxy. A small post buffer makes it push in chunks."""
        options = ["-c", f"http.proxy={proxy.url}", "-c", "http.postBuffer=65536"]
        identity = ["-c", "user.name=interop", "-c", "user.email=interop@example.org"]
        done = self.run_client(
            "git", *options, *identity, *arguments,
            environment=self.git_environment, cwd=where or self.folder,
        )
        return done.stdout.decode().strip()

    def check_clone(self, proxy, url):
        """Clones, and checks the head and every object of the copy."""
        copy = self.folder / "copy"
        self.git(proxy, "clone", "--quiet", url, copy)
        self.assertEqual(self.git(proxy, "rev-parse", "HEAD", where=copy), self.head)
        self.git(proxy, "fsck", "--full", "--strict", where=copy)
        return copy

    def test_git_clones_plain_files(self):
        """The "dumb" protocol: loose objects and packs as files."""
        self.site = self.bare.parent
        nginx, proxy = self.nginx(), self.forward()
        self.check_clone(proxy, f"{nginx.url}/probe.git")
        self.assert_all_through_the_proxy(nginx, 3)

    def test_git_clones_and_pushes(self):
        """The "smart" protocol: responses that end with the connection, and a chunked upload."""
        origin, proxy = self.origin(repositories=self.bare.parent), self.forward()
        copy = self.check_clone(proxy, f"{origin.url}/git/probe.git")
        (copy / "more").write_bytes(packages.noise(5 << 20, 9))
        self.git(proxy, "add", ".", where=copy)
        self.git(proxy, "commit", "--quiet", "--message", "more", where=copy)
        self.git(proxy, "push", "--quiet", "origin", "main", where=copy)
        pushed = self.git(proxy, "rev-parse", "main", where=self.bare)
        self.assertEqual(pushed, self.git(proxy, "rev-parse", "HEAD", where=copy))
        self.git(proxy, "fsck", "--full", "--strict", where=self.bare)
        for _, _, fields in origin.seen:
            self.assertIn("Via", fields)
