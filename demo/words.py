"""Word vectors of the demo text encoder and the encoding of a prompt.

Close meanings get close vectors: the key words of one value share a concept direction, the values of one
attribute share a weaker one, function words are short. Unknown words hash to vectors of their own.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .grammar import KEY_WORDS, VOCABULARY, tokenize

WIDTH = 4096
TOKENS = 32
NEXT_WORD = 0.5
FUNCTION_WORD_LENGTH = 0.35
PATH = Path(__file__).parent / "models" / "text_encoders" / "carnator_demo_words.safetensors"


def _direction(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(WIDTH, generator=generator)


def make_vector(word: str) -> Tensor:
    """Build the vector of a word from its meaning: [4096] float32, about unit variance for key words."""
    if word not in KEY_WORDS:
        return FUNCTION_WORD_LENGTH * _direction(f"word/{word}")
    name, value = KEY_WORDS[word]
    parts = (
        (0.45, _direction(f"kind/{name}")),
        (0.8, _direction(f"value/{value}")),
        (0.4, _direction(f"word/{word}")),
    )
    return sum(weight * part for weight, part in parts)


def save_vectors(path: Path = PATH) -> None:
    """Write the vocabulary's vectors as bfloat16 safetensors, one [n, 4096] tensor and the words as metadata."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    table = torch.stack([make_vector(word) for word in VOCABULARY]).to(torch.bfloat16)
    save_file({"vectors": table}, path, metadata={"words": " ".join(VOCABULARY)})


@lru_cache(maxsize=1)
def load_vectors(path: Path = PATH) -> dict[str, Tensor]:
    """Read the stored vectors: word -> [4096] float32."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        table = file.get_tensor("vectors").float()
        return dict(zip(file.metadata()["words"].split(), table, strict=True))


def vector(word: str) -> Tensor:
    """The vector of any word: [4096] float32; unknown words get a short one that depends on their letters."""
    known = load_vectors()
    return known[word] if word in known else make_vector(word)


def encode_words(words: list[str], weights: list[float] | None = None) -> Tensor:
    """Encode words to [32, 4096] float32.

    Token i is word i + 0.5 x word i+1, because Wan's cross-attention sees no text positions. Zero vectors
    follow the prompt, as in training; words beyond the 32nd are dropped. `weights` scale the words.
    """
    out = torch.zeros(TOKENS, WIDTH)
    if not words:
        return out
    rows = torch.stack([vector(word) for word in words[: TOKENS + 1]])
    if weights is not None:
        rows = rows * torch.tensor(weights[: TOKENS + 1]).unsqueeze(1)
    mixed = rows.clone()
    mixed[:-1] += NEXT_WORD * rows[1:]
    out[: len(mixed)] = mixed[:TOKENS]
    return out


def encode(text: str) -> Tensor:
    """Encode a prompt to [32, 4096] float32. The empty prompt is all zeros: the unconditional input."""
    return encode_words(tokenize(text))


def pooled(words: list[str]) -> Tensor:
    """Unit-length mean of the word vectors, [4096] float32 (zeros for no words)."""
    if not words:
        return torch.zeros(WIDTH)
    return torch.nn.functional.normalize(torch.stack([vector(word) for word in words]).mean(0), dim=0)


if __name__ == "__main__":
    save_vectors()
