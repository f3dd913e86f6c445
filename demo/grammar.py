"""Scenes of the demo world and the prompts that describe them.

A scene has six attributes. Every value has at least two wordings, each with key words that belong to that
value alone, so that a prompt can be read back (`parse`) and the truth about a clip is always known.
"""

from __future__ import annotations

import random
import re
import zlib
from dataclasses import asdict, dataclass, replace

SHAPES: dict[str, tuple[str, ...]] = {
    "ball": ("ball", "sphere", "orb"),
    "cube": ("cube", "box", "block"),
    "star": ("star", "pentagram"),
    "ring": ("ring", "hoop"),
}
COLOURS: dict[str, tuple[str, ...]] = {
    "red": ("red", "crimson"),
    "yellow": ("yellow", "golden"),
    "green": ("green", "emerald"),
    "blue": ("blue", "azure"),
    "purple": ("purple", "violet"),
    "white": ("white", "ivory"),
}
SIZES: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny"),
    "large": ("large", "big", "huge"),
}
MOTIONS: dict[str, tuple[str, ...]] = {
    "left": ("drifts left", "glides leftward"),
    "right": ("drifts right", "glides rightward"),
    "up": ("drifts up", "glides upward"),
    "down": ("drifts down", "glides downward"),
    "circle": ("circles around", "orbits around"),
    "still": ("hovers", "stays motionless"),
}
BACKGROUNDS: dict[str, tuple[str, ...]] = {
    "meadow": ("a meadow", "grassland"),
    "desert": ("a desert", "sandy dunes"),
    "ocean": ("the ocean", "the sea"),
    "city": ("a city", "a skyline"),
    "mountains": ("mountains", "rocky peaks"),
}
WEATHERS: dict[str, tuple[str, ...]] = {
    "clear": ("clear weather", "bright sunshine"),
    "rain": ("rain", "a downpour"),
    "snow": ("snow", "drifting snowflakes"),
    "fog": ("fog", "thick mist"),
}
ATTRIBUTES: dict[str, dict[str, tuple[str, ...]]] = {
    "shape": SHAPES,
    "colour": COLOURS,
    "size": SIZES,
    "motion": MOTIONS,
    "background": BACKGROUNDS,
    "weather": WEATHERS,
}
LOCAL = ("shape", "colour", "size", "motion")
TEMPLATES = (
    "a {size} {colour} {shape} {motion} over {background} in {weather}",
    "in {weather} a {size} {colour} {shape} {motion} above {background}",
    "over {background} a {colour} {shape} {motion} and looks {size} during {weather}",
    "video of a {size} {shape} in {colour} that {motion} with {background} behind it and {weather}",
    "{weather} and {background} while one {colour} {size} {shape} {motion}",
)


@dataclass(frozen=True)
class Scene:
    """One scene; every field holds a key of the table of the same name in `ATTRIBUTES`."""

    shape: str
    colour: str
    size: str
    motion: str
    background: str
    weather: str

    def __post_init__(self) -> None:
        for name, values in ATTRIBUTES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {sorted(values)}, not {getattr(self, name)!r}")

    def as_dict(self) -> dict[str, str]:
        """Attribute name -> value, in the order of `ATTRIBUTES`."""
        return asdict(self)

    def indices(self) -> list[int]:
        """Position of each value in its table, in the order of `ATTRIBUTES` (6 integers)."""
        return [list(values).index(getattr(self, name)) for name, values in ATTRIBUTES.items()]

    def changed(self, **edits: str) -> Scene:
        """A copy with some attributes changed."""
        return replace(self, **edits)


def scene_from_indices(indices: list[int]) -> Scene:
    """Inverse of `Scene.indices`."""
    return Scene(*(list(values)[int(i)] for values, i in zip(ATTRIBUTES.values(), indices, strict=True)))


def random_scene(rng: random.Random) -> Scene:
    """A scene with every attribute drawn uniformly and independently."""
    return Scene(*(rng.choice(list(values)) for values in ATTRIBUTES.values()))


def held_out(scene: Scene) -> bool:
    """True for the fixed tenth of all attribute combinations that the video model never saw in training."""
    return zlib.crc32("/".join(scene.as_dict().values()).encode()) % 10 == 0


def prompt(scene: Scene, paraphrase: int = 0) -> str:
    """The scene in words.

    `paraphrase` >= 0 picks the template (modulo their number) and, mixed per attribute, the synonyms;
    paraphrase 0 is the plainest wording. Every paraphrase parses back to the same scene.
    """
    if paraphrase < 0:
        raise ValueError("paraphrase must be >= 0")
    words = {}
    for position, (name, values) in enumerate(ATTRIBUTES.items()):
        wordings = values[getattr(scene, name)]
        pick = 0 if paraphrase == 0 else zlib.crc32(f"{paraphrase}/{position}".encode())
        words[name] = wordings[pick % len(wordings)]
    text = TEMPLATES[paraphrase % len(TEMPLATES)].format(**words)
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def tokenize(text: str) -> list[str]:
    """Lower-case words of a text; punctuation is dropped."""
    return re.findall(r"[a-z0-9]+", text.lower())


def _keys() -> dict[str, tuple[str, str]]:
    uses: dict[str, set[tuple[str, str]]] = {}
    for name, values in ATTRIBUTES.items():
        for value, wordings in values.items():
            for word in tokenize(" ".join(wordings)):
                uses.setdefault(word, set()).add((name, value))
    return {word: next(iter(owners)) for word, owners in uses.items() if len(owners) == 1}


KEY_WORDS: dict[str, tuple[str, str]] = {
    word: owner for word, owner in _keys().items() if word not in {"a", "the", "drifting"}
}
VOCABULARY: tuple[str, ...] = tuple(
    sorted(
        {"an"}
        | {
            word
            for text in (
                *TEMPLATES,
                *(w for table in ATTRIBUTES.values() for ws in table.values() for w in ws),
            )
            for word in tokenize(re.sub(r"\{\w+\}", " ", text))
        }
    )
)


def parse(text: str) -> Scene | None:
    """The scene that a prompt of this grammar describes, or None.

    None for an unknown word, for a missing attribute and for two values of one attribute.
    """
    found: dict[str, str] = {}
    for word in tokenize(text):
        if word not in VOCABULARY:
            return None
        if word in KEY_WORDS:
            name, value = KEY_WORDS[word]
            if found.setdefault(name, value) != value:
                return None
    return Scene(**found) if len(found) == len(ATTRIBUTES) else None
