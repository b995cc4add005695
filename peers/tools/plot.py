"""Draws curves, or bars, with confidence intervals as SVG, in panels side by side.

An axis is linear or logarithmic. A point is (x, y, half of its interval). A curve has a colour and
a dash. One legend is under all panels. All lengths are in pixels.
"""
import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 320  # of the plane of a panel
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 56, 56  # around it
LEGEND_ROW, LEGEND_COLUMN = 18, 235
LABEL_GAP = 34  # between the centres of two labels of the x axis
TICKS = 6  # on a linear axis, about


@dataclass
class Curve:
    """One line of a panel."""

    name: str
    colour: str
    dash: str
    points: list  # of (x, y, half), x rising


@dataclass
class Axis:
    """An axis that maps `low` to `high` to `length` pixels."""

    title: str
    log: bool
    length: int
    low: float = 0
    high: float = 1
    labels: list = field(default_factory=list)  # of (value, text)

    def fit(self, values):
        """Sets the bounds so that all values are visible. A linear axis starts at 0."""
        least, most = min(values), max(values)
        if self.log:
            self.low, self.high = least / 1.25, most * 1.25
        else:
            self.low, self.high = 0, most * 1.08 or 1
        return self

    def at(self, value):
        """Returns the pixels from the start of the axis to a value."""
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.length * min(max(part, 0), 1)

    def ticks(self):
        """Returns (value, text) of each line across the panel."""
        if self.labels:
            return self.labels
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            parts = (1,) if self.high / self.low > 100 else (1, 2, 5)
            values = [part * 10.0**power for power in powers for part in parts]
        else:
            step = step_of(self.high - self.low)
            values = [step * number for number in range(int(self.high / step) + 1)]
        return [(value, f"{value:.10g}") for value in values if self.low <= value <= self.high]


def step_of(span):
    """Returns the least step of 1, 2 or 5 times a power of ten with at most TICKS steps."""
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    return next(part * power for part in (1, 2, 5, 10) if span / (part * power) <= TICKS)


@dataclass
class Panel:
    """One plane with its axes and curves."""

    title: str
    x: Axis
    y: Axis
    curves: list
    level: float = None  # y of a horizontal line that the curves are compared with
    has_bars: bool = False  # instead of curves; the x of a group of bars is a whole number


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def grid(panel):
    """Returns the lines of both axes and their labels."""
    parts, last = [], -LABEL_GAP
    for value, label in panel.x.ticks():
        x = panel.x.at(value)
        parts.append(line(x, 0, x, HEIGHT, 'class="grid"'))
        if x - last >= LABEL_GAP:
            parts.append(text(x, HEIGHT + 16, label))
            last = x
    for value, label in panel.y.ticks():
        y = HEIGHT - panel.y.at(value)
        parts.append(line(0, y, WIDTH, y, 'class="grid"'))
        parts.append(text(-6, y + 4, label, "end"))
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" class="frame"/>')
    parts.append(text(WIDTH / 2, HEIGHT + 38, panel.x.title))
    turned = f' transform="rotate(-90 -50 {HEIGHT / 2})"'
    parts.append(text(-50, HEIGHT / 2, panel.y.title, more=turned))
    parts.append(text(WIDTH / 2, -10, panel.title, more=' class="title"'))
    return parts


def drawn(panel, curve):
    """Returns the line of a curve, its points and their intervals."""
    style = f'stroke="{curve.colour}"'
    places = [(panel.x.at(x), HEIGHT - panel.y.at(y)) for x, y, _ in curve.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dash = f' stroke-dasharray="{curve.dash}"' * bool(curve.dash)
    parts = [f'<polyline points="{path}" fill="none" stroke-width="1.6" {style}{dash}/>']
    for (x, y), (_, value, half) in zip(places, curve.points):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{curve.colour}"/>')
        parts += whisker(panel, x, value, half, style)
    return parts


def whisker(panel, x, value, half, style):
    """Returns the interval of a point."""
    least = panel.y.low if panel.y.log else 0
    ends = [HEIGHT - panel.y.at(max(value + side * half, least)) for side in (-1, 1)]
    return [line(x, ends[0], x, ends[1], style),
            *(line(x - 3, end, x + 3, end, style) for end in ends)]


def bars(panel, number, curve):
    """Returns the bars of a curve, which is the one with this number in its panel."""
    width = (panel.x.at(2) - panel.x.at(1)) * 0.8 / len(panel.curves)
    parts = []
    for x, value, half in curve.points:
        left = panel.x.at(x) + (number - len(panel.curves) / 2) * width
        height = panel.y.at(value)
        parts.append(f'<rect x="{left:.1f}" y="{HEIGHT - height:.1f}" width="{width:.1f}" '
                     f'height="{height:.1f}" fill="{curve.colour}"/>')
        parts += whisker(panel, left + width / 2, value, half, 'stroke="#222"')
    return parts


def plane(panel, left, top):
    """Returns a panel at its position."""
    parts = [f'<g transform="translate({left} {top})">', *grid(panel)]
    if panel.level is not None:
        y = HEIGHT - panel.y.at(panel.level)
        parts.append(line(0, y, WIDTH, y, 'class="level"'))
    for number, curve in enumerate(panel.curves):
        parts += bars(panel, number, curve) if panel.has_bars else drawn(panel, curve)
    return [*parts, "</g>"]


def legend(curves, top, columns):
    """Returns a short line and a name for each curve."""
    parts = []
    for number, curve in enumerate(curves):
        x = LEFT + number % columns * LEGEND_COLUMN
        y = top + number // columns * LEGEND_ROW
        dash = f' stroke-dasharray="{curve.dash}"' * bool(curve.dash)
        parts.append(line(x, y, x + 32, y, f'stroke="{curve.colour}" stroke-width="2"{dash}'))
        parts.append(text(x + 40, y + 4, curve.name, "start"))
    return parts


def svg(title, panels):
    """Returns the whole picture. The legend has the curves of the first panel."""
    step = LEFT + WIDTH + RIGHT
    width, columns = step * len(panels), max(1, step * len(panels) // LEGEND_COLUMN)
    names = panels[0].curves
    top = TOP + HEIGHT + BOTTOM
    height = top + -(-len(names) // columns) * LEGEND_ROW + 8
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             f'width="{width}" height="{height}">',
             "<style>text{font:12px sans-serif;fill:#222}.title{font-weight:bold}"
             ".grid{stroke:#ddd}.frame{fill:none;stroke:#888}"
             ".level{stroke:#222;stroke-dasharray:2 3}</style>",
             '<rect width="100%" height="100%" fill="white"/>',
             text(width / 2, 22, title, more=' class="title"')]
    for number, panel in enumerate(panels):
        parts += plane(panel, LEFT + number * step, TOP)
    return "\n".join([*parts, *legend(names, top + 8, columns), "</svg>"]) + "\n"
