"""Requests that borrow a donor's noise: the seed policy "any seed".

Another seed is another composition, with which no stored request can help. So where none of the request's own seed
serves, the request takes the noise of a donor of another seed and goes through recall, probe and gate as a request of
that seed; a hit is then a variation of the donor's video. If it is no hit, the host starts again with its own noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .candidates import find_other_seeds
from .recall import Candidate
from .report import Report
from .scale import PAIRS_NEEDED
from .session import Session
from .store.folder import Store

# What a refused donor leaves in the report of the run that follows: how far it was off.
MEASURED = ("discrepancies", "thresholds", "region_share", "predicted_work", "donor_id", "donor_created",
            "donor_prompt", "similarity")  # fmt: skip


@dataclass(frozen=True)
class BorrowedSeed:
    """A donor of another seed and the session of the request with that donor's noise.

    The session is read-only and never assists: only a hit may come of it.
    """

    donor: Candidate
    session: Session

    @property
    def seed(self) -> int:
        return self.donor.info.seed

    def tell_refused(self, report: Report, steps: int) -> None:
        """Note in the report of the run with its own noise what was spent on this donor and why it was refused.

        Args:
            steps: dense steps that were computed with the donor's noise.
        """
        if not steps:
            return
        refused = self.session.report
        for name in MEASURED:
            setattr(report, name, getattr(refused, name))
        count = "1 step was" if steps == 1 else f"{steps} steps were"
        report.seed_note = f"before that {count} spent on a donor with seed {self.seed}: {refused.reason.sentence}"


def find_borrowed(own: Session, store: Store, has_noise_of: Callable[[Candidate], bool]) -> BorrowedSeed | None:
    """The most similar donor of another seed, if the policy asks for one and the request's own seed has none.

    Args:
        own: the session of the request with its own noise, before its first step.
        has_noise_of: whether the host can make exactly the noise of a donor.
    Raises OSError if the store cannot be read.
    """
    options, report = own.options, own.report
    if not options.probe.any_seed or options.probe.donor is not None:
        return None
    still_learning = report.learned_pairs is not None and report.learned_pairs < PAIRS_NEEDED
    if own.candidates or options.store.mode == "write" or still_learning:
        return None
    donor = next(filter(has_noise_of, find_other_seeds(own.request, options, store)), None)
    if donor is None:
        return None
    request = replace(own.request, key=donor.info.key, seed=donor.info.seed)
    only_hits = replace(options, store=replace(options.store, mode="read"), reuse=replace(options.reuse, assist=False))
    session = Session(request, only_hits, store)
    session.report.store_note, session.report.donor_seed = report.store_note, donor.info.seed
    return BorrowedSeed(donor, session) if session.candidates else None
