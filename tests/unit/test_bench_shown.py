"""What counts as shown, lost and gained, whatever the scorer thinks of an ambiguous picture."""

from __future__ import annotations

import pytest
import torch

from benchmarks.scoring import LatentScorer
from benchmarks.shown import CLEAR, clearly_has, lacks, lost, lost_plainly, right
from demo.codec import Codec
from demo.grammar import ATTRIBUTES, Scene
from demo.render import render_scene


def looks(*shape: float) -> dict:
    """One look for each probability of the scene's shape; the rest falls to one other value. The colour is right."""
    return {str(i): {"shape": (p, round(1 - p, 5)), "colour": (1.0, 0.0)} for i, p in enumerate(shape)}


@pytest.mark.parametrize(
    ("stock", "reuse", "is_lost"),
    [
        ([1.0, 1.0], [0.0, 0.0], True),
        ([1.0, 1.0], [1.0, 0.4], True),  # lost to one look is lost
        ([1.0, 1.0], [0.6, 0.6], False),  # less sure, but shown
        ([1.0, 1.0], [0.5, 0.9], True),  # as likely as another value is not shown
        ([CLEAR, CLEAR], [0.0, 0.0], True),
        ([CLEAR - 0.01, 1.0], [0.0, 0.0], False),  # stock did not show it clearly
        ([0.6, 0.6], [0.4, 0.4], False),  # a reading that changes about an ambiguous picture
        ([0.0, 0.0], [0.0, 0.0], False),
    ],
)
def test_lost_is_what_stock_clearly_has_and_reuse_lacks(stock: list, reuse: list, is_lost: bool) -> None:
    assert lost(looks(*stock), looks(*reuse)) == (["shape"] if is_lost else [])


def test_gaining_is_losing_the_other_way_round() -> None:
    assert lost(looks(1.0), looks(0.1)) == ["shape"] and lost(looks(0.1), looks(1.0)) == []


def test_the_plain_rule_looks_once_and_knows_no_margin() -> None:
    assert lost_plainly(looks(0.6, 1.0), looks(0.4, 1.0)) == ["shape"]
    assert lost_plainly(looks(1.0, 1.0), looks(0.9, 0.0)) == []
    assert right(looks(0.6, 0.0)) == ["shape", "colour"] and right(looks(0.5, 1.0)) == ["colour"]


def test_nothing_is_both_clear_and_lacking() -> None:
    for p in (0.0, 0.3, 0.5, 0.7, CLEAR, 1.0):
        assert not (clearly_has(looks(p), "shape") and lacks(looks(p), "shape"))


def test_a_rendered_scene_clearly_has_all_it_asks_for_and_lacks_what_another_asks_for() -> None:
    codec = Codec.load()
    scene = Scene("cube", "blue", "large", "left", "city", "clear")
    video = render_scene(scene, seed=3).permute(3, 0, 1, 2)[None] * 2 - 1
    latent = codec.encode(video)

    def decode(latent: torch.Tensor) -> torch.Tensor:
        return ((codec.decode(latent)[0] + 1) / 2).clamp(0, 1).permute(1, 2, 3, 0)

    scorer = LatentScorer(decode, decode, torch.device("cpu"))
    found = scorer.looks(latent, scene)
    assert list(found) == ["decoded"] and right(found) == list(ATTRIBUTES)
    assert all(clearly_has(found, name) for name in ATTRIBUTES)
    other = scorer.looks(latent, scene.changed(shape="ring", weather="snow"))
    assert [name for name in ATTRIBUTES if lacks(other, name)] == ["shape", "weather"]
    assert all(scene + other <= 1.0001 for scene, other in found["decoded"].values())
    two = LatentScorer(decode, lambda latent: decode(latent * 0), torch.device("cpu")).looks(latent, scene)
    assert list(two) == ["decoded", "linear"] and two["decoded"] == found["decoded"]
    assert any(lacks(two, name) for name in ATTRIBUTES)  # the mean picture of the world is no blue cube
