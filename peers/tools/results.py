"""Reads the result lines of run-case and mem-idle, and prints their figures."""
import json
import os
import re
import statistics
import subprocess

import names

# The command that prints a peer's version, which is the first number with a dot in its output.
VERSIONS = {
    "nginx": ["nginx", "-v"],
    "haproxy": ["haproxy", "-v"],
    "squid": ["squid", "-v"],
    "ats": ["traffic_server", "-V"],
    "varnish": ["varnishd", "-V"],
    "lighttpd": ["lighttpd", "-v"],
    "h2o": ["h2o", "-v"],
    "static": [os.environ.get("PB_STATIC_WEB_SERVER", "static-web-server"), "--version"],
}


def cost(row, key="proxy_us"):
    """Returns microseconds per request, or per MiB where a request outlasts the window."""
    if row["case"] == "tunnel-64m":
        return row[key] * row["total"] / (row["bytes"] / 2**20)
    return row[key]


def spread(values, digits):
    """Returns `median [least-greatest]`."""
    numbers = (statistics.median(values), min(values), max(values))
    return "{:.{d}f} [{:.{d}f}-{:.{d}f}]".format(*numbers, d=digits)


# Student's t for two-sided intervals of 90 %, by degrees of freedom from 1.
T90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
       1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725)


def interval(values):
    """Returns the mean and half of the 90 % confidence interval (0 for a single value)."""
    if len(values) < 2:
        return values[0], 0.0
    t = T90[min(len(values) - 1, len(T90)) - 1]
    return statistics.mean(values), t * statistics.stdev(values) / len(values) ** 0.5


def version(peer):
    """Returns the version that the peer's program prints."""
    if peer == "floor-tls":
        return "peers/tools/tls, bare epoll and rustls"
    if peer.startswith("floor"):
        return "peers/tools/pbfloor.c, a bare relay"
    command = VERSIONS.get(peer.split("-")[0])
    if not command:
        return "this tree"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except OSError:
        return "not found"
    found = re.search(r"\d+\.\d+[\w.+-]*", done.stdout + done.stderr)
    return found[0] if found else "unknown"


def read(path):
    """Returns {(case, mode): {peer: {round: row}}} in the order of the file, and the failed rows.

    A peer that failed once in a case and mode is left out of all rounds of it.
    """
    cases, failed = {}, []
    with open(path) as lines:
        for line in lines:
            row = json.loads(line)
            row.update(case=names.case(row["case"]), mode=names.mode(row["mode"]))
            peers = cases.setdefault((row["case"], row["mode"]), {})
            if "failed" in row:
                failed.append(row)
            peers.setdefault(row["peer"], {})[row["rep"]] = row
    for row in failed:
        cases[row["case"], row["mode"]].pop(row["peer"], None)
    return {key: peers for key, peers in cases.items() if peers}, failed


def table(rows):
    """Returns a Markdown table with aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)
