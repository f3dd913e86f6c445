"""The demo's grammar: every prompt reads back as its scene."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.grammar import (
    ATTRIBUTES,
    KEY_WORDS,
    TEMPLATES,
    Scene,
    held_out,
    parse,
    prompt,
    scene_from_indices,
    tokenize,
)
from demo.words import TOKENS

SCENES = st.builds(Scene, **{name: st.sampled_from(list(values)) for name, values in ATTRIBUTES.items()})
PLAIN = Scene("ball", "red", "small", "left", "meadow", "clear")


@given(SCENES, st.integers(0, 10_000))
def test_every_wording_reads_back_and_fits_the_encoder(scene: Scene, wording: int) -> None:
    text = prompt(scene, wording)
    assert parse(text) == scene
    assert parse(text.upper() + "!") == scene
    assert len(tokenize(text)) <= TOKENS


@given(SCENES)
def test_indices_round_trip(scene: Scene) -> None:
    assert scene_from_indices(scene.indices()) == scene


def test_there_are_enough_wordings() -> None:
    assert len(TEMPLATES) >= 4
    assert all(len(wordings) >= 2 for values in ATTRIBUTES.values() for wordings in values.values())
    assert len({prompt(PLAIN, i) for i in range(100)}) > 30


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a small red ball",
        "a cat drifts left over a meadow in clear weather",
        "a small red blue ball drifts left over a meadow in clear weather",
    ],
)
def test_other_texts_are_not_read(text: str) -> None:
    assert parse(text) is None


def test_every_value_has_a_key_word_of_its_own_in_every_wording() -> None:
    for name, values in ATTRIBUTES.items():
        for value, wordings in values.items():
            for wording in wordings:
                assert (name, value) in [KEY_WORDS.get(word) for word in tokenize(wording)], wording


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        Scene("ball", "plaid", "small", "left", "meadow", "clear")
    with pytest.raises(ValueError, match="paraphrase"):
        prompt(PLAIN, -1)


def test_a_tenth_of_all_scenes_is_held_out() -> None:
    every = [Scene(*values) for values in itertools.product(*ATTRIBUTES.values())]
    assert 0.08 < sum(map(held_out, every)) / len(every) < 0.12
