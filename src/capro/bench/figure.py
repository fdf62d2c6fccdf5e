"""Figures as plain SVG: no plotting package, the same text everywhere. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from capro.bench.summary import TableResult, spread
from capro.results.open_set import Curve

WIDTH, LEFT, RIGHT, TOP = 760, 250, 70, 46
STEP = 26  # height of a row
SERIES_COLOURS = ("#1f6feb", "#d1495b", "#2a9d5c", "#b07d12", "#7a4fbf", "#4a5568", "#0f8b8d", "#c2410c")
Point = tuple[float, float]
Scale = Callable[[float], float]  # from a value to where it is drawn


def draw(result: TableResult) -> str:
    """The figure that fits a result: a line over a numeric axis, or dots by row."""
    return line(result) if result.axis else dots(result)


def dots(result: TableResult) -> str:
    """One line per row: every seed a light dot, the mean a full one, the spread a bar."""
    metric = result.metrics[0]
    rows = [(row.name, [100 * v for v in row.values(metric).values()]) for row in result.rows]
    rows = [(label, values) for label, values in rows if values]
    low, high = _range([value for _, values in rows for value in values])
    height = TOP + STEP * len(rows) + 40
    x = _scale(low, high, LEFT, WIDTH - RIGHT)
    parts = [_title(result.title), *_x_axis(low, high, x, height, f"{metric}, %")]
    for number, (label, values) in enumerate(rows):
        y = TOP + STEP * number + STEP / 2
        over_seeds = spread(values)
        parts.append(_text(LEFT - 10, y + 4, _short(label), anchor="end"))
        if not math.isnan(over_seeds.std):
            a, b = x(over_seeds.mean - over_seeds.std), x(over_seeds.mean + over_seeds.std)
            parts.append(_path([(a, y), (b, y)], SERIES_COLOURS[0], 2))
        parts += [_dot(x(value), y, 3, SERIES_COLOURS[0], 0.35) for value in values]
        parts.append(_dot(x(over_seeds.mean), y, 5, SERIES_COLOURS[0]))
        parts.append(_text(WIDTH - RIGHT + 10, y + 4, f"{over_seeds.mean:.1f}"))
    return _svg(height, parts)


def line(result: TableResult) -> str:
    """Mean and spread of every metric over a numeric axis; places are equally far apart."""
    rows = [row for row in result.rows if row.figures and row.x is not None]
    rows.sort(key=lambda row: row.x or 0.0)
    values = [100 * v for row in rows for m in result.metrics for v in row.values(m).values()]
    low, high = _range(values)
    height = 360
    bottom = height - 50
    x = _scale(0, max(1, len(rows) - 1), 90, WIDTH - 140)
    y = _scale(low, high, bottom, TOP)
    parts = [_title(result.title), *_y_axis(low, high, y, 70, WIDTH - 130)]
    parts += [_text(x(n), bottom + 18, row.label, anchor="middle") for n, row in enumerate(rows)]
    parts.append(_text((WIDTH - 60) / 2, height - 10, result.axis, anchor="middle"))
    for place, metric in enumerate(result.metrics):
        colour = SERIES_COLOURS[place % len(SERIES_COLOURS)]
        means = []
        for number, row in enumerate(rows):
            own = [100 * v for v in row.values(metric).values()]
            if not own:
                continue
            over_seeds = spread(own)
            means.append((x(number), y(over_seeds.mean)))
            if not math.isnan(over_seeds.std):
                ends = [(x(number), y(over_seeds.mean + s * over_seeds.std)) for s in (-1, 1)]
                parts.append(_path(ends, colour, 1.5))
            parts.append(_dot(x(number), y(over_seeds.mean), 4, colour))
        parts.append(_path(means, colour, 2))
        if means:
            parts.append(_text(means[-1][0] + 14, means[-1][1] + 4, metric, colour=colour))
    return _svg(height, parts)


def curves(title: str, by_row: Mapping[str, Curve]) -> str:
    """C-F1 over the threshold, in percent: a curve for each row, with a legend."""
    height = 340 + 18 * len(by_row)
    bottom = 300
    low, high = _range([0.0, *(100 * point.f1 for curve in by_row.values() for point in curve)])
    x = _scale(0, 1, 70, WIDTH - 60)
    y = _scale(low, high, bottom, TOP)
    parts = [_title(title), *_y_axis(low, high, y, 70, WIDTH - 60)]
    parts += [_text(x(tick), bottom + 18, f"{tick:g}", anchor="middle") for tick in ticks(0, 1)]
    parts.append(_text(x(0.5), bottom + 36, "threshold", anchor="middle"))
    for number, (label, curve) in enumerate(by_row.items()):
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        parts.append(_path([(x(point.threshold), y(100 * point.f1)) for point in curve], colour, 2))
        top = bottom + 50 + 18 * number
        parts.append(_path([(80, top), (110, top)], colour, 3))
        parts.append(_text(118, top + 4, label))
    return _svg(height, parts)


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Horizontal bars with their values."""
    high = max([value for _, value in rows] or [1.0]) or 1.0
    height = TOP + STEP * len(rows) + 20
    parts = [_title(title)]
    for number, (label, value) in enumerate(rows):
        y = TOP + STEP * number
        length = value / high * (WIDTH - LEFT - RIGHT - 30)
        parts.append(_text(LEFT - 10, y + 17, _short(label), anchor="end"))
        parts.append(
            f'<rect x="{LEFT}" y="{y + 5}" width="{length:.1f}" height="{STEP - 10}" fill="{SERIES_COLOURS[0]}"/>'
        )
        parts.append(_text(LEFT + length + 8, y + 17, f"{value:,.2f} {unit}"))
    return _svg(height, parts)


# --- pieces ---------------------------------------------------------------------------------------


def _range(values: Sequence[float]) -> Point:
    """A little more than the values take; never empty."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    margin = max(0.05 * (high - low), 0.5)
    return low - margin, high + margin


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    """Places between start and end for values between low and high."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round places on an axis.

    >>> ticks(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _x_axis(low: float, high: float, x: Scale, height: float, label: str) -> list[str]:
    parts = []
    for tick in ticks(low, high, 8):
        at = x(tick)
        parts.append(_path([(at, TOP - 4), (at, height - 34)], "#d0d7de", 1))
        parts.append(_text(at, height - 20, f"{tick:g}", anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 4, label, anchor="middle"))
    return parts


def _y_axis(low: float, high: float, y: Scale, left: float, right: float) -> list[str]:
    parts = []
    for tick in ticks(low, high, 8):
        at = y(tick)
        parts.append(_path([(left, at), (right, at)], "#d0d7de", 1))
        parts.append(_text(left - 8, at + 4, f"{tick:g}", anchor="end"))
    return parts


def _short(label: str) -> str:
    """What fits left of the axis: 38 characters."""
    return label if len(label) <= 38 else label[:37].rstrip() + "…"


def _title(text: str) -> str:
    return f'<text x="16" y="24" font-size="15" font-weight="600">{escape(text)}</text>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#1f2328") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _dot(x: float, y: float, radius: float, colour: str, opacity: float = 1.0) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}" opacity="{opacity}"/>'


def _path(points: Sequence[Point], colour: str, width: float) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
