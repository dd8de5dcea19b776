"""Workloads (``presets.yaml``) and objectives to start from, and which of them a request has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from recipe_core.base.documents import read_shipped
from recipe_core.request.metrics import Goal
from recipe_core.request.objective import Orientation
from recipe_core.request.schema import PlanRequest, no_search
from recipe_core.request.serving_workload import ServingWorkload

# Fields that a serving preset takes out unless it states them.
_CLEARED = ("max_context", "input_spread", "output_spread")


class Preset(BaseModel):
    """A workload with a title; ``workload`` holds its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    title: str
    help: str
    workload: dict[str, float | int | str]


class Aim(BaseModel):
    """What counts most: an orientation, one goal, or several with their weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    title: str
    help: str
    optimize: Goal = "throughput"
    orientation: Orientation | None = None
    weights: dict[Goal, float] = {}

    @property
    def changes(self) -> dict[str, Any]:
        """The changes to a request that choose it."""
        weighed = {f"objective.weights.{goal}": weight for goal, weight in self.weights.items()}
        edits = {"objective.optimize": self.optimize, "objective.orientation": self.orientation}
        return edits | weighed


class PresetFile(BaseModel):
    """The shape of ``presets.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    schema_version: Literal[1]
    status: Literal["assumed"]
    source: str
    serving: dict[str, Preset]
    training: dict[str, Preset]
    aims: dict[Literal["serving", "training"], dict[str, Aim]]


@cache
def preset_file() -> PresetFile:
    return PresetFile.model_validate(read_shipped(Path(__file__).with_name("presets.yaml")))


def presets(request: PlanRequest) -> dict[str, Preset]:
    return preset_file().training if request.is_training else preset_file().serving


def preset_changes(request: PlanRequest, name: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not request.is_training:
        changes |= dict.fromkeys(f"workload.{field}" for field in _CLEARED)
    for field, value in presets(request)[name].workload.items():
        changes[f"workload.{field}"] = value
    if _stays_searched(request, changes):
        changes["workload.concurrency"] = None
    return changes


def _stays_searched(request: PlanRequest, changes: Mapping[str, Any]) -> bool:
    """Whether a closed loop's load is searched, and still is after the changes of a preset."""
    workload = request.workload
    if not isinstance(workload, ServingWorkload) or changes.get("workload.mode") != "closed":
        return False
    searchable = no_search(request.objective, request.options) is None
    return searchable and workload.concurrency is None


def preset_of(request: PlanRequest) -> str | None:
    """The preset whose numbers the request has now; a load that is searched may be any."""
    workload = request.workload.model_dump()
    cleared = dict.fromkeys(field for field in _CLEARED if field in workload)
    for name, preset in presets(request).items():
        values = {**cleared, **preset.workload}
        if request.load_searched:
            values["concurrency"] = None
        if all(workload[field] == value for field, value in values.items()):
            return name
    return None


def aims(request: PlanRequest) -> Mapping[str, Aim]:
    return preset_file().aims["training" if request.is_training else "serving"]


def request_aim(request: PlanRequest) -> str | None:
    """The name of the request's aim; None for weights and where no aim fits."""
    objective = request.objective
    if objective.weights:
        entries = aims(request).items()
        return next((name for name, aim in entries if aim.weights == objective.weights), None)
    by_orientation = None
    for name, aim in aims(request).items():
        if aim.orientation == objective.orientation and not aim.weights:
            if aim.optimize == objective.optimize:
                return name
            # An orientation goes before ``optimize``, which may then be any.
            if by_orientation is None and aim.orientation is not None:
                by_orientation = name
    return by_orientation
