"""What a video shows of its scene, and what reuse lost or gained, robustly to the scorer's own error.

The rule, fixed before anything was labelled. A *look* is one decoding of a latent, read by the scorer. A video
*clearly has* an attribute if in every look the scorer gives the scene's value a probability of at least ``CLEAR``; it
*lacks* the attribute if in any look another value is as likely or likelier. Reuse has *lost* what stock clearly has
and reuse lacks, and *gained* what reuse clearly has and stock lacks. It is *unsafe* if it lost anything. What lies in
between is an ambiguous picture, of which a reading that changes tells nothing.

Why that value: on 250 rendered scenes, of which the truth is known, through the linear codec, the scorer reads all
1,500 attributes right and gives 99.7 % of them at least 0.9. So a picture with less is an odd picture, not a rare one.
"""

from __future__ import annotations

from .scoring import Looks

CLEAR = 0.9


def clearly_has(looks: Looks, attribute: str) -> bool:
    return all(reading[attribute][0] >= CLEAR for reading in looks.values())


def lacks(looks: Looks, attribute: str) -> bool:
    return any(scene <= other for scene, other in (reading[attribute] for reading in looks.values()))


def lost(stock: Looks, reuse: Looks) -> list[str]:
    """Attributes that stock clearly has and reuse lacks. ``lost(reuse, stock)`` is what reuse gained."""
    return [name for name in _attributes(stock) if clearly_has(stock, name) and lacks(reuse, name)]


def lost_plainly(stock: Looks, reuse: Looks) -> list[str]:
    """The rule of the other benchmarks: in the first look, the likeliest value is the scene's no longer."""
    ((look, before), after) = next(iter(stock.items())), reuse
    return [name for name, (scene, other) in before.items() if scene > other and lacks({look: after[look]}, name)]


def right(looks: Looks) -> list[str]:
    """Attributes of which the scene's value is the likeliest in the first look."""
    reading = next(iter(looks.values()))
    return [name for name, (scene, other) in reading.items() if scene > other]


def _attributes(looks: Looks) -> list[str]:
    return list(next(iter(looks.values())))
