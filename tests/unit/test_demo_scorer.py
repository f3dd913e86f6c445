"""The demo's scorer on rendered clips."""

import random

import pytest

from demo.grammar import ATTRIBUTES, random_scene
from demo.render import render_scene
from demo.scorer import Scorer


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer.load()


def test_reads_rendered_clips(scorer: Scorer) -> None:
    rng = random.Random(4)
    verdicts = []
    for seed in range(5):
        scene = random_scene(rng)
        verdicts += scorer.score(render_scene(scene, seed), scene).values()
    assert sum(verdicts) >= len(verdicts) - 1


def test_probabilities_and_verdicts(scorer: Scorer) -> None:
    scene = random_scene(random.Random(7))
    video = render_scene(scene, 1)
    reading = scorer.read_detailed(video)
    assert list(reading.values) == list(ATTRIBUTES)
    for name, chances in reading.probabilities.items():
        assert set(chances) == set(ATTRIBUTES[name])
        assert abs(sum(chances.values()) - 1.0) < 1e-4
        assert chances[reading.values[name]] == max(chances.values())
    wrong = scene.changed(weather="fog" if scene.weather != "fog" else "rain")
    assert scorer.score(video, wrong)["weather"] is False
