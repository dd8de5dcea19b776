"""Workloads (``presets.yaml``) and objectives to start from, and which of them a request has."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import RecipeError
from recipe_core.base.provenance import Sourced
from recipe_core.base.types import Positive
from recipe_core.models.catalog import load_model_spec
from recipe_core.request.metrics import Goal
from recipe_core.request.objective import Orientation
from recipe_core.request.schema import PlanRequest, no_search
from recipe_core.request.serving_workload import LOADS, ServingWorkload

Line = Annotated[str, Field(min_length=3, max_length=120, pattern=r"^[^\n]+$")]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
EXAMPLES_FILE = Path(__file__).with_name("examples.yaml")


class Example(DataRow):
    """A case: what runs where (``text``), what one wants to know, and the request that asks it.

    ``answer`` is what this version answers, held by a test; empty where the start page has none.
    """

    title: Annotated[Line, Field(max_length=40)]
    text: Line
    question: Line
    answer: Annotated[str, Field(max_length=120)] = ""
    request: dict[str, Any]

    @property
    def asked(self) -> PlanRequest:
        """The request; raises InputError where its fields are wrong."""
        return PlanRequest.parse(self.request)


class ExampleFile(DataRow):
    """The shape of ``examples.yaml``."""

    schema_version: Literal[1]
    status: Literal["assumed"]
    source: str
    examples: dict[Slug, Example]


@cache
def examples() -> dict[str, Example]:
    """The cases this version ships, by name, in the order they are shown.

    Raises:
        InputError: naming file, field and value, where the file does not fit its schema.
    """
    return DataFile(EXAMPLES_FILE, "example").read_as(ExampleFile).examples


FILE = Path(__file__).with_name("time_limits.yaml")


class TimeLimits(DataRow):
    """Limits with a title; in milliseconds, as the objective states them."""

    title: str
    help: str
    source: str
    status: Literal["published"]
    ttft_ms: Positive
    tpot_ms: Positive


class _File(Sourced):
    limits: dict[str, TimeLimits]


@cache
def published_time_limits() -> dict[str, TimeLimits]:
    """The published limits that this version ships, by name.

    Raises:
        InputError: where the file does not fit its schema.
    """
    return DataFile(FILE, "objective.limits").read_as(_File).limits


# The field that a model's positions bound.
_LONGEST = "max_context"

# Fields that a serving preset takes out unless it states them.
_CLEARED = ("max_context", "input_spread", "output_spread", "input_lengths", "output_lengths")


class Preset(DataRow):
    """A workload with a title; ``workload`` holds its fields."""

    title: str
    help: str
    workload: dict[str, float | int | str]


class Aim(DataRow):
    """The aim that counts most: an orientation, one goal, or several with their weights."""

    title: str
    help: str
    optimize: Goal = "throughput"
    orientation: Orientation | None = None
    weights: Mapping[Goal, float] = {}

    @property
    def changes(self) -> dict[str, Any]:
        """The changes to a request that choose it."""
        weighed = {f"objective.weights.{goal}": weight for goal, weight in self.weights.items()}
        edits = {"objective.optimize": self.optimize, "objective.orientation": self.orientation}
        return edits | weighed


class PresetFile(DataRow):
    """The shape of ``presets.yaml``."""

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
    if (longest := changes.get(f"workload.{_LONGEST}")) is not None:
        changes[f"workload.{_LONGEST}"] = min(longest, longest_positions(request.model))
    if _stays_searched(request, changes):
        changes["workload.concurrency"] = None
    return changes


def longest_positions(model: Any) -> int:
    """The positions of a model, in tokens; without an end where the model is unknown."""
    try:
        return load_model_spec(model, folders=False).max_context
    except RecipeError:  # an unknown model is refused by its own name
        return sys.maxsize


def _stays_searched(request: PlanRequest, changes: Mapping[str, Any]) -> bool:
    """Return whether a closed loop's load is searched, also after the changes of a preset."""
    workload = request.workload
    if not isinstance(workload, ServingWorkload) or changes.get("workload.mode") != "closed":
        return False
    searchable = no_search(request.objective, request.options) is None
    return searchable and workload.concurrency is None


def preset_of(request: PlanRequest, *, any_load: bool = False) -> str | None:
    """The preset whose numbers the request has now.

    A load that is searched may be any (``any_load``: one that is stated too), and a longest request
    may be left out.
    """
    workload = request.workload.model_dump()
    cleared = dict.fromkeys(field for field in _CLEARED if field in workload)
    for name, preset in presets(request).items():
        values = {**cleared, **preset.workload}
        if request.load_searched:
            values["concurrency"] = None
        if any_load:
            any_field = {"mode", *LOADS.values()} & values.keys()
            values |= {field: workload[field] for field in any_field}
        if (longest := values.get(_LONGEST)) is not None:
            values[_LONGEST] = workload[_LONGEST] and min(longest, longest_positions(request.model))
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
