"""The picture of a calibration as a ComfyUI IMAGE: risk and its bound against how much is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..calibration import Outcome
from ..certify import Point

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 60
INK, GRID, RISK, BOUND, ASKED, CHOSEN = "#202020", "#dddddd", "#1f77b4", "#d62728", "#808080", "#2ca02c"
HIGHEST = 1.0  # risk; less where that shows more


def risk_plot(outcome: Outcome, delta: float) -> torch.Tensor:
    """IMAGE [1, 440, 720, 3] float32 in 0..1.

    Args:
        delta: the risk that is asked for.
    """
    import numpy as np
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(picture)
    top = _highest(outcome.curve, delta)

    def place(coverage: float, risk: float) -> tuple[float, float]:
        x = LEFT + coverage * (WIDTH - LEFT - RIGHT)
        return x, TOP + (1 - min(risk, top) / top) * (HEIGHT - TOP - BOTTOM)

    _axes(draw, place, top)
    draw.line([place(0, delta), place(1, delta)], ASKED, 2)
    _text(draw, place(0.5, delta), f"asked for: {delta:.1%}", ASKED, (0.5, 1.4))
    if outcome.curve:
        for colour, value in ((BOUND, lambda point: point.bound), (RISK, lambda point: point.unsafe / point.accepted)):
            _steps(draw, [place(point.coverage, value(point)) for point in outcome.curve], colour)
        _text(draw, (LEFT, TOP - 30), "unsafe share of what a limit accepts", RISK)
        _text(draw, (LEFT + 260, TOP - 30), "its upper bound, each limit on its own", BOUND)
    else:
        done = "{clusters} of {needed} independent verdicts in the tested part".format(**outcome.progress)
        _text(draw, place(0.5, top / 2), f"nothing was tested: {done}", INK, (0.5, 0.5))
    if outcome.certificate is not None:
        x, y = place(outcome.certificate.coverage, outcome.certificate.bound)
        draw.ellipse([x - 5, y - 5, x + 5, y + 5], CHOSEN)
        _text(draw, (x - 8, y - 8), "certified", CHOSEN, (1.0, 1.0))
    return torch.from_numpy(np.asarray(picture, np.float32) / 255)[None]


def _highest(curve: Iterable[Point], delta: float) -> float:
    """Top of the picture: room above what is asked for, and what of the curve is near it."""
    risks = [point.unsafe / point.accepted for point in curve]
    return min(HIGHEST, max(4 * delta, 1.2 * max(risks, default=0.0)))


def _axes(draw: Any, place: Callable[[float, float], tuple[float, float]], top: float) -> None:
    for part in range(6):
        share = part / 5
        x, y = place(share, 0)
        draw.line([place(share, 0), place(share, top)], GRID)
        _text(draw, (x, y + 6), f"{share:.0%}", INK, (0.5, 0.0))
        x, y = place(0, share * top)
        draw.line([place(0, share * top), place(1, share * top)], GRID)
        _text(draw, (x - 6, y), f"{share * top:.1%}", INK, (1.0, 0.5))
    draw.line([place(0, top), place(0, 0), place(1, 0)], INK)
    _text(draw, (place(0.5, 0)[0], HEIGHT - 24), "coverage: accepted share of the tested verdicts", INK, (0.5, 0.5))
    _text(draw, (LEFT, TOP - 46), "risk", INK, (1.0, 0.0))


def _text(draw: Any, at: tuple[float, float], text: str, colour: str, side: tuple[float, float] = (0.0, 0.0)) -> None:
    """Write where ``side`` of the text lies at the place: 0 its left or top, 1 its right or bottom."""
    left, top, right, bottom = draw.textbbox((0, 0), text)
    draw.text((at[0] - left - side[0] * (right - left), at[1] - top - side[1] * (bottom - top)), text, colour)


def _steps(draw: Any, points: list[tuple[float, float]], colour: str) -> None:
    corners = points[:1]
    for before, after in zip(points, points[1:], strict=False):
        corners += [(after[0], before[1]), after]
    draw.line(corners, colour, 2)
