"""The demo's renderer and latent codec."""

import pytest
import torch

from demo.codec import Codec, from_blocks, psnr, to_blocks
from demo.grammar import Scene
from demo.render import SIZE, draw, grid, object_area, parameters, render_scene

SCENE = Scene("star", "yellow", "large", "right", "ocean", "snow")


@pytest.fixture(scope="module")
def video() -> torch.Tensor:
    return render_scene(SCENE, 5)


def test_same_seed_same_video(video: torch.Tensor) -> None:
    assert video.shape == (17, SIZE, SIZE, 3)
    assert video.min() >= 0.0 and video.max() <= 1.0
    assert torch.equal(video, render_scene(SCENE, 5))
    assert not torch.allclose(video, render_scene(SCENE, 6), atol=0.1)


def test_the_object_moves_and_stays_in_the_picture() -> None:
    indices = torch.tensor([SCENE.changed(motion=m).indices() for m in ("left", "right", "up", "down", "still")])
    areas = object_area(parameters(indices, torch.Generator().manual_seed(1))).float()
    weights = areas / areas.sum((2, 3), keepdim=True)
    line = torch.arange(32.0)
    x, y = (weights.sum(2) * line).sum(-1), (weights.sum(3) * line).sum(-1)
    dx, dy = x[:, -1] - x[:, 0], y[:, -1] - y[:, 0]
    assert dx[0] < -4 and dx[1] > 4 and dy[2] < -4 and dy[3] > 4
    assert abs(dx[4]) + abs(dy[4]) < 0.5
    assert areas[:, :, 16:].sum() + areas[:, :, :16].sum() == areas.sum() > 0


def test_start_positions_do_not_depend_on_look() -> None:
    tables = []
    for change in ({}, {"colour": "blue"}, {"background": "city"}, {"weather": "fog"}):
        indices = torch.tensor([SCENE.changed(**change).indices()])
        tables.append(parameters(indices, torch.Generator().manual_seed(3))[:, 21:])
    assert all(torch.equal(tables[0], table) for table in tables)


def test_every_pixel_depends_on_its_own_place_only(video: torch.Tensor) -> None:
    table = parameters(torch.tensor([SCENE.indices()]), torch.Generator().manual_seed(5))
    x, y, t = grid()
    part = draw(table, x[..., 64:96], y[:, :, 32:64], t[:, 8:9])[0, :, 0].permute(1, 2, 0)
    assert torch.allclose(part, video[8, 32:64, 64:96], atol=1e-4)


def test_codec_round_trip(video: torch.Tensor) -> None:
    clip = video.permute(3, 0, 1, 2)[None] * 2 - 1
    codec = Codec.load()
    latent = codec.encode(clip)
    assert latent.shape == (1, 16, 5, 32, 32)
    assert psnr(codec.decode(latent), clip) > 25.0
    assert torch.allclose(codec.encode(codec.decode(latent))[:, :, 1:], latent[:, :, 1:], atol=1e-3)


def test_blocks_round_trip() -> None:
    clip = torch.randn(1, 3, 9, 16, 24)
    assert torch.equal(from_blocks(to_blocks(clip))[:, :, 1:], clip[:, :, 1:])
    assert torch.allclose(from_blocks(to_blocks(clip)), clip, atol=1e-6)
