"""The search on a real machine as a problem: its space around a point, its score, its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any, get_args

from recipe_core.base.errors import InputError, RecipeError, unknown
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.spec import engine
from recipe_core.engines.trials import tunables
from recipe_core.plans.plans import plan_splits
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.build import recipe_of
from recipe_core.recipe.decision import decide
from recipe_core.recipe.options import Layer
from recipe_core.request.metrics import Goal
from recipe_core.request.schema import PlanRequest

# One-sided 95 % quantiles of Student's t at 1, 2 … degrees of freedom (any statistical table).
T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
MOST_REPEATS = len(T_95) + 1


@dataclass(frozen=True, slots=True)
class Gain:
    """Pairs of scores (logarithms, lower is better) of the recommended point and the best one.

    Of ratios 1.10 is 10 % better. Between ``low_ratio`` and ``high_ratio`` the mean gain lies with
    90 % confidence, by Student's t over the pairs, which share what the machine did meanwhile.
    ``noise_share``: the standard deviation of the recommended point's own scores.
    """

    pairs: int
    mean_ratio: float
    low_ratio: float
    high_ratio: float
    noise_share: float

    @property
    def proven(self) -> bool:
        """Return whether the best point is better with 95 % confidence."""
        return self.low_ratio > 1

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()} | {
            "proven": self.proven
        }


def gain_of(base: Sequence[float], best: Sequence[float]) -> Gain:
    gaps = [a - b for a, b in zip(base, best, strict=True)]
    mean, pairs = fmean(gaps), len(gaps)
    half = T_95[pairs - 2] * stdev(gaps) / math.sqrt(pairs)
    ratio, low, high = map(math.exp, (mean, mean - half, mean + half))
    return Gain(pairs, ratio, low, high, math.expm1(stdev(base)))


def alternating_order(repeats: int) -> list[str]:
    """Return who is measured when: base, best, best, base …: a slow drift favours neither."""
    pairs = [("base", "best"), ("best", "base")]
    return [name for n in range(repeats) for name in pairs[n % 2]]


def median_measurement(
    measurements: Sequence[Mapping[str, Any]], scores: Sequence[float]
) -> Mapping[str, Any]:
    """The measurement of the median score: the one that a claim repeats."""
    ranked = sorted(range(len(scores)), key=scores.__getitem__)
    return measurements[ranked[(len(ranked) - 1) // 2]]


LOWER_IS_BETTER: dict[str, str] = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "latency": "request_latency_s",
}
THROUGHPUT = "output_tokens_per_s"
TRIAL_FIGURES = (THROUGHPUT, "tpot_s", "ttft_s", "request_latency_s")
COST, GPUS = "cost", "gpus"
# Goals that a measurement, the devices used and their price tell.
MEASURED: tuple[str, ...] = (*LOWER_IS_BETTER, "throughput", COST, GPUS)

AT_LEAST = "output_tokens_per_s_at_least"
# Limits on times, by percentile (None: the mean): the figure of a measurement, which has no other.
_LIMITS: dict[str, dict[float | None, str]] = {
    "ttft_ms": {None: "ttft_s", 50.0: "ttft_p50_s", 95.0: "ttft_p95_s"},
    "tpot_ms": {None: "tpot_s", 95.0: "tpot_p95_s"},
    "request_latency_ms": {None: "request_latency_s"},
}


@dataclass(frozen=True, slots=True)
class Aim:
    """Goals with their weights, and the limits of the request's objective.

    ``limits`` in the unit of their ``figures``; ``unchecked``: those that a measurement does not
    tell, with the reason.
    """

    goals: Mapping[str, float]
    limits: dict[str, float] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return " and ".join(self.goals)

    def score(self, metrics: Mapping[str, Any], recipe: Recipe) -> float:
        """The weighted sum of logarithms, lower is better: -0.01 is 1 % better.

        The same function of quantities as a plan ranks by, of what was measured.

        Raises:
            InputError: where the measurement lacks a figure.
        """
        return sum(
            weight * math.log(_measured_goal(goal, metrics, recipe))
            for goal, weight in self.goals.items()
        )

    def broken(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """By limit, the logarithm of measured over allowed: above 0 it is missed."""
        out = {}
        for name, bound in self.limits.items():
            value = metrics.get(self.figures[name])
            if isinstance(value, int | float) and value > 0:
                out[name] = math.log(value / bound) * (-1 if name == AT_LEAST else 1)
        return out


def search_aim(request: PlanRequest, goal: str | None = None) -> Aim:
    """The aim of a request's objective, or one goal in place of its own; limits stay.

    Raises:
        InputError: for a goal that is unknown, or that no measurement tells.
    """
    request_goals = {str(name): weight for name, weight in request.objective.goals.items()}
    goals = request_goals if goal is None else {goal: 1.0}
    for name in goals:
        if name not in get_args(Goal):
            message, hint = unknown("objective", name, get_args(Goal))
            raise InputError(message, field="objective", hint=hint)
        if name not in MEASURED:
            raise InputError(
                f"{name} is not measured by a bundle.",
                field="objective",
                hint=f"State another: --objective {MEASURED[1]}.",
            )
    aim, limits = Aim(goals), request.objective.limits.model_dump(exclude_none=True)
    percentile = limits.pop("percentile", None)
    for name, bound in limits.items():
        if name == AT_LEAST:
            aim.figures[name], aim.limits[name] = THROUGHPUT, float(bound)
        elif name not in _LIMITS:
            aim.unchecked[name] = "the estimate judges it"
        elif percentile in _LIMITS[name]:
            aim.figures[name], aim.limits[name] = _LIMITS[name][percentile], float(bound) / 1000
        else:
            aim.unchecked[name] = f"a measurement does not tell its percentile {percentile:g}"
    return aim


def _measured_goal(goal: str, metrics: Mapping[str, Any], recipe: Recipe) -> float:
    if goal == GPUS:
        return float(recipe.device.count)
    figure = LOWER_IS_BETTER.get(goal, THROUGHPUT)
    value = metrics.get(figure)
    if not isinstance(value, int | float) or not value > 0:
        raise InputError(f"the measurement has no {figure}.", field="objective")
    if goal in LOWER_IS_BETTER:
        return float(value)
    cost = recipe.estimate.get("cost") or {}
    per_hour = cost.get("usd_per_hour") if goal == COST else 1.0
    # Without a price, cost is per device.
    return float(per_hour or recipe.device.count) / float(value)


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
    """Return what can be varied in a recipe: what its engine's version has an option for.

    ``splits``: how many splits of the plan are tried, the recommended one among them.
    """
    return tuple(knob for knob in _all_knobs(recipe, splits) if len(knob.values) > 1)


def _all_knobs(recipe: Recipe, splits: int) -> Iterator[Knob]:
    spec = engine(recipe.engine.name)
    settable = set(option_meanings(spec).values())
    candidate, user_options = recipe.candidate, recipe.request["options"].get("engine_options", {})
    ladders: dict[str, set[Any]] = {}
    for name, factors in LADDERS.items():
        if name in settable and candidate.get(name):
            floor = _limit_floor(name, recipe)
            limit = int(candidate[name])
            ladders[name] = {max(round(limit * factor), floor) for factor in factors}
    share = candidate.get("memory_fraction")
    if "memory_fraction" in settable and share and recipe.device.runtime != "cpu":
        shares = {round(share + step, 3) for step in SHARES}
        ladders["memory_fraction"] = {value for value in shares if 0.1 <= value <= MOST_SHARE}
    for name, values in ladders.items():
        ordered = tuple(sorted(values | {candidate[name]}))
        yield Knob(name, ordered, ordered.index(candidate[name]), "candidate")
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


def first_splits(recipe: Recipe, count: int) -> list[dict[str, int]]:
    """Degrees of the recipe's split, then of the best others of the plan in its number formats."""
    recipe_degrees = parallel_degrees(recipe.candidate)
    pooled = recipe.candidate.get("prefill") is not None
    if count < 2 or recipe.device.count == 1 or pooled:
        return [recipe_degrees]
    request = recipe_request(recipe).model_copy(update={"candidate": None})
    formats = ("engine", "weight_dtype", "kv_dtype")
    out, plan = [recipe_degrees], plan_splits(request)
    for row in map(int, plan.order):
        candidate = plan.candidate(row)
        degrees = parallel_degrees(candidate)
        if (
            degrees not in out
            and all(candidate.get(name) == recipe.candidate.get(name) for name in formats)
            and int(plan.columns["gpus"][row]) <= recipe.device.count
            and not candidate.get("prefill")
        ):
            out.append(degrees)
        if len(out) >= count:
            break
    return out


