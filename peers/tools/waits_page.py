"""The picture and the tables of a figure about waiting."""
import statistics
import textwrap
from dataclasses import dataclass

from page import read, size
from plot import Axis, Curve, HEIGHT, Panel, WIDTH, svg
from results import interval, spread, table
from waits import LOADS, PROGRAMS

COLOURS = {"select": "#aaaaaa", "poll": "#555555", "epoll": "#0072b2", "uring": "#cc79a7",
           "uselect": "#d55e00", "spin": "#e69f00"}
DASHES = {"millrace-hits": "", "lighttpd": "6 4", "haproxy": "2 3", "floor-hits": "8 2 2 2"}
# If a bare program takes more than FLOOR_PART of a bar, the bar is FLOOR_TIMES its value.
FLOOR_PART, FLOOR_TIMES = 0.85, 1.15
LINEAR_MAX = 5  # the greatest value divided by the least, on a linear axis
PAPER_LESS = 50  # per cent less CPU time than /dev/epoll, for the paper's uselect


@dataclass
class Points:
    """The windows of a figure: {(load, program, connections, bytes): {round: row}}."""

    found: dict

    @classmethod
    def of(cls, rows):
        found = {}
        for row in rows:
            key = row["load"], row["program"], row["connections"], row["bytes"]
            found.setdefault(key, {})[row["round"]] = row
        return cls(found)

    def values(self, load, program, count, bytes_, column):
        rows = self.found.get((load, program, count, bytes_), {})
        return [row[column] for _, row in sorted(rows.items())]

    def ratios(self, load, pair, first, count, bytes_):
        """Returns the value of the first program divided by the second's, for each round."""
        column = LOADS[load].value
        beside = first if pair[0] == pair[1] else count
        own = self.found.get((load, pair[0], count, bytes_), {})
        other = self.found.get((load, pair[1], beside, bytes_), {})
        return [own[key][column] / other[key][column] for key in sorted(own) if key in other]


@dataclass
class Plane:
    """One panel or table: its load, and the points of its x axis."""

    load: str
    title: str
    points: list  # of (x, label, connections, bytes)


def planes(figure):
    if figure.is_by_size:
        return [Plane(load, f"{count:,} connections",
                      [(bytes_, size(bytes_), count, bytes_) for bytes_ in figure.sizes])
                for load in figure.loads for count in figure.connections]
    return [Plane(load, LOADS[load].title,
                  [(count, f"{count:,}", count, figure.sizes[0]) for count in figure.connections])
            for load in figure.loads]


def picture(figure, rows):
    """Returns the SVG: a panel for each load, or for each number of connections."""
    points = Points.of(rows)
    # In the order of the table. The legend is that of the first panel, so it names all programs.
    names = [name for name in PROGRAMS if any(key[1] == name for key in points.found)]
    panels = [panel(figure, points, plane, names) for plane in planes(figure)]
    panels[0].curves += [Curve(name, *style(name), []) for name in names
                         if name not in [curve.name for curve in panels[0].curves]]
    return svg(f"{figure.title}; mean and 90 % confidence interval", panels)


def style(name):
    program = PROGRAMS[name]
    return COLOURS[program.waits_by], DASHES[program.file]


def panel(figure, points, plane, names):
    load, curves = LOADS[plane.load], []
    for name in names:
        found = [(x, points.values(plane.load, name, count, bytes_, load.value))
                 for x, _, count, bytes_ in plane.points]
        drawn = [(x, *interval(values)) for x, values in found if values]
        if drawn:
            curves.append(Curve(name, *style(name), drawn))
    # A wide interval is cut off, as it would make everything else small.
    ys = [min(y + half, 1.5 * y) for curve in curves for _, y, half in curve.points] or [1]
    ys += [max(y - half, y / 1.5) for curve in curves for _, y, half in curve.points]
    x = Axis("bytes of the response" if figure.is_by_size else "established connections",
             True, WIDTH).fit([x for x, *_ in plane.points])
    x.labels = [(x, label.removesuffix("iB").replace(" ", "")) for x, label, *_ in plane.points]
    # A linear axis starts at 0, and would hide small values.
    is_log = max(ys) > LINEAR_MAX * min(ys)
    return Panel(plane.title, x, Axis(load.axis, is_log, HEIGHT).fit(ys), curves)


def cells(points, plane, name):
    """Yields a program's value at each point, with the CPU time of all programs in brackets."""
    column = LOADS[plane.load].value
    for _, _, count, bytes_ in plane.points:
        values = points.values(plane.load, name, count, bytes_, column)
        if not values:
            yield "-"
            continue
        mean, half = interval(values)
        text = f"{mean:.1f}" + f" ± {half:.1f}" * (len(values) > 1)
        cpu = [own + client for own, client in zip(
            points.values(plane.load, name, count, bytes_, "cpu_us"),
            points.values(plane.load, name, count, bytes_, "client_us"))]
        yield f"{text} ({statistics.mean(cpu):.1f})"


