"""Checks that a peer does what a case measures: bodies, hits and misses, persistent connections."""
import dataclasses
import hashlib
import json
import subprocess
import time

from runner.cases import is_hit
from runner.client import Failed, Wrong, fetch, from_origin, load_command, origin_requests
from runner.settings import SIZES

HASHES = {}  # size: the SHA-256 of the origin's body


def check(case, peer, spec, base, options):
    """Makes some requests. Raises unless each is right, and a hit or miss as the case requires."""
    if spec.size not in HASHES:
        HASHES[spec.size] = hashlib.sha256(from_origin("/n/" + spec.size)).hexdigest()
    right = 200, SIZES[spec.size], HASHES[spec.size]
    before = 0
    for number in range(4):
        if number == 2:  # a cache has stored the object by now
            time.sleep(0.3)
            before = origin_requests(spec.tls_origin)[0]
        one = spec
        if case.startswith("reverse-store-"):
            one = dataclasses.replace(spec, path=f"{spec.path}?id={time.time_ns()}")
        status, length, digest, headers = fetch(one, base)
        if (status, length, digest) != right:
            raise Failed(f"{peer} {case}: wrong response {status} {length} {headers}")
    seen = origin_requests(spec.tls_origin)[0] - before
    if not peer.startswith("floor") and seen != (0 if is_hit(case) else 2):
        raise Failed(f"{peer} {case}: origin saw {seen} of 2 requests {headers}")
    if spec.tls != "h2":
        verify(case, peer, spec, base, options.conns)


def verify(case, peer, spec, base, connections=64):
    """Makes concurrent requests and compares every byte of their bodies.

    This happens outside the timed windows.
    """
    if spec.objects or spec.checked:
        count = spec.objects or spec.checked
    elif spec.has_mixed_sizes:
        count = 4096
    else:
        count = max(2, min(2000, (64 << 20) // spec.length()))
    # Until the cache has all objects: it may leave some out while it stores others.
    for _ in range(4 if spec.objects else 0):
        before = origin_requests()
        compare(case, peer, spec, base, count, connections)
        if origin_requests() == before:
            break
    before = origin_requests(spec.tls_origin)
    done = compare(case, peer, spec, base, count, connections)
    check_origin_requests(case, peer, done, before, origin_requests(spec.tls_origin))


def compare(case, peer, spec, base, count, connections):
    """Makes this many requests and compares their bodies. With objects, each is requested once."""
    limit = 120 if spec.objects or spec.checked else 20
    more = ["-W"] if spec.objects else ["-E"] if spec.handshake == "resumed" else []
    command = load_command(spec, base, "-V", "-N", str(count), "-d", str(limit), "-c",
                           str(spec.connections or connections), *more)
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 40)
    if done.returncode:
        raise Failed(f"{peer} {case}: byte check: {done.stdout} {done.stderr}")
    row = json.loads(done.stdout)
    if row["total"] != count:
        raise Failed(f"{peer} {case}: byte check: only {row['total']} of {count} responses in "
                     f"{limit} seconds")
    return row


def check_handshakes(case, peer, row, due):
    """Raises unless each request of the row had a handshake of the kind that is due."""
    if row[due] != row["total"]:
        raise Wrong(f"{peer} {case}: {row['full']} full and {row['resumed']} resumed handshakes in "
                    f"{row['total']} requests, not {due} ones")


def check_connections(case, peer, row, count):
    """Raises unless the proxy kept all connections of the client open."""
    if row["connections"] != count:
        raise Wrong(f"{peer} {case}: the proxy closed {row['connections'] - count} of {count} "
                    "persistent connections, which the client opened again")


def check_origin_requests(case, peer, row, before, after):
    """Raises unless the origin saw exactly the requests of the row, or none if they are hits.

    `before` and `after` are results of origin_requests().
    """
    seen = after[0] - before[0], (after[1] - before[1]) % 2**64
    due = (0, 0) if is_hit(case) else (row["total"], row["urls"])
    row["origin_requests"] = seen[0]
    if seen != due:
        targets = ", and other targets" * (seen[1] != due[1])
        raise Wrong(f"{peer} {case}: the client made {row['total']} requests, the origin saw "
                    f"{seen[0]}, not {due[0]}{targets}")
