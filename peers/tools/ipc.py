"""The figure of "IO-Lite: A Unified I/O Buffering and Caching System" about communication between
processes: how many bytes one process passes to another one in a second, by the size of a buffer.

The benchmark `ipc` of the crate iolite measures it (crates/iolite/iolite/benches/ipc.rs);
tools/iceoryx2 is a program for the peer iceoryx2. Both processes run on the cores that the kernel
chooses.
"""
import csv
import os
import subprocess
import textwrap

from page import read
from plot import Axis, Curve, HEIGHT, Panel, WIDTH, svg
from results import interval, table

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NAME = "io-lite-ipc"
PAGE = "servers"
FIGURES = {NAME: "Communication between processes: bandwidth by size"}
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)  # in KB
# The curves, by the names of the benchmark's ways.
WAYS = {
    "pool": ("IO-Lite, trusted", "#0072b2", ""),
    "pool-by-socket": ("IO-Lite, trusted, by the socket alone", "#0072b2", "2 3"),
    "sealed-again": ("IO-Lite, untrusted, the same buffer", "#56b4e9", "6 4"),
    "sealed": ("IO-Lite, untrusted, new buffers", "#56b4e9", ""),
    "copied": ("IO-Lite off: copies through shared memory", "#555555", ""),
    "unix": ("Unix socket", "#d55e00", ""),
    "inet": ("inet socket (TCP, loopback)", "#e69f00", ""),
    "bare-ring": ("shared ring that both may write to", "#009e73", ""),
    "iceoryx2": ("iceoryx2", "#cc79a7", ""),
}
COLUMNS = ("way", "bytes", "round", "us", "cpu_us")
ICEORYX2 = HERE + "/iceoryx2"


def iceoryx2():
    """Builds the program for iceoryx2. Returns its path, or None with a message if this Rust is too
    old for it."""
    target = os.environ.get("CARGO_TARGET_DIR", ROOT + "/target") + "/peers"
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--target-dir", target,
               "--manifest-path", ICEORYX2 + "/Cargo.toml"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return target + "/release/pbiceoryx2"
    print(f"figure: iceoryx2 is left out: {done.stderr.strip().splitlines()[-1]}", flush=True)
    return None


def measure(sizes, arguments):
    """Makes every round of the figure. Returns the rows, and the notes for the page."""
    chosen = [size for size in SIZES if not sizes or size * 1024 in sizes]
    ways = arguments.programs.split(",") if arguments.programs else list(WAYS)
    if not chosen or not set(ways) <= set(WAYS):
        raise SystemExit("figure: the options select no point")
    environment = dict(os.environ)
    if "iceoryx2" in ways:
        program = iceoryx2()
        if program:
            environment["PBICEORYX2"] = program
        else:
            ways.remove("iceoryx2")
    command = ["cargo", "bench", "--quiet", "-p", "iolite", "--bench", "ipc", "--", "csv", *ways,
               *map(str, chosen)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit("figure: the benchmark failed, and says above why")
    lines = [line for line in done.stdout.splitlines() if line.count(",") == len(COLUMNS) - 1]
    return list(csv.DictReader(lines)), {}


def bandwidths(rows):
    """Returns {way: {bytes: gigabytes per second of each round}}."""
    found = {}
    for row in rows:
        sizes = found.setdefault(row["way"], {})
        sizes.setdefault(row["bytes"], []).append(row["bytes"] / row["us"] / 1000)
    return found


def picture(rows):
    """Returns the SVG: the bandwidth, and beside it the bytes by the CPU time they take."""
    panels = []
    for title, unit, column in (("bandwidth", "GB/s", "us"),
                                ("bytes by CPU time of both processes", "GB/s", "cpu_us")):
        curves = []
        for way, (name, colour, dash) in WAYS.items():
            sizes = bandwidths([{**row, "us": row[column]} for row in rows]).get(way)
            if sizes:
                points = [(bytes_, *interval(values)) for bytes_, values in sorted(sizes.items())]
                curves.append(Curve(name, colour, dash, points))
        xs = sorted({x for curve in curves for x, _, _ in curve.points})
        x = Axis("bytes of a buffer", True, WIDTH).fit(xs)
        x.labels = [(value, f"{value // 1024}K") for value in xs]
        ys = [y for curve in curves for _, y, _ in curve.points]
        panels.append(Panel(title, x, Axis(unit, True, HEIGHT).fit(ys), curves))
    return svg(f"{FIGURES[NAME]}; mean and 90 % confidence interval", panels)


def section(notes, rows):
    """Returns the text of the figure for the page."""
    found = bandwidths(rows)
    sizes = sorted({row["bytes"] for row in rows})
    lines = [["GB/s", *(f"{size // 1024}K" for size in sizes)]]
    for way, (name, _, _) in WAYS.items():
        if way in found:
            cells = (interval(found[way][size]) for size in sizes)
            lines.append([name, *(f"{middle:.2f} ± {half:.2f}" for middle, half in cells)])
    about = (f"One word of each page is written and read; "
             f"{len({row['round'] for row in rows})} rounds, mean ± half of the 90 % confidence "
             f"interval. {notes['system']}; millrace at {notes['commit']}. Command: "
             f"`{notes['command']}`.")
    about = textwrap.fill(about, 100, break_long_words=False, break_on_hyphens=False)
    return f"### {NAME}: {FIGURES[NAME]}\n\n{about}\n\n{table(lines)}\n"


def write(folder):
    """Draws the figure from its CSV in the folder and returns its section."""
    notes, rows = read(f"{folder}/{NAME}.csv")
    with open(f"{folder}/{NAME}.svg", "w") as file:
        file.write(picture(rows))
    return section(notes, rows)
