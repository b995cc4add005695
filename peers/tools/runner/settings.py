"""Where the runner keeps its files, which ports it uses, and its limits.

The environment is read when this module is imported: a program that changes PB_WORK or PB_PORT
does so before.
"""
import glob
import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass

PEERS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORK = os.environ.get("PB_WORK", "/dev/shm/pb")
LOCK = os.environ.get("PB_LOCK", tempfile.gettempdir() + "/bench.lock")
PORT = int(os.environ.get("PB_PORT", "19000"))
# Seconds after which the lock is released between windows, so that other programs get their turn.
HOLD = float(os.environ.get("PB_HOLD", "40"))
# The certificate of an own authority, its key, both in one file, and the authority.
CERT, KEY, PEM, CA = (f"{WORK}/{name}.pem" for name in ("cert", "key", "both", "ca"))
SERVER_NAME = "bench.test"  # of the certificate, which is also for localhost and 127.0.0.1
TLS_PORT = PORT + 1  # of the origin over TLS
FILES = WORK + "/files"
SCRIPTS = WORK + "/scripts"  # of PHP
PROGRAMS = WORK + "/programs"  # sockets of the programs behind FastCGI
# On a disk, unlike the others: files that are read while they are not in the page cache.
COLD = os.environ.get("PB_DISK", tempfile.gettempdir() + "/pb-disk") + "/cold"
SIZES = {"1k": 1024, "8k": 8192, "64k": 65536, "1m": 1 << 20, "64m": 64 << 20}
# Those of tools/servers.py.
SIZES |= {"512": 512, "2k": 2048, "4k": 4096, "16k": 16384, "32k": 32768, "128k": 131072,
          "200k": 204800}


def sources_hash():
    """Returns a hash of the tools' sources, so that two trees never share built tools."""
    names = sorted(glob.glob(PEERS + "/tools/*.[ch]")) + [PEERS + "/tools/build.sh"]
    names += sorted(glob.glob(PEERS + "/tools/tls/**/*.rs", recursive=True))
    names += [PEERS + "/tools/tls/Cargo.toml", PEERS + "/tools/tls/Cargo.lock"]
    digest = hashlib.sha256()
    for name in names:
        with open(name, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:12]


BIN = os.environ.get("PB_BIN", f"{WORK}/bin-{sources_hash()}")


@dataclass
class Options:
    """How often, how long and how heavily a case is measured."""

    reps: int = 5
    secs: float = 1.0  # seconds of a window
    conns: int = 64  # connections of the client
    idle: int = 10000  # connections of the cases many-connections-*
    rate: float = 0.0  # requests per second in the modes fixed-rate-*; 0: by size
    maxforeign: float = 0.06  # a window is repeated if other programs used more of a core
    tries: int = 3  # windows at most, of which the last one counts
    restart: bool = False  # start a peer anew for each window
    # The client in another network namespace, by its file, and the peers' address from there.
    client_network: str = ""
    peer_address: str = "127.0.0.1"


def prepare(tls=False, fastcgi=False, copy_free=False):
    """Builds the tools, also those of TLS, FastCGI and copy-free programs, and makes certificates,
    unless they exist."""
    os.makedirs(FILES + "/c", exist_ok=True)
    more = ["tls"] * tls + ["fastcgi"] * fastcgi
    tools = ["/pbload"] + ["/pbtls-load"] * tls + ["/pbfcgi"] * fastcgi
    if not all(os.path.exists(BIN + tool) for tool in tools):
        subprocess.check_call([PEERS + "/tools/build.sh", BIN, *more])
    if copy_free:  # always, because it contains libiolite
        subprocess.check_call([PEERS + "/tools/build.sh", BIN, "iolite"])
    if not all(map(os.path.exists, (CERT, KEY, PEM, CA))):
        make_certificate()


def make_certificate():
    """Makes an authority and a certificate of it, both with P-256 keys."""
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

    def openssl(*words):
        subprocess.run(["openssl", "req", "-x509", "-days", "3650", *new_key, *words], check=True,
                       capture_output=True)

    openssl("-subj", "/CN=bench authority", "-keyout", WORK + "/ca-key.pem", "-out", CA)
    openssl("-subj", f"/CN={SERVER_NAME}", "-keyout", KEY, "-out", CERT,
            "-CA", CA, "-CAkey", WORK + "/ca-key.pem",
            "-addext", f"subjectAltName=DNS:{SERVER_NAME},DNS:localhost,IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-addext", "keyUsage=critical,digitalSignature",
            "-addext", "extendedKeyUsage=serverAuth")
    with open(PEM, "w") as both:
        for name in (CERT, KEY):
            with open(name) as part:
                both.write(part.read())
    # Some peers read these as another user.
    os.chmod(KEY, 0o644)
    os.chmod(PEM, 0o644)


def peer_env(run, base, tls=False, **more):
    """Returns the environment of a start script with its scratch folder and first port. PB_TLS is
    set if a case needs TLS, so that other runs start no programs for it; `more` likewise has what
    only some cases need."""
    found = dict(os.environ, PB_DIR=PEERS, PB_RUN=run, PB_BASE=str(base),
                 PB_ORIGIN=f"127.0.0.1:{PORT}", PB_TLS_ORIGIN=f"127.0.0.1:{TLS_PORT}",
                 PB_FILES=FILES, PB_CERT=CERT, PB_KEY=KEY, PB_PEM=PEM, PB_CA=CA, PB_BIN=BIN)
    return found | ({"PB_TLS": "1"} if tls else {}) | more