def parallel_degrees(candidate: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(candidate.get(name) or 1) for name in DEGREES}


def recommended_point(space: tuple[Knob, ...]) -> dict[str, int]:
    return {knob.name: knob.base for knob in space}


def values_at(space: tuple[Knob, ...], point: Point) -> dict[str, Any]:
    return {knob.name: knob.values[point[knob.name]] for knob in space}


def point_text(values: Mapping[str, Any], recommended: Mapping[str, Any]) -> str:
    """Say what of the values of a point differs from the recommended ones."""
    changed = [
        f"{name}={_knob_text(value)}"
        for name, value in values.items()
        if value != recommended[name]
    ]
    return ", ".join(changed) or "the recommended point"


def _knob_text(value: Any) -> str:
    if isinstance(value, Mapping):
        degrees = [f"{name}{degree}" for name, degree in value.items() if degree > 1]
        return "·".join(degrees) or "one device"
    return "default" if value is None else str(value)


def trial_figures(metrics: Mapping[str, Any]) -> str:
    figures = [(name, metrics.get(name)) for name in TRIAL_FIGURES]
    return "  ".join(f"{name} {value:.4g}" for name, value in figures if value is not None)


def request_at(recipe: Recipe, space: tuple[Knob, ...], point: Point) -> PlanRequest:
    """The recipe's request moved to a point; what equals the recipe's own is left as it is."""
    values = recipe_request(recipe).to_json()
    candidate, options = dict(values["candidate"]), dict(values["options"])
    engine_options = dict(options.get("engine_options", {}))
    for knob in space:
        value = knob.values[point[knob.name]]
        if point[knob.name] == knob.base:
            continue
        if knob.where == SPLIT:
            candidate |= value
        else:
            (candidate if knob.where == "candidate" else engine_options)[knob.name] = value
    options["engine_options"] = engine_options
    return PlanRequest.parse({**values, "candidate": candidate, "options": options})


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
    """Keep the layers of what did not change; the objective chooses what the search moved."""
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
