"""Learning the scale of a model from short probes, in the time of a fraction of one run.

The scale of a model is read off pairs of unrelated requests. What is needed of a request for that is its Early
Signature, which is there after the probe. So a few unlike prompts with seeds of their own are sampled up to there.
One prompt with several seeds is no substitute: on the demo model the median of *state* then varies 15-fold from prompt
to prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .candidates import Found
from .identity import HardKey, digest
from .reasons import Decision
from .request import Request
from .scale import PAIRS_NEEDED, distance, setting_of, unrelated_pairs
from .session import Session
from .signature import EarlySignature
from .store.entry import EntryInfo
from .store.folder import Store
from .store.tensor_file import EntryError

# Scenes that have as little in common as short prompts can: subject, place, light, colours, distance, motion.
PROMPTS = (
    "a red tram crosses a stone bridge at night in heavy rain",
    "close-up of two hands kneading dough on a floured wooden table",
    "a herd of elephants walks across a dry plain under a pale noon sky",
    "an astronaut floats slowly in front of the blue planet",
    "yellow tulips sway in the wind in front of a white wall",
)


class ProbeSession(Session):
    """A session that ends with its probe: it recalls nothing and so decides nothing."""

    def _recall(self) -> None:
        self._found, self.candidates = Found([]), []

    @property
    def signature(self) -> EarlySignature | None:
        """What the probe left, once it has ended."""
        return self._capture.signature


@dataclass(frozen=True)
class ShortProbe:
    """What one short probe came to."""

    request: Request
    signature: EarlySignature


def is_wanted(session: Session) -> bool:
    """Whether the scale of a finished run's model and setting is unknown and can be kept."""
    report = session.report
    known = report.learned_pairs is None or report.learned_pairs >= PAIRS_NEEDED
    return session.writes and not known and report.decision is not Decision.DECLINED


def seeds(key: HardKey) -> list[int]:
    """A seed for each prompt, 0 to 2**63 - 1; the same for all requests to one model in one setting."""
    return [int(digest(setting_of(key), place), 16) % (1 << 63) for place in range(len(PROMPTS))]


def learn(store: Store, like: Request, probes: Sequence[ShortProbe]) -> int:
    """Keep the distances between short probes as the scale of a request's model and setting; returns their number.

    Raises ValueError if the probes do not tell how far unrelated requests to it are apart, and OSError.
    """
    by_id = {probe.request.entry_id: probe for probe in probes}
    texts = [(EntryInfo(name, one.request.key, 0.0, 0.0, None), one.request.embedding) for name, one in by_id.items()]
    try:
        found = [
            distance(*(by_id[name].signature for name in pair), like.shape.patch)
            for pair in unrelated_pairs(texts, like.key, min_similarity=-1.0)
        ]
    except EntryError as error:
        raise ValueError(str(error)) from error
    if len(found) < PAIRS_NEEDED:
        raise ValueError("the text encoder does not tell unlike prompts apart")
    store.scales.write(setting_of(like.key), found)
    return len(found)
