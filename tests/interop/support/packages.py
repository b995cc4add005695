"""Small repositories for apt, pip, npm and cargo, generated locally because tests have no
network."""

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile

from . import pattern


def sha256(data):
    """Returns the SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def noise(length, seed):
    """Returns a body of noise as bytes."""
    return b"".join(pattern.blocks(length, seed))


def tarball(files):
    """A .tar.gz of {name: bytes}."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def apt_repository(site, scratch, count):
    """Creates `count` packages probe-0, probe-1, ... in site/apt. Each installs one file of noise.
    Returns {package: (file name, hash)}."""
    repository = site / "apt"
    repository.mkdir()
    installed, index = {}, []
    for number in range(count):
        name = f"probe-{number}"
        tree = scratch / name
        payload = noise(40_000 + 17_000 * number, number)
        (tree / "opt" / "probe").mkdir(parents=True)
        (tree / "opt" / "probe" / name).write_bytes(payload)
        (tree / "DEBIAN").mkdir()
        control = (
            f"Package: {name}\nVersion: 1.{number}\nArchitecture: all\nDescription: a probe\n"
            "Maintainer: the interop tests <interop@example.org>\n"
        )
        (tree / "DEBIAN" / "control").write_text(control)
        file = repository / f"{name}_1.{number}_all.deb"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", tree, file],
            check=True, capture_output=True,
        )
        data = file.read_bytes()
        index.append(
            f"{control}Filename: ./{file.name}\nSize: {len(data)}\nSHA256: {sha256(data)}\n"
        )
        installed[name] = (f"opt/probe/{name}", sha256(payload))
    packages = "\n".join(index).encode()
    (repository / "Packages").write_bytes(packages)
    (repository / "Packages.gz").write_bytes(gzip.compress(packages, mtime=0))
    lines = "".join(
        f" {sha256(data)} {len(data)} {name}\n"
        for name in ("Packages", "Packages.gz")
        for data in [(repository / name).read_bytes()]
    )
    (repository / "Release").write_text(f"Suite: probe\nAcquire-By-Hash: no\nSHA256:\n{lines}")
    return installed


def apt_configuration(folder, repository_url, proxy_url):
    """Writes an apt configuration in `folder` that uses no file of the system. Returns its path."""
    for part in (
        "state/lists/partial", "cache/archives/partial", "log", "parts", "root/var/lib/dpkg/info",
        "root/var/lib/dpkg/updates",
    ):
        (folder / part).mkdir(parents=True)
    for part in ("root/var/lib/dpkg/status", "root/var/lib/dpkg/available"):
        (folder / part).touch()
    (folder / "sources.list").write_text(f"deb [trusted=yes] {repository_url} ./\n")
    configuration = folder / "apt.conf"
    configuration.write_text(
        f"""Dir::State "{folder}/state";
Dir::State::status "{folder}/root/var/lib/dpkg/status";
Dir::Cache "{folder}/cache";
Dir::Log "{folder}/log";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "{folder}/parts";
Dir::Etc::parts "{folder}/parts";
Dir::Etc::preferencesparts "{folder}/parts";
Dir::Etc::trusted "{folder}/none";
Dir::Etc::trustedparts "{folder}/parts";
APT::Architecture "amd64";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "0";
Acquire::http::Proxy "{proxy_url}";
DPkg::Options {{ "--root={folder}/root"; "--log={folder}/log/dpkg"; "--force-not-root"; }};
DPkg::Path "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
"""
    )
    return configuration


def python_index(site, name, payload):
    """Creates a simple index in site/simple with one wheel. Returns its (file name, hash)."""
    info = f"{name}-1.0.dist-info"
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{name}/data.bin", payload)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    file = f"{name}-1.0-py3-none-any.whl"
    folder = site / "simple" / name
    folder.mkdir(parents=True)
    (folder / file).write_bytes(wheel.getvalue())
    digest = sha256(wheel.getvalue())
    (folder / "index.html").write_text(
        f'<!DOCTYPE html><html><body><a href="{file}#sha256={digest}">{file}</a></body></html>'
    )
    return file, digest


def npm_registry(site, url, name, payload):
    """Creates a registry at `url` with one package of one version. Returns the tarball's hash."""
    manifest = {"name": name, "version": "1.0.0"}
    archive = tarball(
        {"package/package.json": json.dumps(manifest).encode(), "package/data.bin": payload}
    )
    (site / "tarballs").mkdir()
    (site / "tarballs" / f"{name}-1.0.0.tgz").write_bytes(archive)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    manifest["dist"] = {
        "tarball": f"{url}/tarballs/{name}-1.0.0.tgz",
        "shasum": hashlib.sha1(archive).hexdigest(),
        "integrity": integrity,
    }
    packument = {
        "name": name,
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": manifest},
    }
    (site / name).write_text(json.dumps(packument))
    return sha256(archive)


def cargo_registry(site, url, name, payload):
    """Creates a sparse registry at `url`/index with one crate. Returns the crate file's hash."""
    manifest = f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = tarball(
        {
            f"{name}-1.0.0/Cargo.toml": manifest.encode(),
            f"{name}-1.0.0/src/lib.rs": b"",
            f"{name}-1.0.0/data.bin": payload,
        }
    )
    (site / "crates").mkdir()
    (site / "crates" / f"{name}-1.0.0.crate").write_bytes(crate)
    record = {
        "name": name, "vers": "1.0.0", "deps": [], "cksum": sha256(crate), "features": {},
        "yanked": False,
    }
    entry = site / "index" / name[:2] / name[2:4] / name
    entry.parent.mkdir(parents=True)
    entry.write_text(json.dumps(record) + "\n")
    (site / "index" / "config.json").write_text(
        json.dumps({"dl": url + "/crates/{crate}-{version}.crate"})
    )
    return sha256(crate)


def cargo_project(folder, name, registry_url, proxy):
    """Creates a project that depends on the crate, and a cargo home that configures the registry
    and the proxy (HOST:PORT). Returns (project, home)."""
    project, home = folder / "project", folder / "cargo-home"
    (project / "src").mkdir(parents=True)
    home.mkdir()
    (project / "src" / "lib.rs").touch()
    (project / "Cargo.toml").write_text(
        f'[package]\nname = "user"\nversion = "0.1.0"\nedition = "2021"\n\n'
        f'[dependencies]\n{name} = {{ version = "1", registry = "probe" }}\n'
    )
    (home / "config.toml").write_text(
        f'[registries.probe]\nindex = "sparse+{registry_url}/index/"\n[http]\nproxy = "{proxy}"\n'
    )
    return project, home


def git_repository(folder, environment):
    """Creates a bare repository with a few commits and 6 MiB of noise. Returns (path, hash of its
    head)."""
    work, bare = folder / "work", folder / "repositories" / "probe.git"
    bare.parent.mkdir(parents=True)

    def git(*arguments, where=work):
        author = ["-c", "user.name=interop", "-c", "user.email=interop@example.org"]
        return subprocess.run(
            ["git", *author, *arguments], cwd=where, env=environment, check=True,
            capture_output=True, text=True,
        ).stdout.strip()

    work.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    for number in range(3):
        (work / f"file-{number}").write_bytes(noise(2 << 20, number))
        git("add", ".")
        git("commit", "--quiet", "--message", f"commit {number}")
    git("clone", "--quiet", "--bare", os.fspath(work), os.fspath(bare), where=folder)
    git("config", "http.receivepack", "true", where=bare)
    git("update-server-info", where=bare)
    return bare, git("rev-parse", "HEAD")
