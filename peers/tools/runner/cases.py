"""The cases: which requests each one makes, which peers can serve it, and its usual modes."""
import re
import resource
from dataclasses import dataclass, field

import names
from runner.settings import PEERS, PORT, SIZES

FULL = 1 << 30  # bytes: more than fits into any of the caches
OBJECTS = 10000  # as in tools/pbsurge.h
VARIANTS = {"browser": "-B", "unique-urls": "-U"}  # options of pbload
RATES = {"1k": 5000, "8k": 5000, "64k": 1000, "1m": 100}  # requests per second
ORIGIN = f"127.0.0.1:{PORT}"
HITS = ("reverse-hit", "forward-hit", "static-file", "many-connections-hit", "tls-8k", "tls-64k",
        "tls-1m", "tls-handshake", "tls-resumed", "tls-h2", "tls-static", "compressed",
        "precompressed")
# Families of cases whose last part is a size: a key of SIZES, or one of MIXTURES.
SIZED = ("reverse-miss", "reverse-hit", "reverse-store", "static-file", "tunnel", "tls", "tls-miss",
         "tls-static", "fastcgi", "program", "program-new", "compressed-text", "precompressed-text")
MIXTURES = ("reverse-miss-polymix", "reverse-hit-surge", "static-file-surge")
FORWARD = ("forward-miss-8k", "forward-miss-8k-new-connection", "forward-hit-8k",
           "forward-hit-surge")
CLOSING = ("static-file-", "fastcgi-", "program-")  # may be followed by -new-connection
CONDITIONAL = "static-file-304"
COLD_CASE = "static-file-cold-64k"
# Files of COLD_CASE. In a window each is requested once at most: the first ones by the first
# request of each connection and the warm-up, and COLD_REQUESTS in the timed part.
COLD_FILES, COLD_REQUESTS, COLD_WARM_UP = 4096, 3900, 64
# Of a window, and per second. nginx reads about 400 such files per second, one after the other.
COLD_SECONDS, COLD_RATE = 8.0, 150
SURGE_RATE = 2000
# The families with a program behind the peer: offset of the port, path, kind of the program, and
# most requests per second, which every peer can serve with the program on one core.
PROGRAMS = {
    "fastcgi": (3, "/n/{size}", "echo", 2000),
    "fastcgi-php": (9, "/{size}.php", "php", 1000),
    "program": (12, "/n/{size}", "copy-free", 2000),
    "program-new": (12, "/new/{size}", "copy-free", 2000),
}
# A peer without the service gets the same documents from the program of this one.
INSTEAD = {"program": "fastcgi", "program-new": "fastcgi"}
# The folders below FILES with texts for gzip: alone, and with their compressed form beside them.
TEXTS = {"compressed-text": "text", "precompressed-text": "packed"}
GZIP = "Accept-Encoding: gzip"
# The cases with a TLS handshake for each request: the service, and options of pbtls-load.
HANDSHAKES = {
    "tls-handshake-8k": ("tls", []),
    "tls-handshake-mlkem-8k": ("tls-mlkem", ["-g", "x25519mlkem768"]),
    "tls-resumed-8k": ("tls-resumed", ["-t"]),
}


@dataclass
class Spec:
    """The requests of a case, as one peer gets them."""

    offset: int  # of the peer's port
    path: str
    size: str = ""  # a key of SIZES
    bytes: int = 0  # of a response, where it is not one of SIZES
    flags: list = field(default_factory=list)  # more options of pbload
    set_up: list = field(default_factory=list)  # options of pbload for the first requests
    has_mixed_sizes: bool = False
    objects: int = 0  # distinct ones that are requested; 0: one, or one for each request
    checked: int = 0  # requests of the byte check; 0: by size
    closes: bool = False  # a new connection for each request
    absolute: str = ""  # the origin in an absolute-form target
    tunnel: str = ""  # the origin that CONNECT names
    tls: str = ""  # h1 (by pbtls-load) or h2 (by h2load)
    handshake: str = ""  # full or resumed, where each request has one
    tls_origin: bool = False  # the origin that is reached over TLS
    connections: int = 0  # 0: those of the options
    rate: float = 0.0  # requests per second; 0: by size or by the options
    seconds: float = 0.0  # of a window; 0: those of the options
    client: list = field(default_factory=list)  # a command that replaces pbload
    program: str = ""  # behind the peer, a key of programs.KINDS
    fields: list = field(default_factory=list)  # more header fields of the requests
    status: int = 200  # of each response; 304 has no body
    coding: str = ""  # content coding of each response
    files: int = 0  # of the disk, PATH/0 and up, requested in turn; they are not in the page cache
    requests: int = 0  # of a window at most; 0: only its time limits it

    def length(self):
        """Returns the bytes of a response."""
        return self.bytes or SIZES[self.size]


