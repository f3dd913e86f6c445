"""Contact sheets: a few frames of many clips in one picture, with their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor


def contact_sheet(
    videos: Sequence[Tensor],
    titles: Sequence[str],
    path: Path,
    frames: Sequence[int] = (0, 8, 16),
    columns: int = 2,
    scale: int = 160,
) -> None:
    """Write a JPEG sheet. videos: each [F, H, W, 3] float in [0, 1]; one row of frames per clip, title above."""
    margin, text = 6, 16
    width = columns * (len(frames) * scale + 2 * margin)
    rows = -(-len(videos) // columns)
    sheet = Image.new("RGB", (width, rows * (scale + text + margin)), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (video, title) in enumerate(zip(videos, titles, strict=True)):
        left = (i % columns) * (len(frames) * scale + 2 * margin) + margin
        top = (i // columns) * (scale + text + margin)
        pen.text((left, top + 2), title[: len(frames) * scale // 6], fill="black")
        for j, frame in enumerate(frames):
            pixels = (video[frame].clamp(0, 1).cpu().numpy() * 255).round().astype(np.uint8)
            picture = Image.fromarray(pixels).resize((scale, scale), Image.LANCZOS)
            sheet.paste(picture, (left + j * scale, top + text))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, quality=90)
