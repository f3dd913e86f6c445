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


BASE = Scene(shape="ball", colour="red", size="small", motion="left", background="meadow", weather="clear")
UNRELATED = Scene(shape="star", colour="purple", size="large", motion="circle", background="city", weather="snow")

SERIES = (
    Request("first request", BASE),
    Request("other words", BASE, paraphrase=1),
    Request("other colour", BASE.changed(colour="blue")),
    Request("other size", BASE.changed(size="large")),
    Request("other motion", BASE.changed(motion="right")),
    Request("other background", BASE.changed(background="ocean")),
    Request("unrelated", UNRELATED, paraphrase=4),
)
