"""Word vectors and prompt encoding of the demo's text encoder."""

import pytest
import torch

from demo.grammar import VOCABULARY, tokenize
from demo.words import NEXT_WORD, TOKENS, WIDTH, encode, encode_words, load_vectors, make_vector, vector


def cosine(a: str, b: str) -> float:
    return float(torch.nn.functional.cosine_similarity(vector(a), vector(b), dim=0))


def test_close_meanings_are_close() -> None:
    for same, kin, other in [
        ("red crimson", "red blue", "red ball"),
        ("ball sphere", "ball star", "ball rain"),
    ]:
        assert cosine(*same.split()) > 0.75 > 0.35 > cosine(*kin.split()) > 0.1 > abs(cosine(*other.split()))


def test_the_stored_vectors_are_the_ones_that_the_code_makes() -> None:
    stored = load_vectors()
    assert set(stored) == set(VOCABULARY)
    for word in ("red", "over", "downpour"):
        assert torch.allclose(stored[word], make_vector(word), atol=0.02)


def test_encoding_of_a_prompt() -> None:
    text = "a small red ball"
    out, words = encode(text), tokenize(text)
    assert out.shape == (TOKENS, WIDTH) and out.dtype == torch.float32
    assert torch.equal(out[0], vector("a") + NEXT_WORD * vector("small"))
    assert torch.equal(out[3], vector("ball"))
    assert not out[len(words) :].any()
    assert torch.equal(out, encode(text))


def test_the_empty_prompt_is_all_zeros() -> None:
    assert not encode("").any()


def test_unknown_words_have_vectors_of_their_own() -> None:
    assert torch.equal(vector("zebra"), vector("zebra"))
    assert abs(cosine("zebra", "giraffe")) < 0.1


def test_weights_scale_words() -> None:
    plain, heavy = encode_words(["red", "ball"]), encode_words(["red", "ball"], [2.0, 1.0])
    assert torch.allclose(heavy[0] - plain[0], vector("red"), atol=1e-5)
    assert torch.equal(heavy[1], plain[1])


@pytest.mark.parametrize("count", [31, 32, 33, 80])
def test_long_prompts_are_cut(count: int) -> None:
    assert encode_words(["red"] * count).shape == (TOKENS, WIDTH)
