"""Renders scenes to video with signed distance functions.

The picture is a pure per-pixel function of a parameter table, so that the whole renderer can be compiled into one
kernel. Everything that the prompt does not name (start position, horizon, hills, buildings, clouds, particles) is
drawn independently of the scene.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .grammar import ATTRIBUTES, Scene

FRAMES = 17
SIZE = 256
TRAVEL = 76.0
ORBIT = 24.0
RADII = {"small": 31.0, "large": 54.0}
NUISANCE = 12  # random numbers per clip

COLOURS = {
    "red": (0.88, 0.13, 0.15),
    "yellow": (0.99, 0.82, 0.13),
    "green": (0.13, 0.66, 0.24),
    "blue": (0.13, 0.32, 0.90),
    "purple": (0.56, 0.20, 0.74),
    "white": (0.97, 0.97, 0.97),
}
# Per background: top of the sky, sky at the horizon, far ground, near ground.
PALETTES = {
    "meadow": ((0.36, 0.66, 0.93), (0.80, 0.92, 0.97), (0.46, 0.70, 0.42), (0.25, 0.50, 0.18)),
    "desert": ((0.42, 0.73, 0.83), (0.99, 0.88, 0.70), (0.93, 0.73, 0.45), (0.76, 0.46, 0.22)),
    "ocean": ((0.45, 0.72, 0.93), (0.93, 0.93, 0.90), (0.20, 0.60, 0.70), (0.04, 0.25, 0.45)),
    "city": ((0.30, 0.25, 0.50), (0.99, 0.66, 0.48), (0.36, 0.28, 0.42), (0.17, 0.15, 0.26)),
    "mountains": ((0.50, 0.68, 0.90), (0.88, 0.90, 0.97), (0.47, 0.52, 0.66), (0.32, 0.40, 0.38)),
}


def parameters(indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw the parameter table of clips.

    indices: [B, 6] integers as in `Scene.indices`, on the generator's device. Returns [B, 38] float32: the
    indices (6), object colour (3), palette (4 x 3), radius, direction x and y, radius of the orbit, nuisance
    numbers in [0, 1) (11), start position x and y in pixels.
    """
    device = indices.device
    colours = torch.tensor(list(COLOURS.values()), device=device)[indices[:, 1]]
    radius = torch.tensor(list(RADII.values()), device=device)[indices[:, 2]]
    palette = torch.tensor(list(PALETTES.values()), device=device)[indices[:, 4]].flatten(1)
    noise = torch.rand(len(indices), NUISANCE + 2, generator=generator, device=device)
    radius = radius + 4.0 * (noise[:, 0] - 0.5)
    # the start is chosen so that the whole path stays inside the picture
    names = list(ATTRIBUTES["motion"])
    dx = torch.tensor([{"left": -1.0, "right": 1.0}.get(n, 0.0) for n in names], device=device)[indices[:, 3]]
    dy = torch.tensor([{"up": -1.0, "down": 1.0}.get(n, 0.0) for n in names], device=device)[indices[:, 3]]
    turn = ORBIT * (indices[:, 3] == names.index("circle"))
    margin = radius + 5.0 + turn
    low_x, high_x = margin + TRAVEL * (dx < 0), SIZE - margin - TRAVEL * (dx > 0)
    low_y, high_y = margin + TRAVEL * (dy < 0), 0.84 * SIZE - margin - TRAVEL * (dy > 0)
    high_y = torch.maximum(high_y, low_y + 2.0)
    x = low_x + (high_x - low_x) * noise[:, -2]
    y = low_y + (high_y - low_y) * noise[:, -1]
    columns = (indices.float(), colours, palette, radius[:, None], dx[:, None], dy[:, None], turn[:, None])
    return torch.cat([*columns, noise[:, 1:NUISANCE], x[:, None], y[:, None]], dim=1)


def _fract(x: Tensor) -> Tensor:
    return x - torch.floor(x)


def _hash(x: Tensor) -> Tensor:
    return _fract(torch.sin(x * 12.9898) * 437.585)


