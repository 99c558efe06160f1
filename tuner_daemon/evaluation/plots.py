"""Curves as SVG, written by hand: a chart of lines on logarithmic axes needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from tuner_daemon.evaluation.summary import Curves

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 30, 42
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8d5a97", "#e08e1b", "#444444", "#20a4a4", "#a0522d", "#7a7a00", "#d977a8")
_TICKS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


def svg(charts: Sequence[Curves]) -> str:
    """One chart for each split, side by side: typical best/optimum over measurements, one line for each method."""
    parts = [
        _chart(curves.split, {name: curves.typical(name).tolist() for name in curves.methods()}, WIDTH * at)
        for at, curves in enumerate(charts)
    ]
    width = WIDTH * max(len(charts), 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="{width}" height="{HEIGHT}" fill="white"/>\n'
        + "".join(parts)
        + "</svg>\n"
    )


def _chart(title: str, lines: Mapping[str, Sequence[float]], offset: int) -> str:
    """``lines``: name -> best/optimum after 1, 2, … measurements. The excess over 1 is on a logarithmic axis."""
    count = max(map(len, lines.values()))
    top = max(max(line[2:] or line) for line in lines.values())  # the first two are whatever they are
    highest = next((tick for tick in _TICKS if tick >= top), top)

    def x(n: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(n) / math.log(max(count, 2))

    def y(ratio: float) -> float:
        share = _height(min(ratio, highest)) / _height(highest)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [f'<g transform="translate({offset} 0)">\n', _text(WIDTH / 2, 18, title, "middle")]
    for tick in (tick for tick in _TICKS if tick <= highest):
        parts.append(_line([(LEFT, y(tick)), (WIDTH - RIGHT, y(tick))], "#dddddd", 1))
        parts.append(_text(LEFT - 6, y(tick) + 4, f"{tick:g}", "end"))
    for n in (n for n in (1, 2, 5, 8, 16, 32, 50, 96, 200, 500, 1000) if n <= count):
        parts.append(_text(x(n), HEIGHT - BOTTOM + 16, str(n), "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 8, "measurements", "middle"))
    for at, (name, line) in enumerate(lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        parts.append(_line([(x(n), y(ratio)) for n, ratio in enumerate(line, 1)], colour, 2))
        parts.append(_text(WIDTH - RIGHT - 4, TOP + 14 + 14 * at, name, "end", colour))
    return "".join(parts) + "</g>\n"


def _height(ratio: float) -> float:
    """Of a ratio above the axis: linear in the logarithm of its excess above a hundredth."""
    return math.log1p((max(ratio, 1.0) - 1.0) / 0.01)


def _line(points: Sequence[tuple[float, float]], colour: str, width: int) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="{path}"/>\n'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>\n'
