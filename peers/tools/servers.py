"""The server figures of "IO-Lite: A Unified I/O Buffering and Caching System": how many requests a
server serves, and how many bytes it sends, by the size of the response.

A server and its client share core 0 in a closed loop (mode closed-loop-1core of run-case). The rate
is that at which the server, and the program behind it, would fill a core by their own CPU time: in
the paper the clients have machines of their own. Each response is compared with the expected bytes
before the windows, and in each window a program must see exactly the client's requests.
"""
import os
import textwrap
from dataclasses import dataclass

from page import read
from plot import Axis, Curve, HEIGHT, Panel, WIDTH, svg
from results import interval, read as read_windows, table, version
from runner import plan, settings

MODE = "closed-loop-1core"
SIZES = ("512", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k", "200k")
# The curves and their programs (start/NAME): millrace as installed, the same with a copy of each
# body into a private buffer, and servers that have neither. Programs are copy-free only behind
# "millrace", otherwise behind FastCGI.
PROGRAMS = ("millrace", "millrace-copy", "nginx", "lighttpd")
COLOURS = {"millrace": "#0072b2", "millrace-fastcgi": "#56b4e9", "millrace-copy": "#555555",
           "nginx": "#009e73", "lighttpd": "#d55e00"}
# How requests are made: over a persistent connection, or each over a new one.
KINDS = {"persistent": "", "new connection": "-new-connection"}
DASHES = {"persistent": "", "new connection": "6 4"}
COLUMNS = ("kind", "program", "bytes", "round", "server_us", "program_us", "noisy")


@dataclass(frozen=True)
class Server:
    """One figure."""

    title: str
    family: str  # of the cases of run-case
    programs: tuple = PROGRAMS


FIGURES = {
    "io-lite-files": Server("Files: request rate and bandwidth by size", "static-file"),
    "io-lite-programs": Server("Programs: request rate and bandwidth by size", "program",
                               ("millrace", "millrace-fastcgi", *PROGRAMS[1:])),
}


def measure(name, sizes, arguments):
    """Makes every window of a figure. Returns the rows, and the notes for the page."""
    figure = FIGURES[name]
    sizes = [size for size in SIZES if not sizes or settings.SIZES[size] in sizes]
    programs = arguments.programs.split(",") if arguments.programs else list(figure.programs)
    cases = {f"{figure.family}-{size}{suffix}": (kind, settings.SIZES[size])
             for kind, suffix in KINDS.items() for size in sizes}
    if not cases:
        raise SystemExit("figure: the options select no point")
    path = f"{settings.WORK}/{name}.jsonl"
    if os.path.exists(path):
        os.remove(path)
    options = settings.Options(reps=arguments.reps, secs=arguments.secs)
    entries = plan.parse(",".join(cases), programs, [MODE])
    if plan.execute(entries, programs, options, path):
        raise SystemExit(f"figure: a case failed, and says above why; see {path}")
    rows = []
    for (case, _), found in read_windows(path)[0].items():
        kind, bytes_ = cases[case]
        for program, rounds in found.items():
            rows += [{"kind": kind, "program": program, "bytes": bytes_, "round": number,
                      "server_us": f"{row['proxy_us']:.4f}",
                      "program_us": f"{row['origin_us']:.4f}", "noisy": int(row["noisy"])}
                     for number, row in rounds.items()]
    others = (f"{peer} {version(peer)}" for peer in programs if not peer.startswith("millrace"))
    return rows, {"peers": ", ".join(others) or "none"}


def rates(rows):
    """Returns {(kind, program): {bytes: requests per second of each round}}."""
    found = {}
    for row in rows:
        sizes = found.setdefault((row["kind"], row["program"]), {})
        rate = 1e6 / (row["server_us"] + row["program_us"])
        sizes.setdefault(row["bytes"], []).append(rate)
    return found


def label(bytes_):
    return f"{bytes_ / 1024:g}K"


def picture(figure, rows):
    """Returns the SVG: the request rate, and beside it the bandwidth."""
    def curves(factor):
        return [Curve(f"{program}, {kind}", COLOURS[program], DASHES[kind],
                      [(bytes_, *interval([rate * factor(bytes_) for rate in values]))
                       for bytes_, values in sorted(sizes.items())])
                for (kind, program), sizes in rates(rows).items()]

    panels = []
    for title, unit, factor in (("request rate", "requests per second", lambda _: 1),
                                ("bandwidth", "Gbit/s", lambda bytes_: bytes_ * 8 / 1e9)):
        drawn = curves(factor)
        xs = sorted({x for curve in drawn for x, _, _ in curve.points})
        x = Axis("bytes of the response", True, WIDTH).fit(xs)
        x.labels = [(value, label(value)) for value in xs]
        ys = [y + half for curve in drawn for _, y, half in curve.points]
        panels.append(Panel(title, x, Axis(unit, False, HEIGHT).fit(ys), drawn))
    return svg(f"{figure.title}; mean and 90 % confidence interval", panels)


def section(name, figure, notes, rows):
    """Returns the text of a figure for the page."""
    found = rates(rows)
    sizes = sorted({row["bytes"] for row in rows})
    lines = [["requests", "program", *map(label, sizes)]]
    for (kind, program), values in found.items():
        lines.append([kind, program, *(cell(values[bytes_]) for bytes_ in sizes)])
    for kind in KINDS:
        base = found.get((kind, "millrace-copy"))
        own = found.get((kind, "millrace"))
        if own and base:
            lines.append([kind, "millrace / millrace-copy",
                          *(f"{mean(own[bytes_]) / mean(base[bytes_]):.2f}" for bytes_ in sizes)])
    about = (f"Requests per second that fill a core, in thousands; "
             f"{len({row['round'] for row in rows})} rounds, mean ± half of the 90 % confidence "
             f"interval; of {len(rows)} windows, other programs used the core in "
             f"{sum(row['noisy'] for row in rows)}. {notes['system']}; millrace at "
             f"{notes['commit']}; {notes['peers']}. Command: `{notes['command']}`.")
    about = textwrap.fill(about, 100, break_long_words=False, break_on_hyphens=False)
    return f"### {name}: {figure.title}\n\n{about}\n\n{table(lines)}\n"


def mean(values):
    return interval(values)[0]


def cell(values):
    middle, half = interval(values)
    return f"{middle / 1000:.1f}" + f" ± {half / 1000:.1f}" * (len(values) > 1)


def write(folder, name):
    """Draws a figure from its CSV in the folder and returns its section."""
    notes, rows = read(f"{folder}/{name}.csv")
    with open(f"{folder}/{name}.svg", "w") as file:
        file.write(picture(FIGURES[name], rows))
    return section(name, FIGURES[name], notes, rows)
