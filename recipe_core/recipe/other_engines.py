"""The same split on every other engine or framework: its figures, or why it cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.engines.training_programs import training_engine
from recipe_core.hardware.cluster import device_profile
from recipe_core.plans.plans import plan_candidate
from recipe_core.recipe.decision import start_reasons
from recipe_core.recipe.expected import TextRow, text_rows
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest

_DEGREES = ("tp", "pp", "dp", "ep", "cp", "replicas", "prefill")
# Fields of a serving split for any engine; batch limits and memory shares are an engine's own.
_SHARED = (*_DEGREES, "weight_dtype", "kv_dtype", "speculative")


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """A split on one engine.

    ``reasons``: why it cannot run or be started; empty where it can, which has ``figures``.
    ``changes`` to the request, by dotted field, select it.
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
    """The candidate on every engine but its own, those where it can run first.

    ``request`` is on the candidate's own hardware.
    """
    names = list(training_data().frameworks) if request.is_training else engine_names()
    names = [name for name in names if name != candidate["engine"]]
    engines = [_on_engine(request, candidate, name, folders) for name in names]
    return sorted(engines, key=lambda engine: bool(engine.reasons))


def _on_engine(
    request: PlanRequest, candidate: Mapping[str, Any], name: str, folders: bool
) -> OtherEngine:
    title, version, changes = (_framework_changes if request.is_training else _engine_changes)(
        request, candidate, name
    )
    split = CandidateRequest.model_validate(changes["candidate"])
    figures: tuple[TextRow, ...] = ()
    try:
        plan, row = plan_candidate(request.model_copy(update={"candidate": split}), folders=folders)
        reasons = plan.reasons(row) or start_reasons(plan, row)
        if not reasons:
            figures = tuple(text_rows(plan.kind, plan.estimate(row).to_json()))
    except RecipeError as error:
        reasons = [error.message]
    return OtherEngine(name, title, version, tuple(reasons), figures, changes)


def _engine_changes(
    request: PlanRequest, candidate: Mapping[str, Any], name: str
) -> tuple[str, str, dict[str, Any]]:
    spec = engine(name)
    split = {field: candidate[field] for field in _SHARED if candidate.get(field) is not None}
    usual = default_engine(device_profile(request.hardware.device).runtime).name
    engines = dict.fromkeys([*(request.options.engines or (usual,)), name])
    changes = {"candidate": {**split, "engine": name}, "options.engines": tuple(engines)}
    return spec.title, spec.version, changes


def _framework_changes(
    _request: PlanRequest, candidate: Mapping[str, Any], name: str
) -> tuple[str, str, dict[str, Any]]:
    title = training_data().frameworks[name].title
    return title, training_engine(name).version, {"candidate": {**candidate, "engine": name}}
