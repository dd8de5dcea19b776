"""Measured runs beside their predictions, made once for all sessions, so read only.

A page is executed anew on every run of it; what is cached has to lie in a module.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import _session as session
import _work as work

from recipe_core.calibration.evidence import published_evidence, rename_runs, run_name
from recipe_core.calibration.lessons import Knowledge, LearnedNumber
from recipe_core.calibration.residuals import RunsCompared, compare_runs
from recipe_core.calibration.store import Overlay
from recipe_core.calibration.uploads import Upload, UploadPreview, preview_uploads
from recipe_core.doors.serve import folders_allowed
from recipe_core.views.measured import with_titles


@lru_cache(maxsize=4)
def compared_runs(ids: tuple[str, ...] | None, stamp: str) -> RunsCompared:  # noqa: ARG001 - part of the key
    """The runs of the calibration with these ids; without ids, the published ones.

    ``stamp`` tells one state of the calibration from another.
    """
    overlay = None if ids is None else Overlay.open()
    if ids is None or overlay is None:
        return with_titles(published_evidence())
    entries = [entry for entry in overlay.entries if entry.id in ids]
    compared = work.calculated(
        "Predicting the runs",
        compare_runs,
        [entry.measured for entry in entries],
        folders=folders_allowed(),
        simulated_noun="",
    )
    names = {entry.id: run_name(entry) for entry in entries}
    return with_titles(rename_runs(compared, names))


@lru_cache(maxsize=4)
def cached_learned_numbers(ids: tuple[str, ...], stamp: str) -> tuple[LearnedNumber, ...]:  # noqa: ARG001 - as above
    """The numbers that the calibration of these runs has learned."""
    overlay = Overlay.open()
    return Knowledge(overlay).numbers if overlay and ids else ()


def preview_files(files: list[Any]) -> UploadPreview:
    """Read uploaded files and say what they would change about the session's answer.

    Raises:
        RecipeError: for files that cannot be read.
    """
    uploads = [Upload(file.name, file.getvalue()) for file in files]
    return work.calculated(
        "Reading the runs",
        preview_uploads,
        uploads,
        session.request().to_json(),
        folders=folders_allowed(),
        simulated_noun="",
    )