def _step(low: float, high: float, x: Tensor) -> Tensor:
    t = ((x - low) / (high - low)).clamp(0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def _triangle(x: Tensor) -> Tensor:
    return (2.0 * _fract(x) - 1.0).abs()


def _mix(base: list[Tensor], colour: list, alpha: Tensor) -> list[Tensor]:
    return [b + (c - b) * alpha for b, c in zip(base, colour, strict=True)]


def _choose(index: Tensor, values: tuple[Tensor, ...]) -> Tensor:
    out = values[0]
    for i, value in enumerate(values[1:], start=1):
        out = torch.where(index == i, value, out)
    return out


def _star(px: Tensor, py: Tensor, radius: Tensor) -> Tensor:
    sector = 2.0 * math.pi / 5.0
    angle = torch.atan2(px, -py)
    folded = (_fract(angle / sector + 0.5) - 0.5).abs() * sector
    length = (px * px + py * py + 1e-6).sqrt()
    qx, qy = length * torch.sin(folded), length * torch.cos(folded)
    # edge from the outer tip (0, R) to the inner corner
    inner = 0.48
    ax, ay = inner * math.sin(sector / 2), inner * math.cos(sector / 2) - 1.0
    norm = math.hypot(ax, ay)
    return -(qx * (ay / norm) - (qy - radius) * (ax / norm))


def _object_distance(shape: Tensor, px: Tensor, py: Tensor, radius: Tensor) -> Tensor:
    length = (px * px + py * py + 1e-6).sqrt()
    ball = length - radius
    half = 0.86 * radius - 5.0
    bx, by = px.abs() - half, py.abs() - half
    outside = (bx.clamp(min=0.0) ** 2 + by.clamp(min=0.0) ** 2 + 1e-6).sqrt()
    cube = outside + torch.maximum(bx, by).clamp(max=0.0) - 5.0
    star = _star(px, py + 0.06 * radius, 1.16 * radius)
    ring = (length - 0.76 * radius).abs() - 0.25 * radius
    return _choose(shape, (ball, cube, star, ring))


def _land(
    where: Tensor, x: Tensor, y: Tensor, t: Tensor, p: list[Tensor], picture: list[Tensor], colours: tuple
) -> list[Tensor]:
    """Everything below the skyline. `p` are nuisance numbers; `colours` = (sky low, far, near)."""
    haze, far, near = colours
    horizon = p[0]
    depth = ((y - horizon) / (SIZE - horizon)).clamp(0.0, 1.0)
    phase = 6.2832 * p[1]
    city, mountain = where == 3, where == 4
    # far layer: rolling hills, dunes, flat sea, skyline, peaks
    hills = horizon - 16.0 - 13.0 * torch.sin(x / 38.0 + phase) - 6.0 * torch.sin(x / 17.0 + 2.0 * phase)
    dunes = horizon - 6.0 - 15.0 * _triangle(x / 150.0 + p[1]) - 4.0 * torch.sin(x / 45.0 + phase)
    peaks = horizon + 18.0 - 84.0 * (1.0 - _triangle(x / 118.0 + p[1])) - 30.0 * (1.0 - _triangle(x / 61.0 + p[2]))
    column = torch.floor(x / 36.0 + 8.0 * p[1])
    tower = horizon - 12.0 - 92.0 * _hash(column + 61.0 * p[2])
    line = _choose(where, (hills, dunes, horizon, tower, peaks))
    solid = torch.sigmoid((y - line) / 1.1)
    shade = _hash(column * 1.7 + 23.0 * p[3]) * 0.18
    lift = ((y - line) / 70.0).clamp(0.0, 1.0)
    body = []
    for f, h in zip(far, haze, strict=True):
        soft, walls, rock = (
            f + (h - f) * 0.35 * (1 - lift),
            f * (0.78 + shade) + h * 0.22 * lift,
            f * (1.1 - 0.35 * lift),
        )
        body.append(_choose(where, (soft, soft, soft, walls, rock)))
    cap = mountain * torch.sigmoid((line + 26.0 + 7.0 * torch.sin(x / 9.0 + phase) - y) / 3.0)
    body = _mix(body, [0.97, 0.98, 1.0], cap)
    wx = _fract(x / 36.0 + 8.0 * p[1]) * 36.0 - 18.0
    wy = _fract((y - tower) / 26.0) * 26.0 - 14.0
    pane = torch.sigmoid((4.4 - (wx.abs() - 8.0).abs()) / 1.2) * torch.sigmoid((6.0 - wy.abs()) / 1.2)
    lit = city * pane * (_hash(column * 3.1 + torch.floor((y - tower) / 26.0) * 7.7) > 0.4) * (y - tower > 3.0)
    body = _mix(body, [1.0, 0.86, 0.50], 0.85 * lit)
    picture = _mix(picture, body, solid)
    # near layer
    front_hills = horizon + 22.0 + 11.0 * torch.sin(x / 52.0 + 1.7 * phase + 1.0)
    front_dunes = horizon + 34.0 + 20.0 * _triangle(x / 210.0 + p[2])
    front = _choose(where, (front_hills, front_dunes, horizon, horizon + 12.0, front_hills))
    wave = torch.sin(y / (2.5 + 9.0 * depth) + 0.8 * torch.sin(x / 37.0 + phase) + 0.35 * t)
    ripples = torch.sin((y - front) / 9.0 + x / 60.0)
    light = 0.05 * ripples * (where == 1) + 0.10 * wave * (0.3 + depth) * (where == 2)
    ground = [f + (n - f) * depth.sqrt() + light for f, n in zip(far, near, strict=True)]
    return _mix(picture, ground, torch.sigmoid((y - front) / 1.1))


def _weather(kind: Tensor, x: Tensor, y: Tensor, t: Tensor, p: list[Tensor], picture: list[Tensor]) -> list[Tensor]:
    """Rain streaks, snowflakes and fog in front of everything."""
    rain, snow, fog = (kind == i for i in (1, 2, 3))
    # rain: slanted streaks that fall along their own direction
    rx = (x + 0.25 * y) / 27.0 + 9.0 * p[1]
    lane = torch.floor(rx)
    ry = (y - 7.0 * t) / 74.0 + _hash(lane + 17.0 * p[2])
    across, along = (_fract(rx) - 0.5) * 27.0, (_fract(ry) - 0.5) * 74.0
    drop = torch.exp(-((across / 2.6) ** 2)) * torch.sigmoid((21.0 - along.abs()) / 3.0)
    picture = _mix(picture, [0.88, 0.93, 1.0], 0.60 * drop * rain)
    # snow: soft round flakes, two sizes
    for scale, speed, size, offset in ((60.0, 2.2, 6.6, 0.0), (43.0, 1.5, 4.8, 0.37)):
        sx = (x + 5.0 * torch.sin(t / 9.0 + 6.28 * p[1])) / scale + 9.0 * p[1] + offset
        lane = torch.floor(sx)
        sy = (y - speed * t) / scale + _hash(lane + 31.0 * p[2] + offset)
        cell = torch.floor(sy)
        jitter = 0.5 * (_hash(lane * 1.3 + cell * 7.1) - 0.5)
        ax, ay = (_fract(sx) - 0.5 + jitter) * scale, (_fract(sy) - 0.5) * scale
        flake = torch.sigmoid((size - (ax * ax + ay * ay + 1e-6).sqrt()) / 1.3)
        picture = _mix(picture, [1.0, 1.0, 1.0], 0.92 * flake * snow)
    bank = 0.5 + 0.5 * torch.sin(y / 27.0 + 0.6 * torch.sin(x / 60.0 + t / 12.0) + 6.28 * p[2])
    low = torch.exp(-(((y - 160.0) / 90.0) ** 2))
    return _mix(picture, [0.86, 0.88, 0.90], fog * (0.12 + 0.14 * bank + 0.16 * low))


def _centre(col: list[Tensor] | tuple[Tensor, ...], t: Tensor) -> tuple[Tensor, Tensor]:
    """Object centre in pixels at frame numbers `t`; `col` are the columns of the parameter table."""
    dx, dy, turn, phase, start_x, start_y = *col[22:25], col[25 + 9], col[-2], col[-1]
    travel = TRAVEL * t / (FRAMES - 1)
    angle = 6.2832 * t / FRAMES + 6.2832 * phase * (turn > 0)
    return start_x + dx * travel + turn * torch.cos(angle), start_y + dy * travel + turn * torch.sin(angle)


def object_area(table: Tensor) -> Tensor:
    """Which latent cells the object touches: bool [B, 5, 32, 32], with a margin of one cell."""
    cells = (torch.arange(SIZE // 8, device=table.device) + 0.5) * 8.0
    col = [c.reshape(-1, 1, 1, 1) for c in table.unbind(1)]
    t = torch.arange(FRAMES, device=table.device, dtype=torch.float32).view(1, -1, 1, 1)
    cx, cy = _centre(col, t)
    inside = ((cells.view(1, 1, 1, -1) - cx) ** 2 + (cells.view(1, 1, -1, 1) - cy) ** 2).sqrt() < 1.2 * col[21] + 8.0
    # latent frame 0 is frame 0, latent frame k covers frames 4k - 3 to 4k
    return torch.cat([inside[:, :1], inside[:, 1:].unflatten(1, (4, 4)).any(dim=2)], dim=1)


def draw(table: Tensor, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """The picture as a function of pixel and time: table [B, 38], x, y, t broadcastable to [B, F, H, W].

    Returns [B, 3, F, H, W] in about [0, 1].
    """
    col = [c.reshape(-1, 1, 1, 1) for c in table.unbind(1)]
    shape, _, _, motion, where, kind = col[:6]
    colour, top, haze, far, near = (col[6 + 3 * i : 9 + 3 * i] for i in range(5))
    radius, noise = col[21], col[25:-2]
    horizon = SIZE * (0.60 + 0.10 * noise[0])
    p = [horizon, *noise[1:]]
    wet, white, dim = (kind == 1) * 1.0, (kind == 2) * 1.0, (kind == 3) * 1.0
    # sky
    height = (y / horizon).clamp(0.0, 1.0)
    sky = [a + (b - a) * height**1.3 for a, b in zip(top, haze, strict=True)]
    sky = _mix(sky, [0.44, 0.49, 0.56], 0.72 * wet)
    sky = _mix(sky, [0.80, 0.82, 0.88], 0.62 * white)
    sky = _mix(sky, [0.80, 0.82, 0.84], 0.60 * dim)
    # sun with a glow, only in clear weather
    sx, sy = SIZE * (0.12 + 0.76 * noise[4]), SIZE * (0.12 + 0.10 * noise[5])
    sun = ((x - sx) ** 2 + (y - sy) ** 2 + 1e-6).sqrt()
    clear = (kind == 0) * 1.0
    sky = _mix(sky, [1.0, 0.95, 0.72], clear * 0.55 * torch.exp(-sun / 46.0))
    sky = _mix(sky, [1.0, 0.97, 0.80], clear * torch.sigmoid((17.0 - sun) / 1.3))
    # two clouds
    for i, (width, level) in enumerate(((44.0, 0.16), (34.0, 0.34))):
        cx = SIZE * (-0.1 + 1.2 * noise[6 + i]) + 0.7 * t
        cy = SIZE * level + 14.0 * (noise[8] - 0.5)
        puff = torch.exp(-(((x - cx) / width) ** 2) - ((y - cy) / 10.0) ** 2)
        puff = puff + 0.8 * torch.exp(-(((x - cx + 14.0) / (0.5 * width)) ** 2) - ((y - cy + 9.0) / 9.0) ** 2)
        shade = 1.0 - 0.42 * wet
        sky = _mix(sky, [0.99 * shade, 0.99 * shade, shade], (0.85 - 0.3 * dim) * _step(0.25, 0.95, puff))
    picture = _land(where, x, y, t, p, sky, (haze, far, near))
    grey = sum(picture) / 3.0
    picture = [c + (0.86 * grey - c) * 0.35 * wet for c in picture]
    picture = _mix(picture, [0.95, 0.96, 1.0], 0.42 * white * torch.sigmoid((y - horizon) / 12.0))
    picture = _mix(picture, [0.86, 0.88, 0.90], dim * (0.18 + 0.34 * torch.exp(-(((y - horizon) / 60.0) ** 2))))
    # object
    cx, cy = _centre(col, t)
    px, py = x - cx, y - cy
    floor = 0.91 * SIZE
    near_floor = (1.0 - (floor - cy) / (1.1 * SIZE)).clamp(0.2, 1.0)
    shadow = torch.exp(-((px / (0.95 * radius)) ** 2) - ((y - floor) / (0.22 * radius)) ** 2)
    picture = _mix(picture, [0.05, 0.06, 0.10], 0.55 * near_floor * shadow)
    distance = _object_distance(shape, px, py, radius)
    side = (-0.55 * px - 0.75 * py) / radius
    rim = _step(-7.0, 0.0, distance)
    glow = torch.exp(-(((px + 0.36 * radius) / (0.30 * radius)) ** 2) - ((py + 0.42 * radius) / (0.24 * radius)) ** 2)
    light = 0.86 + 0.24 * side - 0.34 * rim
    body = [(c * light).clamp(0.0, 1.0) for c in colour]
    body = _mix(body, [1.0, 1.0, 1.0], 0.55 * glow * (shape != 3))
    picture = _mix(picture, body, torch.sigmoid(-distance / 1.0))
    picture = _weather(kind, x, y, t, p, picture)
    return torch.stack(torch.broadcast_tensors(*picture), dim=1).clamp(0.0, 1.0)


def grid(device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Pixel centres x [1, 1, 1, 256], y [1, 1, 256, 1] and frame numbers t [1, 17, 1, 1]."""
    line = torch.arange(SIZE, device=device, dtype=torch.float32) + 0.5
    t = torch.arange(FRAMES, device=device, dtype=torch.float32)
    return line.view(1, 1, 1, -1), line.view(1, 1, -1, 1), t.view(1, -1, 1, 1)


def render(table: Tensor, function: Callable = draw) -> Tensor:
    """Video of a parameter table: [B, 3, 17, 256, 256] float32 in [-1, 1], the VAE's range.

    Pass a compiled `draw` as `function` on a GPU.
    """
    return function(table, *grid(table.device)) * 2.0 - 1.0


def render_scene(scene: Scene, seed: int) -> Tensor:
    """One clip on the CPU: [17, 256, 256, 3] float32 in [0, 1]."""
    table = parameters(torch.tensor([scene.indices()]), torch.Generator().manual_seed(seed))
    return (render(table)[0].permute(1, 2, 3, 0) + 1.0) / 2.0
