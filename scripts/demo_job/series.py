"""The prompts of the demo: one artist's session, all with the same seed."""

from __future__ import annotations

from dataclasses import dataclass

from demo.grammar import Scene, prompt


@dataclass(frozen=True)
class Request:
    label: str
    scene: Scene
    paraphrase: int = 0

    @property
    def prompt(self) -> str:
        return prompt(self.scene, self.paraphrase)


BASE = Scene(shape="cube", colour="blue", size="large", motion="left", background="city", weather="fog")
UNRELATED = Scene(shape="star", colour="purple", size="small", motion="circle", background="meadow", weather="snow")

SERIES = (
    Request("first request", BASE),
    Request("other words", BASE, paraphrase=1),
    Request("other colour", BASE.changed(colour="white")),
    Request("other size", BASE.changed(size="small")),
    Request("other motion", BASE.changed(motion="right")),
    Request("other background", BASE.changed(background="ocean")),
    Request("unrelated", UNRELATED, paraphrase=4),
)
