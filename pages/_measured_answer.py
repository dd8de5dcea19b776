"""Measured runs beside their predictions, made once for all sessions, so read only.

A page is executed anew on every run of it; what is cached has to lie in a module.
"""

from __future__ import annotations

from functools import lru_cache

import _common as common

from recipe_core.calibration.lessons import Knowledge, LearnedNumber
from recipe_core.calibration.residuals import RunsCompared, compare_runs, measured_of_rows
from recipe_core.calibration.store import Overlay
from recipe_core.doors.serve import folders_allowed
from recipe_core.estimates.measured import runs as measured_runs


@lru_cache(maxsize=4)
def compared_runs(ids: tuple[str, ...] | None, stamp: str) -> RunsCompared:  # noqa: ARG001 - part of the key
    """The runs of the calibration with these ids; without ids, the published ones.

    ``stamp`` tells one state of the calibration from another.
    """
    overlay = None if ids is None else Overlay.open()
    if ids is None or overlay is None:
        runs = measured_of_rows([run for run in measured_runs.published_runs() if not run.exclude])
    else:
        runs = [entry.measured for entry in overlay.entries if entry.id in ids]
    return common.calculated(
        "Predicting the runs", compare_runs, runs, folders=folders_allowed(), simulated_what=""
    )


@lru_cache(maxsize=4)
def cached_learned_numbers(ids: tuple[str, ...], stamp: str) -> tuple[LearnedNumber, ...]:  # noqa: ARG001 - as above
    """The numbers that the calibration of these runs has learned."""
    overlay = Overlay.open()
    return Knowledge(overlay).numbers if overlay and ids else ()
