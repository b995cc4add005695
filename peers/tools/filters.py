"""The figure of "IO-Lite: A Unified I/O Buffering and Caching System" about converted programs: the
run time of wc, permute, grep and gcc over IO-Lite, divided by that of the ordinary programs.

The benchmark `programs` of the crate iolited measures it (crates/iolite/iolited/benches). All
processes run on the cores that the kernel chooses. A ratio is that of two runs, one after the
other.
"""
import csv
import os
import subprocess
import textwrap

from page import read
from plot import Axis, Curve, HEIGHT, Panel, WIDTH, svg
from results import interval, table

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = "io-lite-filters"
PAGE = "filters"
TITLE = "Programs over IO-Lite: run time divided by that of ordinary programs"
# The benchmark's programs, in its order: their labels, and the paper's words.
PROGRAMS = {
    "wc -l file": ("wc", "faster: the cached file is mapped"),
    "cat | wc -l": ("cat|wc", "-"),
    "cat | grep | wc": ("grep", "faster: multiple copies are eliminated"),
    "permute | wc": ("permute", "significantly faster: a pipeline"),
    "gcc short source": ("gcc short", "measurably faster: pipes"),
    "gcc 200 KB": ("gcc long", "measurably faster: pipes"),
}
KINDS = {"ordinary": ("ordinary programs", "#555555"), "iolite": ("over libiolite", "#0072b2")}
VALUES = {"ms": "elapsed time", "cpu_ms": "CPU time of all processes"}
COLUMNS = ("program", "kind", "round", *VALUES)


def measure(_, arguments):
    """Makes every round of the figure. Returns the rows, and the notes for the page."""
    command = ["cargo", "bench", "--quiet", "-p", "iolited", "--bench", "programs", "--", "csv",
               str(arguments.reps)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit("figure: the benchmark failed, and says above why")
    lines = [line for line in done.stdout.splitlines() if line.count(",") == len(COLUMNS) - 1]
    version = subprocess.run(["gcc", "-dumpfullversion"], stdout=subprocess.PIPE, text=True)
    return list(csv.DictReader(lines)), {"peers": f"gcc {version.stdout.strip()}"}


def times(rows, value):
    """Returns {program: {kind: {round: milliseconds}}} of a column."""
    found = {}
    for row in rows:
        kinds = found.setdefault(row["program"], {})
        kinds.setdefault(row["kind"], {})[row["round"]] = row[value]
    return found


def ratios(kinds, kind):
    """Returns the times of a kind divided by those of the ordinary program, in each round."""
    return [kinds[kind][key] / kinds["ordinary"][key] for key in sorted(kinds[kind])]


def picture(rows):
    """Returns the SVG: bars for elapsed and CPU time."""
    panels = []
    for value, title in VALUES.items():
        found = times(rows, value)
        curves = [Curve(name, colour, "", [(number, *interval(ratios(kinds, kind)))
                                           for number, kinds in enumerate(found.values(), 1)])
                  for kind, (name, colour) in KINDS.items()]
        labels = [(number, PROGRAMS[program][0]) for number, program in enumerate(found, 1)]
        x = Axis("program", False, WIDTH, 0.4, len(found) + 0.6, labels)
        ys = [y + half for curve in curves for _, y, half in curve.points]
        y = Axis("ordinary program = 1", False, HEIGHT).fit(ys)
        panels.append(Panel(title, x, y, curves, 1, has_bars=True))
    return svg(f"{TITLE}; mean and 90 % confidence interval", panels)


def cell(values, digits):
    middle, half = interval(values)
    return f"{middle:.{digits}f}" + f" ± {half:.{digits}f}" * (len(values) > 1)


def section(notes, rows):
    """Returns the text of the figure for the page."""
    columns = {value: times(rows, value) for value in VALUES}
    lines = [["program", "elapsed ms", "over libiolite", "ratio", "CPU ms", "over libiolite",
              "ratio", "paper"]]
    for program, (_, words) in PROGRAMS.items():
        cells = []
        for found in columns.values():
            kinds = found[program]
            cells += [cell(list(kinds[kind].values()), 2) for kind in KINDS]
            cells.append(cell(ratios(kinds, "iolite"), 2))
        escaped = program.replace("|", "\\|")  # as in every cell of a table
        lines.append([f"`{escaped}`", *cells, words])
    about = (f"A file of 64 MB, in the page cache; {len({row['round'] for row in rows})} rounds, "
             f"mean ± half of the 90 % confidence interval; ratios are those within a round. "
             f"{notes['system']}; millrace at {notes['commit']}; {notes['peers']}. Command: "
             f"`{notes['command']}`.")
    about = textwrap.fill(about, 100, break_long_words=False, break_on_hyphens=False)
    return f"### {NAME}: {TITLE}\n\n{about}\n\n{table(lines)}\n"


def write(folder):
    """Draws the figure from its CSV in the folder and returns its section."""
    notes, rows = read(f"{folder}/{NAME}.csv")
    with open(f"{folder}/{NAME}.svg", "w") as file:
        file.write(picture(rows))
    return section(notes, rows)
