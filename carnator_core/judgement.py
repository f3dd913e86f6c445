"""The judgement on one candidate: how far its early states are, what would be computed, and whether that is a hit."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import evidence
from .certificate import Certificate
from .gate import exceeded, explain, thresholds_for
from .options import GateOptions, ReuseOptions
from .plan import LayerWindow, StepPlan, predicted_work, reuse_plans
from .reasons import Code, Reason
from .recall import Candidate
from .request import Request
from .scale import Thresholds
from .signature import Discrepancies, EarlySignature, discrepancies
from .store.tensor_file import EntryError


@dataclass(frozen=True)
class Judgement:
    """One candidate as the gate sees it.

    Args:
        region: [T', h, w] bool, the evidence region at the end of the probe; rows: its flat indices [n], filled up.
        decided_share: the region over all tokens, by which it is near-empty or not; share: rows over all tokens.
        plans: what each reuse step would compute; work: predicted work of that, relative to a dense run.
        thresholds: what it was held against; None while they are not known.
        refusal: None if the candidate is accepted.
    """

    candidate: Candidate
    found: Discrepancies
    thresholds: GateOptions | None
    region: torch.Tensor
    rows: torch.Tensor
    decided_share: float
    share: float
    plans: dict[int, StepPlan]
    work: float
    refusal: Reason | None


def judge(
    candidate: Candidate,
    mine: EarlySignature,
    donor: EarlySignature,
    change: list[float] | None,
    request: Request,
    reuse: ReuseOptions,
    window: LayerWindow,
    limits: Thresholds,
    certificate: Certificate | None = None,
) -> Judgement:
    """Compare two signatures. Raises EntryError if the donor's has other families or shapes.

    Args:
        mine, donor: on one device, which becomes that of the region and its rows.
        change: how much the donor's x0 changed at each step, see ``reuse_plans``.
        certificate: whose score must accept too; ``limits`` are its guards then.
    """
    if {n: t.shape for n, t in donor.tensors().items()} != {n: t.shape for n, t in mine.tensors().items()}:
        raise EntryError("signature has other families or shapes")
    schedule, shape = request.schedule, request.shape
    difference = evidence.token_difference(mine.state, donor.state, shape.patch)
    threshold = evidence.threshold_at(limits.region, schedule.sigmas[schedule.probe_end - 1])
    region = evidence.evidence_region(difference, threshold)
    rows = evidence.region_rows(region, difference)
    decided_share, share = float(region.float().mean()), rows.numel() / region.numel()
    gate = thresholds_for(decided_share, limits.gate)
    allowed = reuse.max_region_percent / 100
    found = discrepancies(mine, donor, evidence.replayed_tokens(difference, region, allowed))
    plans = reuse_plans(schedule, reuse, request.guided, change)
    work = predicted_work(schedule, shape, window, share, plans, request.guided)
    if exceeded(found, gate):
        refusal = Reason.of(Code.GATE_REJECTED, families=explain(found, gate))
    elif certificate is not None and not certificate.covers(found):
        together = f"all discrepancies together ({certificate.excess(found):.3g} times what is certified)"
        refusal = Reason.of(Code.GATE_REJECTED, families=together)
    elif share > allowed:
        refusal = Reason.of(Code.REGION_TOO_LARGE, share=share, allowed=allowed)
    elif work >= 1.0:
        refusal = Reason.of(Code.NO_SAVING, predicted=work)
    else:
        refusal = None
    return Judgement(candidate, found, gate, region, rows, decided_share, share, plans, work, refusal)
