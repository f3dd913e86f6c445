"""Learning the scale of a model from short probes, in the time of a fraction of one run.

The scale of a model is read off pairs of unrelated requests. What is needed of a request for that is its Early
Signature, which is there after the probe. So a few unlike prompts with seeds of their own are sampled up to there, and
compared with each other and with the run that they follow. One prompt with several seeds is no substitute: on the demo
model the median of *state* then varies 15-fold from prompt to prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .identity import HardKey, digest
from .reasons import Decision
from .scale import PAIRS_NEEDED, SAME_TEXT, distance, setting_of
from .session import Session
from .store.folder import Store
from .store.tensor_file import EntryError

# Scenes that have as little in common as short prompts can: subject, place, light, colours, distance, motion.
PROMPTS = (
    "a red tram crosses a stone bridge at night in heavy rain",
    "close-up of two hands kneading dough on a floured wooden table",
    "a herd of elephants walks across a dry plain under a pale noon sky",
    "an astronaut floats slowly above the blue planet",
    "yellow tulips sway in the wind in front of a white wall",
)


def is_wanted(session: Session) -> bool:
    """Whether the scale of a finished run's model and setting is unknown and can be kept."""
    report = session.report
    known = report.learned_pairs is None or report.learned_pairs >= PAIRS_NEEDED
    return session.writes and not known and report.decision is Decision.MISS and session.signature is not None


def seeds(key: HardKey) -> list[int]:
    """A seed for each prompt, 0 to 2**63 - 1; the same for all requests to one model in one setting."""
    return [int(digest(setting_of(key), place), 16) % (1 << 63) for place in range(len(PROMPTS))]


def learn(store: Store, own: Session, probes: Sequence[Session]) -> int:
    """Keep the distances between a run and short probes of its model and setting as their scale; returns their number.

    Raises ValueError if they do not tell how far unrelated requests are apart, and OSError.
    """
    try:
        found = [
            distance(a.signature, b.signature, own.request.shape.patch)
            for a, b in itertools.combinations([own, *probes], 2)
            if float(a.request.embedding @ b.request.embedding) < SAME_TEXT
        ]
    except EntryError as error:
        raise ValueError(str(error)) from error
    if len(found) < PAIRS_NEEDED:
        raise ValueError("the text encoder does not tell unlike prompts apart")
    store.scales.write(setting_of(own.request.key), found)
    return len(found)
