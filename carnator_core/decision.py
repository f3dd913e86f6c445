"""The decision at the end of the probe: every recalled candidate is judged, and at most one is accepted.

With thresholds the cheapest one that they let pass serves. Where a certificate is asked for, the cheapest one of all is
looked at, and no other: which donor is judged must not depend on what the gate lets pass, since the certificate speaks
of donors that were chosen in just this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from .attention import DENSE, Attending, AttentionChoice
from .candidates import Found
from .certificate import Certificate
from .certificate_shelf import standing
from .gate import STRICT
from .identity import HardKey
from .judgement import Judgement, judge
from .options import GateOptions, Options
from .plan import LayerWindow
from .reasons import Code, Reason
from .recall import Candidate
from .report import Report
from .request import Request
from .scale import PAIRS_NEEDED, Thresholds, on_own_scale, pairs_known
from .settings import LEAST_WORK, LEAST_WORK_ACCEPTED, PINNED, settings_of
from .signature import EarlySignature
from .store.entry import EntryInfo
from .store.folder import Store
from .store.read_ahead import EarlyReads, ReadAhead
from .store.tensor_file import EntryError, EntryGone


@dataclass(frozen=True)
class Accepted:
    """A donor whose early states fit and whose file passed its check, and how its reuse attends."""

    judgement: Judgement
    trajectory: ReadAhead
    attending: Attending


class Decider:
    """Judges the candidates of one request and tells its report what it found.

    Args:
        early: what is being read ahead of the store.
        report: gets the reason, what was measured, the certificate and the settings that the request is judged under.
    """

    def __init__(
        self,
        request: Request,
        options: Options,
        store: Store,
        window: LayerWindow,
        attention: AttentionChoice,
        early: EarlyReads,
        report: Report,
    ):
        self._request, self._options, self._store, self._window = request, options, store, window
        self._attention, self._early, self._report = attention, early, report
        # Set by hand, or the defaults until the decision puts them on the model's own scale.
        default = STRICT if options.certified else GateOptions()
        self.limits = Thresholds(options.by_hand or default, options.reuse.region_threshold)
        self._choice = LEAST_WORK if options.probe.donor is None else PINNED
        self._found = Found([])
        self._certificate: Certificate | None = None
        self._certified_attention = DENSE
        self.refused: Judgement | None = None  # the nearest of them, if none was accepted

    def begin(self, found: Found) -> None:
        """Take what recall came to, before the first step, and look whether a certificate speaks of this request."""
        self._found = found
        if self._options.certified:
            self._certified_attention = self._attention.expected
            settings = self._settings(self._certified_attention)
            now = standing(self._store.disk.base, settings)
            self._report.certificate, self._report.certified = now.sentence, now.certificate is not None
            if now.certificate is not None:
                self._certificate, self.limits = now.certificate, now.certificate.limits
        self._report.thresholds = self._options.by_hand
        self._tell_learned()
        self.tell_settings(DENSE)
        if found.candidates:
            self._read_early(found.candidates)

    def _read_early(self, candidates: list[Candidate]) -> None:
        """Begin to read what ``decide`` will ask for."""
        self._early.likely.guess(candidates[0].info.id)
        for candidate in candidates:
            self._early.expect(self._store.signature, candidate.info.id)
        self._attention.expect(candidates[0].info)
        if self._learns:
            self._early.expect(on_own_scale, *self._scaling)

    def _tell_learned(self) -> None:
        """How much is known of the model's scale, where the thresholds are to be put on it."""
        if not self._learns:
            return
        known = pairs_known(self._store, self._request.key, self._options.probe.min_text_similarity)
        self._report.learned_pairs = min(PAIRS_NEEDED, known)
        if known < PAIRS_NEEDED and self._options.store.mode == "read":
            self._report.scale_note = "nothing is learned in a store that is only read"

    def tell_settings(self, attention: str) -> None:
        """Note the settings of the request as it stands in its report."""
        self._report.settings = self._settings(attention)

    def _settings(self, attention: str) -> dict[str, str]:
        return settings_of(self._request, self._options, self.limits, attention, self._choice, self._found.donors)

    @property
    def _learns(self) -> bool:
        """Whether the thresholds are those of a model of the demo's scale, which this one may not be."""
        return self._options.by_hand is None and self._certificate is None

    def decide(self, mine: EarlySignature, device: torch.device) -> Accepted | None:
        """Judge the candidates and take the first whose files also pass their check.

        Args:
            device: of the run, where signatures are compared.
        """
        mine = mine.to(device)
        if self._certificate is not None:
            accepted = self._first(self._cheapest(mine), device)
            if accepted is None or accepted.attending.used == self._certified_attention:
                return accepted
            accepted.trajectory.close()
            self.lose_certificate("attention used")
            self.limits = Thresholds(STRICT, self._options.reuse.region_threshold)
            self._tell_learned()
        learning = self._learn()
        judged = self._cheapest(mine) if self._options.certified else self._by_work(mine)
        if learning:
            judged = [replace(judgement, refusal=learning, thresholds=None) for judgement in judged]
        accepted = self._first(judged, device)
        self.refused = None if learning else self.refused
        self.tell_settings(DENSE)
        return accepted

    def lose_certificate(self, field: str) -> None:
        """The request turned out to differ from what its certificate speaks of."""
        self._report.certificate = f"not certified for these settings (differs in {field})"
        self._report.certified, self._certificate = False, None

    def _by_work(self, mine: EarlySignature) -> list[Judgement]:
        return sorted(self._judged(mine, self._found.candidates), key=lambda judgement: judgement.work)

    def _cheapest(self, mine: EarlySignature) -> list[Judgement]:
        return self._by_work(mine)[:1]

    def _first(self, judged: list[Judgement], device: torch.device) -> Accepted | None:
        """The first that is accepted and whose files are good; else the report tells of the nearest."""
        refused = []
        for rank, judgement in enumerate(judged):
            if judgement.refusal is not None:
                refused.append(judgement)
                continue
            accepted = self._open(judgement, device)
            if accepted is not None:
                self._choice = LEAST_WORK_ACCEPTED if rank else self._choice
                self._show(judgement)
                return accepted
        if refused:
            self.refused = max(refused, key=lambda judgement: judgement.candidate.similarity)
            self._show(self.refused)
            self._report.reason = self.refused.refusal
        return None

    def _learn(self) -> Reason | None:
        """Put the thresholds on the model's own scale, or say why they cannot be yet."""
        if not self._learns:
            return None
        self.limits, why = self._early.answer(on_own_scale, *self._scaling)
        return why

    @property
    def _scaling(self) -> tuple[Thresholds, Store, HardKey, tuple[int, int, int], float]:
        """What ``on_own_scale`` is asked with."""
        similarity = self._options.probe.min_text_similarity
        return self.limits, self._store, self._request.key, self._request.shape.patch, similarity

    def _judged(self, mine: EarlySignature, candidates: list[Candidate]) -> Iterator[Judgement]:
        device = mine.state.device
        for candidate in candidates:
            try:
                donor = self._signature(candidate.info)
                change, reuse, limits = self._change_in(donor), self._options.reuse, self.limits
                signatures = mine, donor.to(device)
                yield judge(
                    candidate, *signatures, change, self._request, reuse, self._window, limits, self._certificate
                )
            except EntryError as error:
                self._report.reason = set_aside(self._store, candidate.info, error)

    def change_of(self, info: EntryInfo) -> list[float] | None:
        """How much a stored request's x0 changed at each step, if that was kept. Raises EntryError."""
        return self._change_in(self._signature(info))

    def _signature(self, info: EntryInfo) -> EarlySignature:
        """Raises EntryError, also if the entry was deleted since it was read: whoever deletes one is done with it."""
        try:
            found = self._early.answer(self._store.signature, info.id)
        except EntryError:
            if self._store.disk.is_entry(info.id):
                raise
            found = None  # its files went one by one while they were read
        if found is None or not self._store.disk.is_entry(info.id):
            raise EntryGone("it was deleted")
        return found

    def _change_in(self, donor: EarlySignature) -> list[float] | None:
        if donor.change is None:
            return None
        if donor.change.numel() != self._request.schedule.steps:
            raise EntryError("its changes are of another number of steps")
        return donor.change.tolist()

    def _open(self, judgement: Judgement, device: torch.device) -> Accepted | None:
        info = judgement.candidate.info
        try:
            trajectory = self._early.likely.open(info.id)
            trajectory.check()  # what is bad now costs only the donor; later it would cost the hit
        except EntryError as error:
            self._report.reason = set_aside(self._store, info, error)
            return None
        self._early.likely.take()
        return Accepted(judgement, trajectory, self._attention.choose(info, device))

    def _show(self, judgement: Judgement) -> None:
        report, info = self._report, judgement.candidate.info
        report.discrepancies, report.region_share = judgement.found, judgement.share
        report.decided_share = judgement.decided_share
        report.thresholds = judgement.thresholds
        report.predicted_work, report.similarity = judgement.work, judgement.candidate.similarity
        report.donor_id, report.donor_created, report.donor_prompt = info.id, info.created, info.prompt


def set_aside(store: Store, info: EntryInfo, error: EntryError) -> Reason:
    """Take a bad entry out of use; the reason tells what was wrong with it."""
    if isinstance(error, EntryGone):
        return Reason.of(Code.ENTRY_GONE)
    store.quarantine(info.id, str(error))
    return Reason.of(Code.ENTRY_CORRUPT, detail=str(error))
