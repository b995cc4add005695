"""Checks that a peer does what a case measures: bodies, hits and misses, persistent connections."""
import dataclasses
import gzip
import hashlib
import json
import subprocess
import time

from runner.cases import is_hit
from runner.client import (Failed, Wrong, fetch, fetch_body, from_origin, load_command,
                           origin_requests, text)
from runner.settings import SIZES

CODING_TRIES = 40
HASHES = {}  # size: the SHA-256 of the origin's body


def check(case, peer, spec, base, options, count=None):
    """Makes some requests. Raises unless each is right, and a hit or miss as the case requires.

    `count` is a function that returns what origin_requests() does, where the origin is another one.
    """
    count = count or (lambda: origin_requests(spec.tls_origin))
    if spec.coding:
        check_coding(case, peer, spec, base, options)
        return
    if spec.size not in HASHES:
        HASHES[spec.size] = hashlib.sha256(from_origin("/n/" + spec.size)).hexdigest()
    right = 200, SIZES[spec.size], HASHES[spec.size]
    before = 0
    for number in range(4):
        if number == 2:  # a cache has stored the object by now
            time.sleep(0.3)
            before = count()[0]
        one = dataclasses.replace(spec, fields=[])
        if spec.files:
            one.path = f"{spec.path}/{number}"
        if case.startswith("reverse-store-"):
            one = dataclasses.replace(spec, path=f"{spec.path}?id={time.time_ns()}")
        status, length, digest, headers = fetch(one, base)
        if (status, length, digest) != right:
            raise Failed(f"{peer} {case}: wrong response {status} {length} {headers}")
    seen = count()[0] - before
    if spec.program == "php":
        seen = min(seen, 2)  # see check_origin_requests
    if not peer.startswith("floor") and seen != (0 if is_hit(case) else 2):
        raise Failed(f"{peer} {case}: origin saw {seen} of 2 requests {headers}")
    if spec.status == 304:
        check_condition(case, peer, spec, base, headers)
    if spec.tls != "h2":
        verify(case, peer, spec, base, options.conns, count)


def check_condition(case, peer, spec, base, headers):
    """Makes the requests those of a browser that has the file: with all validators of the peer."""
    pairs = ("ETag", "If-None-Match"), ("Last-Modified", "If-Modified-Since")
    lower = {name.lower(): value for name, value in headers.items()}
    spec.fields = [f"{field}: {lower[name.lower()]}" for name, field in pairs
                   if name.lower() in lower]
    status, length, _, headers = fetch(spec, base)
    if (status, length) != (304, 0):
        raise Failed(f"{peer} {case}: {status} {length} {headers} for {spec.fields}")


def check_coding(case, peer, spec, base, options):
    """Checks responses with a content coding, and sets their length in the Spec."""
    body = wait_for_coding(case, peer, spec, base)
    if gzip.decompress(body) != text(SIZES[spec.size]):
        raise Failed(f"{peer} {case}: wrong bytes")
    spec.bytes = len(body)
    for _ in range(8):
        if fetch_body(spec, base)[:2] != (200, body):
            raise Failed(f"{peer} {case}: another response to the same request")
    compare(case, peer, spec, base, 2000, options.conns, is_stream=False)


def wait_for_coding(case, peer, spec, base):
    """Makes requests until a response has the content coding. Returns its body.

    The first ones may lack it, while the server compresses the file. It does so again if other
    files have displaced the compressed form.
    """
    for _ in range(CODING_TRIES):
        status, body, headers = fetch_body(spec, base)
        found = {name.lower(): value for name, value in headers.items()}
        if status == 200 and found.get("content-encoding") == spec.coding:
            return body
        time.sleep(0.25)
    raise Failed(f"{peer} {case}: no {spec.coding} in {status} {headers}")


def verify(case, peer, spec, base, connections=64, count=None):
    """Makes concurrent requests and compares every byte of their bodies.

    This happens outside the timed windows.
    """
    seen = count or (lambda: origin_requests(spec.tls_origin))
    if spec.objects or spec.checked:
        total = spec.objects or spec.checked
    elif spec.has_mixed_sizes:
        total = 4096
    else:
        total = max(2, min(2000, (64 << 20) // spec.length()))
    # Until the cache has all objects: it may leave some out while it stores others.
    for _ in range(4 if spec.objects else 0):
        before = origin_requests()
        compare(case, peer, spec, base, total, connections)
        if origin_requests() == before:
            break
    before = seen()
    done = compare(case, peer, spec, base, total, connections)
    check_origin_requests(case, peer, done, before, seen())


def compare(case, peer, spec, base, count, connections, is_stream=True):
    """Makes this many requests and compares their bodies, or only the lengths of those that are not
    the origin's stream. With objects, each is requested once."""
    limit = 120 if spec.objects or spec.checked else 20
    more = ["-W"] if spec.objects else ["-E"] if spec.handshake == "resumed" else []
    more += ["-V"] if is_stream else []
    command = load_command(spec, base, "-N", str(count), "-d", str(limit), "-c",
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

    `before` and `after` are results of origin_requests(). php-fpm has None for the hashes, and also
    counts a connection that is closed while it waits for the next request: it may see more.
    """
    hashes = None if after[1] is None else (after[1] - before[1]) % 2**64
    seen = after[0] - before[0], hashes
    due = (0, 0) if is_hit(case) else (row["total"], row["urls"])
    row["origin_requests"] = seen[0]
    if hashes is None:
        seen, due = (min(seen[0], due[0]), None), (due[0], None)
    if seen != due:
        targets = ", and other targets" * (seen[1] != due[1])
        raise Wrong(f"{peer} {case}: the client made {row['total']} requests, the origin saw "
                    f"{seen[0]}, not {due[0]}{targets}")