def is_hit(case):
    """Returns whether the origin must see none of the requests."""
    return case.startswith(HITS)


def split_variants(case):
    """Returns a case without its variants, and these: reverse-miss-8k and [browser]."""
    variants = []
    while True:
        found = next((name for name in VARIANTS if case.endswith("-" + name)), None)
        if not found:
            return case, variants
        case = case.removesuffix("-" + found)
        variants.insert(0, found)


def services(peer):
    """Returns the services that a start script names in its lines `# cases:`."""
    with open(f"{PEERS}/start/{peer}") as file:
        lines = re.findall(r"^# cases: (.*)$", file.read(), re.MULTILINE)
    return [names.service(word) for line in lines for word in line.split()]


def has_few_descriptors(idle):
    """Returns whether the bare relay, with two sockets a connection, may open too few of them."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * idle + 100


def spec(case, peer, idle=10000):
    """Returns the Spec of a case for a peer, or None if the peer cannot serve it."""
    plain, variants = split_variants(case)
    found = plain_spec(plain, peer, services(peer), idle)
    if found and found.tls != "h2":
        found.flags = found.flags + [VARIANTS[name] for name in variants]
    return found


def plain_spec(case, peer, served, idle):
    """Returns the Spec of a case without variants."""
    persistent = case.removesuffix("-new-connection")
    if persistent != case and persistent.startswith(CLOSING):
        found = plain_spec(persistent, peer, served, idle)
        if found:
            found.closes = True
        return found
    is_floor = peer.startswith("floor")
    family, _, size = case.rpartition("-")
    if family in SIZED and size not in SIZES and case not in (*MIXTURES, CONDITIONAL):
        return None
    if family == "reverse-miss" and "reverse-miss" in served:
        if size == "polymix":
            return Spec(1, "/n/8k", "8k", has_mixed_sizes=True, flags=["-M"])
        return Spec(1, "/n/" + size, size)
    if case == "many-connections-miss":
        can = "reverse-miss" in served and not (is_floor and has_few_descriptors(idle))
        return Spec(1, "/n/8k", "8k", set_up=["-e", "8192"]) if can else None
    if case == "many-connections-hit" and "many-connections" in served:
        return Spec(2, "/c/8k", "8k")
    if case == "reverse-hit-8k-new-connection":
        return Spec(2, "/c/8k", "8k", closes=True) if "new-connection" in served else None
    if family == "reverse-hit" and "reverse-hit" in served:
        if size == "surge":
            return surge(Spec(2, "/c/8k", "8k"))
        return Spec(2, "/c/" + size, size)
    if case in ("uncacheable-one-url", "uncacheable-64-urls") and "uncacheable" in served:
        return Spec(2, "/n/8k", "8k", flags=["-D", "1" if "one" in case else "64"])
    if family == "reverse-store" and "reverse-hit" in served and not is_floor:
        return Spec(2, "/c/" + size, size, flags=["-U"], checked=FULL // SIZES[size])
    if case.startswith(("static-file-", "compressed-", "precompressed-")):
        return file_spec(case, family, size, is_floor, served)
    if family in PROGRAMS:
        return program_spec(family, size, served)
    if case in FORWARD:
        return forward_spec(case, is_floor, served)
    if family == "tunnel":
        return tunnel_spec(size, served)
    return tls_spec(case, family, size, is_floor, served)


def file_spec(case, family, size, is_floor, served):
    """Returns the Spec of a case with files, or None."""
    if case == COLD_CASE and "cold" in served:
        return Spec(11, "/f", "64k", files=COLD_FILES, flags=["-Q", str(COLD_FILES)],
                    checked=COLD_FILES, requests=COLD_REQUESTS, seconds=COLD_SECONDS,
                    rate=COLD_RATE)
    if family in TEXTS and "compressed" in served:
        return Spec(4, f"/{TEXTS[family]}/{size}.txt", size, fields=[GZIP], coding="gzip")
    if "static-file" not in served:
        return None
    if case == CONDITIONAL:
        return None if is_floor else Spec(4, "/c/8k", "8k", status=304, flags=["-X", "304"])
    if family == "static-file":
        if size == "surge":
            return surge(Spec(4, "/c/8k", "8k", rate=SURGE_RATE))
        return Spec(4, "/c/" + size, size)
    return None


def program_spec(family, size, served):
    """Returns the Spec of a case with a program behind the peer, or None."""
    if family not in served:
        family = INSTEAD.get(family)
    if family not in served or (family == "fastcgi-php" and size != "1k"):
        return None
    offset, path, program, rate = PROGRAMS[family]
    return Spec(offset, path.format(size=size), size, program=program,
                rate=min(rate, RATES.get(size, RATES["64k"])))


def tls_spec(case, family, size, is_floor, served):
    """Returns the Spec of a case over TLS, or None."""
    if case in HANDSHAKES:
        service, flags = HANDSHAKES[case]
        if service not in served:
            return None
        return Spec(7, "/c/8k", "8k", flags=flags, tls="h1", closes=True,
                    handshake="resumed" if service == "tls-resumed" else "full")
    if family == "tls" and "tls" in served:
        return Spec(7, "/c/" + size, size, tls="h1")
    if family == "tls-static" and "tls-static" in served:
        return Spec(7 if is_floor else 10, "/c/" + size, size, tls="h1")
    if family == "tls-miss" and "tls-miss" in served:
        return Spec(8, "/n/" + size, size, tls="h1", tls_origin=True)
    if case == "tls-h2-8k" and "tls-h2" in served:
        return Spec(7, "/c/8k", "8k", tls="h2")
    return None


def surge(found):
    """Returns the Spec with objects of SURGE's sizes and popularity."""
    found.has_mixed_sizes, found.objects, found.flags = True, OBJECTS, ["-Z"]
    return found


