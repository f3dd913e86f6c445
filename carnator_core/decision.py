"""The decision at the end of the probe: every recalled candidate is judged, and at most one is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .candidates import Found
from .judgement import Judgement, judge
from .options import GateOptions, Options
from .plan import LayerWindow
from .reasons import Code, Reason
from .recall import Candidate
from .report import Report
from .request import Request
from .scale import Thresholds, on_own_scale
from .settings import LEAST_WORK, LEAST_WORK_ACCEPTED, PINNED, settings_of
from .signature import EarlySignature
from .store.entry import EntryInfo
from .store.folder import Store
from .store.read_ahead import LikelyDonor, ReadAhead
from .store.tensor_file import EntryError, EntryGone


@dataclass(frozen=True)
class Accepted:
    """A donor whose early states fit and whose file passed its check."""

    judgement: Judgement
    trajectory: ReadAhead


class Decider:
    """Judges the candidates of one request and tells its report what it found.

    Args:
        likely: the file that is being read ahead.
        report: gets the reason, what was measured, and the settings that the request was judged under.
    """

    def __init__(
        self, request: Request, options: Options, store: Store, window: LayerWindow, likely: LikelyDonor, report: Report
    ):
        self._request, self._options, self._store, self._window = request, options, store, window
        self._likely, self._report = likely, report
        # Set by hand, or the defaults until the decision puts them on the model's own scale.
        self.limits = Thresholds(options.gate or GateOptions(), options.reuse.region_threshold)
        self._choice = LEAST_WORK if options.probe.donor is None else PINNED
        self.refused: Judgement | None = None  # the nearest of them, if none was accepted

    def decide(self, mine: EarlySignature, found: Found) -> Accepted | None:
        """Judge every candidate, cheapest first, and take the first whose files also pass their check."""
        learning = self._learn()
        refused: list[Judgement] = []
        for rank, judgement in enumerate(sorted(self._judged(mine, found.candidates), key=lambda j: j.work)):
            if learning:
                refused.append(replace(judgement, refusal=learning, thresholds=None))
            elif judgement.refusal is None:
                accepted = self._open(judgement)
                if accepted is not None:
                    self._choice = LEAST_WORK_ACCEPTED if rank else self._choice
                    self._show(judgement)
                    return accepted
            else:
                refused.append(judgement)
        if refused:
            nearest = max(refused, key=lambda j: j.candidate.similarity)
            self._show(nearest)
            self._report.reason = nearest.refusal
            self.refused = None if learning else nearest
        return None

    def _learn(self) -> Reason | None:
        """Put the thresholds on the model's own scale, or say why they cannot be yet."""
        if self._options.gate is not None:
            return None
        patch, similarity = self._request.shape.patch, self._options.probe.min_text_similarity
        self.limits, why = on_own_scale(self.limits, self._store, self._request.key, patch, similarity)
        return why

    def _judged(self, mine: EarlySignature, candidates: list[Candidate]) -> Iterator[Judgement]:
        for candidate in candidates:
            try:
                donor = self._store.signature(candidate.info.id)
                change, reuse = self._change_in(donor), self._options.reuse
                yield judge(candidate, mine, donor, change, self._request, reuse, self._window, self.limits)
            except EntryError as error:
                self._report.reason = set_aside(self._store, candidate.info, error)

    def change_of(self, info: EntryInfo) -> list[float] | None:
        """How much a stored request's x0 changed at each step, if that was kept. Raises EntryError."""
        return self._change_in(self._store.signature(info.id))

    def _change_in(self, donor: EarlySignature) -> list[float] | None:
        if donor.change is None:
            return None
        if donor.change.numel() != self._request.schedule.steps:
            raise EntryError("its changes are of another number of steps")
        return donor.change.tolist()

    def _open(self, judgement: Judgement) -> Accepted | None:
        info = judgement.candidate.info
        try:
            trajectory = self._likely.open(info.id)
            trajectory.check()  # what is bad now costs only the donor; later it would cost the hit
        except EntryError as error:
            self._report.reason = set_aside(self._store, info, error)
            return None
        self._likely.take()
        return Accepted(judgement, trajectory)

    def settings(self, attention: str, found: Found) -> dict[str, str]:
        """The settings of the request as it stands."""
        return settings_of(self._request, self._options, self.limits, attention, self._choice, found.donors)

    def _show(self, judgement: Judgement) -> None:
        report, info = self._report, judgement.candidate.info
        report.discrepancies, report.region_share = judgement.found, judgement.share
        report.decided_share = judgement.share
        report.thresholds = judgement.thresholds
        report.predicted_work, report.similarity = judgement.work, judgement.candidate.similarity
        report.donor_id, report.donor_created, report.donor_prompt = info.id, info.created, info.prompt


def set_aside(store: Store, info: EntryInfo, error: EntryError) -> Reason:
    """Take a bad entry out of use; the reason tells what was wrong with it."""
    if isinstance(error, EntryGone):
        return Reason.of(Code.ENTRY_GONE)
    store.quarantine(info.id, str(error))
    return Reason.of(Code.ENTRY_CORRUPT, detail=str(error))
