"""The contact sheet: per request its result, the donor's, the stock result and the evidence, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from .runs import Clip, Row

FRAMES = 3
THUMB = 132
GAP = 4
GROUP = FRAMES * THUMB + (FRAMES - 1) * GAP
CAPTION = 300
PAD = 16
HEADER = 48

INK = (32, 34, 40)
QUIET = (120, 124, 134)
PAPER = (255, 255, 255)
EMPTY = (244, 245, 247)
DECISION_COLOURS = {
    "hit": (22, 128, 76),
    "miss": (96, 100, 112),
    "declined": (176, 92, 16),
    "off": (96, 100, 112),
}

GROUPS = ("with Carnator", "donor", "stock KSampler", "evidence: what was computed anew")

Evidence = Image.Image | None


def write_sheet(path: Path, rows: Sequence[Row], donors: Sequence[Row | None], evidence: Sequence[Evidence]) -> None:
    lefts = [PAD + CAPTION + PAD + i * (GROUP + PAD) for i in range(len(GROUPS))]
    row_height = THUMB + PAD
    sheet = Image.new("RGB", (lefts[-1] + GROUP + PAD, HEADER + len(rows) * row_height + PAD), PAPER)
    draw = ImageDraw.Draw(sheet)
    for left, title in zip(lefts, GROUPS, strict=True):
        draw.text((left, PAD), title, INK, _font(15))
    for i, (row, donor, picture) in enumerate(zip(rows, donors, evidence, strict=True)):
        top = HEADER + i * row_height
        _caption(draw, top, row)
        _clip(sheet, lefts[0], top, row.ours)
        if donor is not None:
            _clip(sheet, lefts[1], top, donor.ours)
            if row.decision != "hit":
                _tag(draw, lefts[1], top, "nearest one, refused")
        else:
            _nothing(draw, lefts[1], top, "no donor")
        _clip(sheet, lefts[2], top, row.stock)
        if picture is not None:
            _fitted(sheet, lefts[3], top, picture)
        else:
            _nothing(draw, lefts[3], top, "everything computed")
    sheet.save(path)


def _caption(draw: ImageDraw.ImageDraw, top: int, row: Row) -> None:
    draw.text((PAD, top), row.request.label, INK, _font(15))
    verdict = row.decision
    if row.decision == "hit":
        # "x", not the multiplication sign: Pillow's built-in font lacks it
        verdict += f", {row.speedup:.1f}x as fast, region {row.report['region_share'] or 0:.0%}"
    draw.text((PAD, top + 20), verdict, DECISION_COLOURS[row.decision], _font(14))
    right, stock_right = (f"{sum(scores.values())}/{len(scores)}" for scores in (row.right, row.stock_right))
    right = f"attributes right: {right}, stock {stock_right}"
    lines = [*textwrap.wrap(row.request.prompt, 44)[:3], right]
    if row.decision != "hit":
        lines[-1:-1] = textwrap.wrap(row.report["reason"], 44)[:2]
    for number, line in enumerate(lines):
        draw.text((PAD, top + 42 + 15 * number), line, QUIET, _font(12))


def _clip(sheet: Image.Image, left: int, top: int, clip: Clip) -> None:
    for i, frame in enumerate(torch.linspace(0, len(clip.frames) - 1, FRAMES).round().long().tolist()):
        pixels = (clip.frames[frame].clamp(0, 1) * 255).round().to(torch.uint8).numpy()
        thumb = Image.fromarray(pixels).resize((THUMB, THUMB), Image.Resampling.LANCZOS)
        sheet.paste(thumb, (left + i * (THUMB + GAP), top))


def _fitted(sheet: Image.Image, left: int, top: int, picture: Image.Image) -> None:
    scale = min(GROUP / picture.width, THUMB / picture.height)
    size = (round(picture.width * scale), round(picture.height * scale))
    sheet.paste(picture.resize(size, Image.Resampling.LANCZOS), (left, top + (THUMB - size[1]) // 2))


def _tag(draw: ImageDraw.ImageDraw, left: int, top: int, text: str) -> None:
    font = _font(13)
    width = round(draw.textlength(text, font)) + 12
    draw.rectangle((left, top, left + width, top + 20), PAPER)
    draw.text((left + 6, top + 10), text, INK, font, anchor="lm")


def _nothing(draw: ImageDraw.ImageDraw, left: int, top: int, text: str) -> None:
    draw.rectangle((left, top, left + GROUP - 1, top + THUMB - 1), EMPTY)
    draw.text((left + GROUP // 2, top + THUMB // 2), text, QUIET, _font(13), anchor="mm")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
