"""Request streams: how an artist iterates on prompts, as JSON, from a seed.

Each cluster is one base request followed by variations on the same noise seed; the shares of the kinds of
variation are fixed over the whole stream. `python3 -m demo.streams` writes demo/streams/*.json.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from .grammar import ATTRIBUTES, LOCAL, Scene, prompt, random_scene

FOLDER = Path(__file__).parent / "streams"
SHARES = {"reword": 0.2, "local": 0.4, "background": 0.1, "weather": 0.1, "two": 0.1, "unrelated": 0.1}
VARIATIONS = 10
STREAMS = {"tune": (11, 11), "report": (23, 36), "fresh": (37, 36)}  # name: (seed, clusters)


def other_value(scene: Scene, name: str, rng: random.Random) -> str:
    """A value of the attribute that differs from the scene's."""
    return rng.choice([value for value in ATTRIBUTES[name] if value != getattr(scene, name)])


def kinds(total: int, rng: random.Random) -> list[str]:
    """Exactly the fixed shares of kinds, shuffled; local edits are split equally over their attributes."""
    out: list[str] = []
    for kind, share in SHARES.items():
        count = round(share * total)
        names = [LOCAL[i % len(LOCAL)] for i in range(count)] if kind == "local" else [kind] * count
        out += names
    rng.shuffle(out)
    return out


def vary(scene: Scene, wording: int, kind: str, rng: random.Random) -> tuple[Scene, int]:
    """The scene and wording of one variation of a base request."""
    if kind == "reword":
        return scene, rng.choice([w for w in range(1, 100) if prompt(scene, w) != prompt(scene, wording)])
    if kind == "unrelated":
        return Scene(*(other_value(scene, name, rng) for name in ATTRIBUTES)), rng.randrange(100)
    names = rng.sample(list(ATTRIBUTES), 2) if kind == "two" else [kind]
    return scene.changed(**{name: other_value(scene, name, rng) for name in names}), wording


def request(name: str, cluster: int, number: int, kind: str, scene: Scene, wording: int, seed: int) -> dict:
    """One entry of a stream."""
    return {
        "id": f"{name}-{cluster:02d}-{number:02d}",
        "cluster": f"{name}-{cluster:02d}",
        "kind": kind,
        "prompt": prompt(scene, wording),
        "scene": scene.as_dict(),
        "seed": seed,
        "base": f"{name}-{cluster:02d}-00" if number else None,
    }


def make(name: str) -> list[dict]:
    """The requests of a stream, in order. The same name gives the same stream."""
    stream_seed, clusters = STREAMS[name]
    rng = random.Random(stream_seed)
    todo = kinds(clusters * VARIATIONS, rng)
    requests: list[dict] = []
    for cluster in range(clusters):
        scene, wording, seed = random_scene(rng), rng.randrange(100), stream_seed * 1_000_000 + cluster
        requests.append(request(name, cluster, 0, "base", scene, wording, seed))
        for number in range(1, VARIATIONS + 1):
            kind = todo.pop()
            requests.append(request(name, cluster, number, kind, *vary(scene, wording, kind, rng), seed))
    return requests


def main() -> None:
    """Write all streams."""
    FOLDER.mkdir(exist_ok=True)
    for name in STREAMS:
        lines = ",\n ".join(json.dumps(request) for request in make(name))
        (FOLDER / f"{name}.json").write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
