"""What every sampling leaves in the history of its store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..handle import Outcome
from ..reasons import Decision
from ..store.history import History, Record
from .comfy_picture import preview_picture

if TYPE_CHECKING:
    from .comfy_run import ComfyRun

log = logging.getLogger("carnator")


def note_outcome(run: ComfyRun, outcome: Outcome, model: Any, latent: Any, dense: Any = None) -> None:
    """Note what a run did, with a small picture of a hit's result; the file is written in the background.

    Nothing is noted of a node that is switched off. The report then names its decision.

    Args:
        dense: latent of the same request run densely, of which a picture is kept too.
    """
    if run.report.decision is Decision.OFF:
        return
    try:
        record = Record.of(outcome.report, outcome.status, run.report.seconds_saved)
        picture = preview_picture(model, latent) if run.report.decision is Decision.HIT else None
        dense_picture = None if dense is None else preview_picture(model, dense)
        History(run.store_folder).add_later(record, picture, dense_picture)
        outcome.report["decision_id"] = record.id
    except Exception as error:  # the video is there: nothing about its history may fail the run
        log.warning("Carnator: the history was not written: %s", error)
