"""The same split on every other engine (framework, of a training run): what it would be there, or why it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.base.text_rows import TextRow, serving_rows, training_rows
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.engines.training_programs import training_engine
from recipe_core.hardware.cluster import device
from recipe_core.launch.serving.start import launch
from recipe_core.launch.training.start import launch_reasons
from recipe_core.recipe.decision import deployment_of
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search.serving_plan import chosen_plan
from recipe_core.search.training_plan import TrainingTable
from recipe_core.search.training_problem import resolve_training
from recipe_core.search.training_search import chosen_training

_KEPT = (
    "tp",
    "pp",
    "dp",
    "ep",
    "cp",
    "weight_dtype",
    "kv_dtype",
    "replicas",
    "prefill",
    "speculative",
)
"""What of a serving split any engine may be asked for; batch limits and memory shares are each engine's own."""


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """A split on one engine. ``reasons``: why it cannot run or cannot be started there; empty where it can, which has ``figures``.

    ``changes`` to the request, by dotted field, take it.
    """

    name: str
    title: str
    version: str
    reasons: tuple[str, ...]
    figures: tuple[TextRow, ...]
    changes: Mapping[str, Any]


def other_engines(
    request: PlanRequest, candidate: Mapping[str, Any], *, folders: bool = True
) -> list[OtherEngine]:
    """The candidate on every engine but its own, those where it can run first; ``request`` is on the candidate's own hardware."""
    if request.is_training:
        found = [
            _trained(request, candidate, name, folders)
            for name in training_data().frameworks
            if name != candidate["engine"]
        ]
    else:
        found = [
            _served(request, candidate, name, folders)
            for name in engine_names()
            if name != candidate["engine"]
        ]
    return sorted(found, key=lambda each: bool(each.reasons))


def _served(
    request: PlanRequest, candidate: Mapping[str, Any], name: str, folders: bool
) -> OtherEngine:
    spec = engine(name)
    split = {field: candidate[field] for field in _KEPT if candidate.get(field) is not None} | {
        "engine": name
    }
    tried = request.options.engines or (
        default_engine(device(request.hardware.device).runtime).name,
    )
    changes = {"candidate": split, "options.engines": tuple(dict.fromkeys([*tried, name]))}
    try:
        asked = request.model_copy(update={"candidate": CandidateRequest.model_validate(split)})
        table, row = chosen_plan(asked, folders=folders)
        reasons = table.reasons(row)
        if not reasons:
            launch(deployment_of(table, row))
    except RecipeError as error:
        reasons = [error.message]
    figures = () if reasons else tuple(serving_rows(table.estimate(row)))
    return OtherEngine(name, spec.title, spec.version, tuple(reasons), figures, changes)


def _trained(
    request: PlanRequest, candidate: Mapping[str, Any], name: str, folders: bool
) -> OtherEngine:
    program, title = training_engine(name), training_data().frameworks[name].title
    split = dict(candidate) | {"engine": name}
    try:
        asked = request.model_copy(update={"candidate": CandidateRequest.model_validate(split)})
        estimates, row = chosen_training(asked, folders=folders)
        table = TrainingTable(resolve_training(asked, folders=folders), estimates)
        reasons = table.reasons(row) or launch_reasons(estimates, row)
    except RecipeError as error:
        reasons = [error.message]
    figures = () if reasons else tuple(training_rows(estimates.row(row)))
    return OtherEngine(name, title, program.version, tuple(reasons), figures, {"candidate": split})
