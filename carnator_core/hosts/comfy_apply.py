"""Carnator on a MODEL that any sampler node may sample, any number of times."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..handle import Outcome, ReportHandle
from ..options import Options
from ..reasons import Decision
from .comfy_history import note_outcome
from .comfy_picture import evidence_picture, heat_mask
from .comfy_run import ComfyRun, with_carnator

log = logging.getLogger("carnator")


class AppliedModel:
    """Makes a ComfyRun of its own for every sampling and fills the handle when it ends.

    Args:
        options: what the artist set.
        store_root: folder that holds all stores.
        handle: filled anew by every sampling that succeeds.
        donor: report whose stored request is the only donor; read when a sampling begins.
        progress: called with a line of text when something noteworthy happens.
    """

    def __init__(
        self,
        options: Options,
        store_root: Path,
        handle: ReportHandle,
        donor: ReportHandle | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ):
        self._options, self._store_root, self._progress = options, store_root, progress
        self._handle, self._donor = handle, donor

    def attach(self, model: Any) -> Any:
        """A clone of a MODEL for any sampler node."""
        return with_carnator(model, self._outer_sample)

    def _outer_sample(self, executor: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        run = ComfyRun(pinned(self._options, self._donor), self._store_root, self._progress)
        result = run.outer_sample(executor, *args, **kwargs)
        outcome = outcome_of(run, executor.class_obj.model_patcher, result)
        self._handle.fill(outcome)
        log.info("Carnator: %s", outcome.status)
        self._progress(outcome.status)
        return result


def pinned(options: Options, donor: ReportHandle | None) -> Options:
    """Options under which only the stored request of a report may be the donor."""
    if donor is None:
        return options
    return dataclasses.replace(options, probe=dataclasses.replace(options.probe, donor=donor.entry_id))


def outcome_of(run: ComfyRun, model: Any, latent: Any, dense: Any = None) -> Outcome:
    """What a run left, which is also noted in its store. Latents that were declined may have any shape.

    Args:
        dense: what the same request gave densely, if it was audited.
    """
    report = run.report
    if report.decision is Decision.HIT:
        heat = run.session.heat
        mask, picture = heat_mask(heat, latent), evidence_picture(model, latent, heat)
    else:
        mask, picture = torch.ones((1, 64, 64) if latent.is_nested else (1, *latent.shape[-2:])), None
    outcome = Outcome(report.to_dict(), report.status(), mask, picture)
    note_outcome(run, outcome, model, latent, dense)
    return outcome