def forward_spec(case, is_floor, served):
    """Returns the Spec of GET requests with an absolute-form target, or None."""
    closes = case == "forward-miss-8k-new-connection"
    if "forward" not in served and not ("forward-close" in served and closes):
        return None
    offset = (2 if is_hit(case) else 1) if is_floor else 5
    if case == "forward-hit-surge":
        return surge(Spec(offset, "/c/8k", "8k", absolute=ORIGIN))
    path = "/c/8k" if is_hit(case) else "/n/8k"
    return Spec(offset, path, "8k", absolute=ORIGIN, closes=closes)


def tunnel_spec(size, served):
    """Returns the Spec of tunnels by CONNECT, or of a TCP relay where a peer has no CONNECT."""
    if "tunnel" in served:
        found = Spec(5, "/n/" + size, size, tunnel=ORIGIN)
    elif "tcp-relay" in served:
        found = Spec(6, "/n/" + size, size)
    else:
        return None
    found.closes = size == "64k"
    found.connections = 16 if found.closes else 2
    return found


def default_modes(case):
    """Returns the modes in which a case is measured unless the command line names some."""
    closed, closed_apart = "closed-loop-1core", "closed-loop-2cores"
    rate, rate_apart = "fixed-rate-1core", "fixed-rate-2cores"
    if case.startswith("many-connections-"):
        return [rate]
    if case == CONDITIONAL or case.startswith(("compressed-", "precompressed-")):
        return [closed]
    plain, variants = split_variants(case)
    with_rate = ("tls-static-", "static-file-", "fastcgi-", "program-")
    if case == "tls-8k" or plain.startswith(with_rate) and not variants:
        return [closed, rate]
    if variants or case.startswith(("tls-", "reverse-store-", "tunnel-")):
        return [closed]
    if case in ("reverse-miss-8k", "reverse-hit-8k"):
        return [closed, closed_apart, rate, rate_apart]
    if case in ("reverse-miss-1k", "reverse-hit-1k"):
        return [closed, closed_apart, rate]
    if case.startswith("forward-") or case == "reverse-hit-8k-new-connection":
        return [closed, rate]
    return [closed, closed_apart]
