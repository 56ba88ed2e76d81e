"""Curves as SVG, without any library: a few lines, axes and words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from simulation.autoscaling.mesh import Curve

WIDTH: Final = 760
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 52, 40, 36
_COLOURS: Final = {"load": "#9aa0a6", "wanted": "#d93025", "ready": "#1a73e8"}
_WORDS: Final = {"load": "calls that wait or run", "wanted": "replicas that should run", "ready": "replicas ready"}


def draw(title: str, curve: Curve) -> str:
    """Calls by the axis on the left, replicas by that on the right; seconds below."""
    most_calls, most_replicas = _round_up(max(curve.load)), _round_up(max(*curve.wanted, *curve.ready))
    seconds = len(curve.load)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share, 1.0)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:g}" y2="{y:g}" stroke="#e8eaed"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end" fill="#5f6368">{share * most_calls:g}</text>'
        )
        parts.append(f'<text x="{WIDTH - _RIGHT + 6}" y="{y + 4:g}" fill="#1a73e8">{share * most_replicas:g}</text>')
        x = _x(share * seconds, seconds)
        parts.append(
            f'<text x="{x:g}" y="{HEIGHT - 16}" text-anchor="middle" fill="#5f6368">{share * seconds:g} s</text>'
        )
    parts.append(_line(curve.load, most_calls, "load", steps=False))
    parts.append(_line(curve.wanted, most_replicas, "wanted", steps=True))
    parts.append(_line(curve.ready, most_replicas, "ready", steps=True))
    for place, (name, words) in enumerate(_WORDS.items()):
        x = _LEFT + place * 200
        parts.append(f'<rect x="{x}" y="25" width="14" height="3" fill="{_COLOURS[name]}"/>')
        parts.append(f'<text x="{x + 20}" y="31" fill="#3c4043">{words}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _line(values: Sequence[int], most: float, name: str, *, steps: bool) -> str:
    points: list[str] = []
    for second, value in enumerate(values):
        if steps and second and value != values[second - 1]:
            points.append(f"{_x(second, len(values)):.1f},{_y(values[second - 1], most):.1f}")
        points.append(f"{_x(second, len(values)):.1f},{_y(value, most):.1f}")
    width = 1 if name == "load" else 2
    return f'<polyline fill="none" stroke="{_COLOURS[name]}" stroke-width="{width}" points="{" ".join(points)}"/>'


def _x(second: float, seconds: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * second / seconds


def _y(value: float, most: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / most


def _round_up(value: float) -> int:
    """To a multiple of 4, so that quarters are whole."""
    return max(4, -(-int(value) // 4) * 4)