def values_of(figure, points, plane):
    """Returns the table of one plane: a line for each program."""
    head = "bytes of the response" if figure.is_by_size else "connections"
    lines = [[head, *(label for _, label, *_ in plane.points)]]
    for name in PROGRAMS:
        line = [name, *cells(points, plane, name)]
        if any(cell != "-" for cell in line[1:]):
            lines.append(line)
    return table(lines)


def bars_of(figure, points):
    """Returns the table of ratios with bars and verdicts, and the verdicts."""
    judged = not figure.is_by_size
    labels = [label for _, label, *_ in planes(figure)[0].points]
    lines = [["load" if judged else "connections", "ratio", *labels,
              *(("bar", "verdict") if judged else ())]]
    for bar in figure.bars:
        for plane in planes(figure):
            if plane.load != bar.load:
                continue
            first = plane.points[0][2]
            found = [points.ratios(bar.load, (bar.program, bar.other), first, count, bytes_)
                     for _, _, count, bytes_ in plane.points]
            line = [bar.load if judged else plane.title.split()[0], bar.title(first)]
            line += [spread(ratios, 2) if ratios else "-" for ratios in found]
            if judged:
                line += verdict(bar, points, plane)
            lines.append(line)
    return table(lines), [line[-1] for line in lines[1:]] if judged else []


def verdict(bar, points, plane):
    """Returns the bar, and whether the medians are within it at all its points."""
    if not bar.most:
        return ["", ""]
    first, has_floor, met = plane.points[0][2], False, []
    for _, _, count, bytes_ in plane.points:
        if bar.at and count not in bar.at:
            continue
        ratios = points.ratios(bar.load, (bar.program, bar.other), first, count, bytes_)
        bare = bar.floor and points.ratios(bar.load, bar.floor, first, count, bytes_)
        most, floor = bar.most, statistics.median(bare) if bare else 0
        if floor > FLOOR_PART * bar.most:
            most, has_floor = FLOOR_TIMES * floor, True
        met.append(bar.least <= statistics.median(ratios) <= most if ratios else None)
    text = f"{bar.least:.2f} to {bar.most:.2f}" if bar.least else f"{bar.most:.2f}"
    if has_floor:
        text = f"{FLOOR_TIMES} times {' / '.join(bar.floor)} (stated: {text})"
    if bar.at:
        text += " at " + ", ".join(f"{count:,}" for count in bar.at)
    if not met or None in met:
        return [text, "not measured"]
    return [text, "met" if all(met) else "**missed**"]


def gain_over_epoll(figure, points):
    """Returns a sentence with the paper's gain over /dev/epoll and the gain measured over epoll.

    Returns an empty text if it was not measured.
    """
    found = {}
    for plane in planes(figure):
        for _, _, count, bytes_ in plane.points:
            ratios = points.ratios(plane.load, ("uselect", "epoll"), count, count, bytes_)
            if ratios and LOADS[plane.load].value == "cpu_us":
                less = 100 * (1 - statistics.median(ratios))
                found.setdefault(plane.load, []).append(less)
    if not found:
        return ""
    parts = [f"{min(less):.0f} to {max(less):.0f} % ({LOADS[load].title})"
             for load, less in found.items()]
    return (f"The paper's uselect took {PAPER_LESS} % less CPU time than /dev/epoll. Against "
            f"today's epoll it takes less by, in the medians of all points: {'; '.join(parts)}. "
            "Below 0: it takes more than epoll.")


def section(name, figure, notes, rows):
    """Returns the text of a figure for the page."""
    points = Points.of(rows)
    bars, verdicts = bars_of(figure, points)
    rounds = len({row["round"] for row in rows})
    about = (f"{rounds} rounds, mean ± half of the 90 % confidence interval, and in brackets the "
             f"mean CPU time of program, uselectd and client together; ratios are medians "
             f"[least-greatest] of those within a round; of {len(rows)} windows, other programs "
             f"used the core in {sum(row['noisy'] for row in rows)}. {notes['system']}; millrace "
             f"at {notes['commit']}; {notes['peers']}. Command: `{notes['command']}`.")
    if any(verdicts):
        missed, unknown = (verdicts.count(word) for word in ("**missed**", "not measured"))
        about += (f" Bars: {sum(map(bool, verdicts))}, {missed} missed, {unknown} not measured.")
    parts = [f"### {name}: {figure.title}", filled(about)]
    parts += [filled(gain_over_epoll(figure, points))] * bool(gain_over_epoll(figure, points))
    for plane in planes(figure):
        axis = LOADS[plane.load].axis
        parts += [f"*{plane.title}*: {axis}", values_of(figure, points, plane)]
    parts += ["*Ratios*", bars]
    more = [f"* {key}: {text}" for key, text in notes.items()
            if key.startswith(("left out", "waits of"))]
    parts += ["\n".join(filled(note, "  ") for note in more)] * bool(more)
    return "\n\n".join(parts) + "\n"


def filled(text, indent=""):
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False,
                         subsequent_indent=indent)


def write(folder, name, figure):
    """Draws a figure from its CSV in the folder and returns its section."""
    notes, rows = read(f"{folder}/{name}.csv")
    with open(f"{folder}/{name}.svg", "w") as file:
        file.write(picture(figure, rows))
    return section(name, figure, notes, rows)
