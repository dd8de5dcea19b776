"""The space around a recommended point: batch limits, memory, graph sizes, the first splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.spec import engine
from recipe_core.engines.tuning import tunables
from recipe_core.plans.plans import plan_splits
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.build import recipe_of
from recipe_core.recipe.decision import decide
from recipe_core.recipe.provenance import Layer
from recipe_core.request.schema import PlanRequest

# The knob whose values are degrees of parallelism together.
SPLIT = "split"
DEGREES = ("tp", "pp", "dp", "ep", "cp")
# Batch limits that are tried, as multiples of the recommended one.
FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
# Shares of memory that are tried, beside the recommended one.
SHARES = (-0.08, -0.05, -0.02, 0.0, 0.02, 0.04)
MOST_SHARE, LEAST_BATCH = 0.97, 1
LADDERS = {"max_num_seqs": FACTORS, "max_batched_tokens": FACTORS}

# A place in the space: by knob, which of its values.
Point = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that is varied: its values in order, which of them is recommended, its kind.

    ``where``: the candidate, the engine's options, or the split.
    """

    name: str
    values: tuple[Any, ...]
    base: int
    where: str

    @property
    def ordered(self) -> bool:
        return self.where != SPLIT


def tunable_knobs(recipe: Recipe, splits: int) -> tuple[Knob, ...]:
    """What can be varied in a recipe: what its engine's version has an option for.

    ``splits``: how many splits of the plan are tried, the recommended one among them.
    """
    return tuple(knob for knob in _all_knobs(recipe, splits) if len(knob.values) > 1)


def _all_knobs(recipe: Recipe, splits: int) -> Iterator[Knob]:
    spec = engine(recipe.engine.name)
    settable = set(option_meanings(spec).values())
    candidate, user_options = recipe.candidate, recipe.request["options"].get("engine_options", {})
    for name, factors in LADDERS.items():
        if name in settable and candidate.get(name):
            limit = int(candidate[name])
            floor = _limit_floor(name, recipe)
            values = {max(round(limit * factor), floor) for factor in factors} | {limit}
            yield _limit_ladder(name, values, limit, "candidate")
    share = candidate.get("memory_fraction")
    if "memory_fraction" in settable and share and recipe.device.runtime != "cpu":
        shares = {round(share + step, 3) for step in SHARES}
        values = {value for value in shares if 0.1 <= value <= MOST_SHARE} | {share}
        yield _limit_ladder("memory_fraction", values, share, "candidate")
    for tunable in tunables(spec, recipe.device.runtime):
        if tunable.option not in user_options:  # what the user states stays
            # None: the engine's own default, which is what the recommended point runs with.
            yield Knob(tunable.option, (None, *tunable.values), 0, "options")
    yield Knob(SPLIT, tuple(first_splits(recipe, splits)), 0, SPLIT)


def _limit_floor(name: str, recipe: Recipe) -> int:
    """The least value of a limit: an engine that runs prompts whole needs room for the longest."""
    if name != "max_batched_tokens" or engine(recipe.engine.name).chunked_prefill:
        return LEAST_BATCH if name == "max_num_seqs" else 64
    return recipe.max_context or 64


def _limit_ladder(name: str, values: set[Any], base: Any, where: str) -> Knob:
    ordered = tuple(sorted(values))
    return Knob(name, ordered, ordered.index(base), where)


def first_splits(recipe: Recipe, count: int) -> list[dict[str, int]]:
    """Degrees of the recipe's split, then of the best others of the plan in its number formats."""
    recipe_degrees = parallel_degrees(recipe.candidate)
    pooled = recipe.candidate.get("prefill") is not None
    if count < 2 or recipe.device.count == 1 or pooled:
        return [recipe_degrees]
    request = recipe_request(recipe).model_copy(update={"candidate": None})
    same = {name: recipe.candidate.get(name) for name in ("engine", "weight_dtype", "kv_dtype")}
    out = [recipe_degrees]
    everything = plan_splits(request)
    for row in map(int, everything.order):
        candidate = everything.candidate(row)
        alike = all(candidate.get(name) == value for name, value in same.items())
        fits = int(everything.columns["gpus"][row]) <= recipe.device.count
        if (
            alike
            and fits
            and not candidate.get("prefill")
            and parallel_degrees(candidate) not in out
        ):
            out.append(parallel_degrees(candidate))
        if len(out) >= count:
            break
    return out


def parallel_degrees(candidate: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(candidate.get(name) or 1) for name in DEGREES}


def recommended_point(space: tuple[Knob, ...]) -> dict[str, int]:
    return {knob.name: knob.base for knob in space}


def values_at(space: tuple[Knob, ...], point: Point) -> dict[str, Any]:
    return {knob.name: knob.values[point[knob.name]] for knob in space}


def request_at(recipe: Recipe, space: tuple[Knob, ...], point: Point) -> PlanRequest:
    """The recipe's request moved to a point; what equals the recipe's own is left as it is."""
    request = recipe_request(recipe)
    candidate_values: dict[str, Any] = {}
    option_values: dict[str, Any] = {}
    for knob in space:
        value = knob.values[point[knob.name]]
        if point[knob.name] == knob.base:
            continue
        if knob.where == SPLIT:
            candidate_values |= value
        elif knob.where == "candidate":
            candidate_values[knob.name] = value
        else:
            option_values[knob.name] = value
    values = request.to_json()
    values["candidate"] = {**values["candidate"], **candidate_values}
    options = values["options"]
    options["engine_options"] = {**options.get("engine_options", {}), **option_values}
    return PlanRequest.parse(values)


def recipe_at(recipe: Recipe, space: tuple[Knob, ...], point: Point) -> Recipe | str:
    """The recipe at a point with its parameters, or why the estimate says that it cannot run."""
    if dict(point) == recommended_point(space):
        return recipe
    try:
        request = request_at(recipe, space, point)
        point_recipe = recipe_of(decide(request), request)
    except RecipeError as error:
        return error.message
    carried_fields = {
        "parameters": recipe.parameters,
        "provenance": _layers_after_search(recipe, point_recipe),
    }
    return point_recipe.model_copy(update=carried_fields).locked()


def _layers_after_search(before: Recipe, after: Recipe) -> dict[str, Layer]:
    """What did not change keeps its layer; what the search moved is the objective's choice."""
    old, new = (
        {
            "candidate": recipe.candidate,
            "options": recipe.engine.options,
            "environment": recipe.environment,
        }
        for recipe in (before, after)
    )
    layers: dict[str, Layer] = {}
    for path in after.provenance:
        part, _, name = path.partition(".")
        same = old[part].get(name) == new[part].get(name)
        layers[path] = before.provenance.get(path, "base") if same else "objective"
    return layers
