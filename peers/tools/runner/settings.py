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
CERT, KEY, PEM = (f"{WORK}/{name}.pem" for name in ("cert", "key", "both"))
FILES = WORK + "/files"
SIZES = {"1k": 1024, "8k": 8192, "64k": 65536, "1m": 1 << 20, "64m": 64 << 20}


def sources_hash():
    """Returns a hash of the tools' sources, so that two trees never share built tools."""
    names = sorted(glob.glob(PEERS + "/tools/*.[ch]")) + [PEERS + "/tools/build.sh"]
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


def prepare():
    """Builds the tools and makes a certificate, unless they exist."""
    os.makedirs(FILES + "/c", exist_ok=True)
    if not os.path.exists(BIN + "/pbload"):
        subprocess.check_call([PEERS + "/tools/build.sh", BIN])
    if os.path.exists(PEM):
        return
    subprocess.check_call(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-subj", "/CN=bench.test", "-days", "3650", "-keyout", KEY, "-out", CERT],
        stderr=subprocess.DEVNULL)
    with open(PEM, "w") as both:
        for name in (CERT, KEY):
            with open(name) as part:
                both.write(part.read())
    # Some peers read these as another user.
    os.chmod(KEY, 0o644)
    os.chmod(PEM, 0o644)


def peer_env(run, base):
    """Returns the environment of a start script with its scratch folder and first port."""
    return dict(os.environ, PB_DIR=PEERS, PB_RUN=run, PB_BASE=str(base),
                PB_ORIGIN=f"127.0.0.1:{PORT}", PB_FILES=FILES, PB_CERT=CERT, PB_KEY=KEY,
                PB_PEM=PEM, PB_BIN=BIN)
