"""An estimate's figures as an engine's log states them, and what its log says beside them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recipe_core.base.units import gib
from recipe_core.calibration.importers.imported import Imported
from recipe_core.calibration.validation.facts import HELD
from recipe_core.estimates.serving.logged_cache import logged_requests, logged_tokens, logs_less
from recipe_core.plans.plan import Plan

# Parts of memory that logs state and that have no band.
PARTS = {"activations_bytes": "activations", "runtime_bytes": "memory outside torch"}

Figures = Mapping[str, float]


def as_logged(plan: Plan, row: int, figures: Figures) -> dict[str, float]:
    """Tokens and requests of a cache as the engine logs them, where that is not what it holds."""
    block, place = plan.at(row)
    cases = block.cases.take(np.array([place]))
    if not logs_less(block.setting, cases):
        return {}
    pool = figures["kv_cache_bytes"]
    requests = float(logged_requests(block.setting, cases, pool)[0])
    out = {"max_concurrency": requests, HELD: figures["kv_cache_tokens"]}
    if (tokens := logged_tokens(block.setting, cases, pool)) is not None:
        out["kv_cache_tokens"] = float(tokens[0])
    return out


def logged_parts(run: Imported, estimate: tuple[Figures, object] | None) -> list[str]:
    """What a log says beside the compared figures, with the estimate of what ran."""
    figures = estimate[0] if estimate else {}
    names = [name for name in PARTS if name in run.figures and name in figures]
    notes = [
        f"{PARTS[name]}: {gib(run.figures[name])} measured, {gib(figures[name])} estimated"
        for name in names
    ]
    if HELD in figures and {"kv_cache_tokens", "max_concurrency"} & run.figures.keys():
        notes.append(
            f"the cache holds {figures[HELD]:,.0f} tokens: the log charges every request for the "
            "tokens in flight"
        )
    return notes
