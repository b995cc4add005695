"""The picture and the table of a figure about splicing, and their place in the page."""
import csv
import os
import re
import statistics
import textwrap
from dataclasses import dataclass

import names
from figures import KINDS, KIB, MIB, VALUES, bar, base
from plot import Axis, Curve, HEIGHT, Panel, WIDTH, svg
from results import interval, spread, table

COLOURS = {"copy": "#555555", "splice": "#d55e00", "plan": "#0072b2", "library": "#009e73",
           "library-copy": "#aaaaaa", "in-kernel": "#cc79a7"}
DASHES = ("", "6 4", "2 3")
JUDGED = "plan"


def read(path):
    """Returns the notes at the start of a CSV, and its rows with numbers as numbers."""
    notes, lines = {}, []
    with open(path, newline="") as file:
        for text in file:
            if text.startswith("# "):
                key, value = text[2:].rstrip("\n").split(": ", 1)
                notes[key] = value
            else:
                lines.append(text)
    rows = [{key: number(value) for key, value in row.items()} for row in csv.DictReader(lines)]
    return notes, rows


def number(text):
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def size(count):
    """Returns a number of bytes as text."""
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


@dataclass
class Points:
    """The values of a figure: {(kind, program): {x: {round: value}}}."""

    found: dict

    @classmethod
    def of(cls, figure, rows):
        found = {}
        for row in rows:
            xs = found.setdefault((row["kind"], row["program"]), {})
            xs.setdefault(figure.x(row), {})[row["round"]] = row[figure.value]
        return cls(found)

    def ratios(self, kind, program, x):
        """Returns the program's value divided by copying's, for each round; [] if it copies."""
        own, other = (self.found.get((kind, name), {}).get(x, {})
                      for name in (program, base(program)))
        return [own[key] / other[key] for key in sorted(own) if other.get(key)]


def picture(figure, rows):
    """Returns the SVG: the values, and beside them the values divided by copying's."""
    points = Points.of(figure, rows)
    kinds = list(dict.fromkeys(kind for kind, _ in points.found))
    curves, ratios = [], []
    for (kind, program), xs in points.found.items():
        dash, colour = DASHES[kinds.index(kind)], COLOURS[program]
        name = f"{program}: {KINDS[kind] if len(kinds) < 3 else kind}"
        curves.append(Curve(name, colour, dash, [(x, *interval(list(values.values())))
                                                 for x, values in sorted(xs.items())]))
        beside = {x: points.ratios(kind, program, x) for x in sorted(xs)}
        if all(beside.values()):
            ratios.append(Curve(name, colour, dash, [(x, *interval(values))
                                                     for x, values in beside.items()]))
    panels = [panel(figure, curves, VALUES[figure.value], figure.value != "cpu_share", None)]
    if ratios:
        panels.append(panel(figure, ratios, "the same, divided by copying", False, 1))
    return svg(f"{figure.title}; mean and 90 % confidence interval", panels)


def panel(figure, curves, title, log, level):
    xs = sorted({x for curve in curves for x, _, _ in curve.points})
    # A wide interval is cut off, as it would make everything else small.
    ys = [min(y + half, 1.5 * y) for curve in curves for _, y, half in curve.points]
    ys += [max(y - half, y / 1.5) for curve in curves for _, y, half in curve.points]
    x = Axis("requests per second" if figure.rates else "bytes of the response",
             not figure.rates, WIDTH).fit(xs)
    if not figure.rates:
        x.labels = [(value, size(value).removesuffix("iB").replace(" ", "")) for value in xs]
    y = Axis(title, log, HEIGHT).fit([*ys, level or ys[0]])
    return Panel("beside copying" if level else "as measured", x, y, curves, level)


def rows_of(figure, rows):
    """Returns a row for each kind and point, with the verdict on the plan's CPU time."""
    points = Points.of(figure, rows)
    programs = list(dict.fromkeys(program for _, program in points.found))
    others = [program for program in programs if base(program) in programs]
    judged = figure.value != "mean_us" and JUDGED in others
    lines = [["request", "response", "per second", *programs,
              *(f"{program} / {base(program)}" for program in others),
              *(("bar", "verdict") if judged else ())]]
    for kind, bytes_, rate in dict.fromkeys((r["kind"], r["bytes"], r["rate"]) for r in rows):
        x = rate if figure.rates else bytes_
        values = [points.found.get((kind, program), {}).get(x) for program in programs]
        beside = {program: points.ratios(kind, program, x) for program in others}
        cells = [KINDS[kind], size(bytes_), f"{rate or 'closed loop'}", *map(cell, values)]
        cells += [spread(found, 2) if found else "-" for found in beside.values()]
        if judged:
            cells += verdict(bar(kind, bytes_), beside[JUDGED])
        lines.append(cells)
    return lines


def cell(values):
    if not values:
        return "-"
    mean, half = interval(list(values.values()))
    return f"{mean:.1f}" + f" ± {half:.1f}" * (len(values) > 1)


def verdict(most, ratios):
    """Returns the bar, and whether the median of the rounds is within it."""
    if not ratios:
        return ["-", "-"]
    return [f"{most:.2f}", "met" if statistics.median(ratios) <= most else "**missed**"]


def section(name, figure, notes, rows):
    """Returns the text of a figure for the page."""
    lines = rows_of(figure, rows)
    noisy = sum(row["noisy"] for row in rows)
    rounds = len({row["round"] for row in rows})
    about = (f"{VALUES[figure.value]}; {rounds} rounds, mean ± half of the 90 % confidence "
             f"interval; ratios are medians [least-greatest] of those within a round; of "
             f"{len(rows)} windows, other programs used the core in {noisy}. "
             f"{notes['system']}; millrace at {notes['commit']}. Command: `{notes['command']}`.")
    if lines[0][-1] == "verdict":
        missed = sum(line[-1] == "**missed**" for line in lines)
        about += f" Bars missed: {missed} of {len(lines) - 1}."
    about = textwrap.fill(about, 100, break_long_words=False, break_on_hyphens=False)
    return f"### {name}: {figure.title}\n\n{about}\n\n{table(lines)}\n"


def marker_lines(name):
    return [f"<!-- figure {name}: {word} -->" for word in ("begin", "end")]


def put(path, name, text):
    """Puts a figure's section between its two marker lines of the page.

    Marker lines with the name that the figure had before are replaced.
    """
    begin, end = marker_lines(name)
    with open(path) as file:
        old = file.read()
    for line, before in zip((begin, end), marker_lines(names.old_figure(name))):
        old = old.replace(before, line)
    if begin not in old or end not in old:
        raise SystemExit(f"figure: {path} has no marker lines for {name}")
    folder = os.path.splitext(os.path.basename(path))[0]
    body = f"{begin}\n\n{text}\n![{name}]({folder}/{name}.svg)\n\n{end}"
    new = re.sub(re.escape(begin) + ".*" + re.escape(end), lambda _: body, old, flags=re.DOTALL)
    with open(path, "w") as file:
        file.write(new)


def write(folder, name, figure):
    """Draws a figure from its CSV in the folder and returns its section."""
    notes, rows = read(f"{folder}/{name}.csv")
    with open(f"{folder}/{name}.svg", "w") as file:
        file.write(picture(figure, rows))
    return section(name, figure, notes, rows)
