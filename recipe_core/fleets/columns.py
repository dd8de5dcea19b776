"""The columns of a fleet: what one replica of a model holds on a device, layout by layout.

A column is a layout of one replica with the largest load at which every limit holds with the
confidence that is asked for. All layouts of a device and all loads are columns of one estimate, so
a model costs a fraction of a second over all devices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.units import chance_text
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine as engine_of
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.scopes import standing_corrections
from recipe_core.estimates.measured.support import fitted_engines_for
from recipe_core.fleets.request import FleetModel
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.models.catalog import load_model_spec
from recipe_core.plans.limits import without_percentile
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_cases
from recipe_core.plans.problem import Problem, resolve_problem
from recipe_core.plans.serving_kind import SERVING
from recipe_core.plans.serving_search import evaluate_pairs, judge_evaluated, search_pairs
from recipe_core.plans.splits import row_reasons, row_request
from recipe_core.request.metrics import timed_limits
from recipe_core.request.objective import Limits
from recipe_core.request.schema import Options, PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import split_name
from recipe_core.sizing.size import LEAST_RATE, largest_load

# Loads of the first scan, of all layouts, and of the gap that it leaves to the best of them: a load
# is then known within 1 %.
POINTS, CLOSE_POINTS = 12, 48
# The smallest load that counts, as a share of the largest.
SMALLEST = 2e-3
# Share by which a larger replica must hold more per device than smaller ones to be kept.
GAIN = 0.02
# Share within which a first scan guesses what a layout holds, by the chances on both sides.
COARSE = 1.03
# Layouts of a device that are kept: a larger one that holds no more per device is never chosen.
KEPT = 6
# Nodes of a replica that spans several, where none fits into one.
SPANS, MOST_SPANS = (2, 4, 8), 2
NO_LAYOUT = "no layout of one replica fills its nodes"
# Options that turn adapters and sleep on, of engines that have them.
ADAPTS, SLEEPS = "enable_lora", "enable_sleep_mode"
# Limits that a replica keeps by itself; the others are the fleet's.
OWN_LIMITS = frozenset({*timed_limits(), "accuracy_recovery", "percentile", "joules_per_token"})
# Options that a fleet does not place, each with the reason.
NOT_PLACED = {
    "disaggregated": "pools of prefill and decode are not placed in fleets.",
    "hardware": "goes with one plan: a fleet's machines are its pools.",
    "loads": "goes with one plan: a fleet's loads are its models'.",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A layout of one replica on a device, and the load that it holds within every limit.

    ``capacities``: loads by added round-trip time, as ``Demands.round_trips`` lists them; 0 where
    the limits do not hold. ``watts``: of its devices under the largest. ``software`` and
    ``shared_error``: what its errors have in common with those of other columns, and the share of
    their variance that is common. ``plan``: of its layout alone.
    """

    device: str | Mapping[str, Any]
    devices: int
    capacities: tuple[float, ...]
    watts: float
    layout: str
    engine: str
    software: tuple[str, ...]
    shared_error: float
    plan: Plan = field(compare=False, repr=False)

    @property
    def capacity(self) -> float:
        return self.capacities[0]

    @property
    def candidate(self) -> dict[str, Any]:
        return self.plan.candidate(0)


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of estimates: whether models may be folders here, and one's own runs."""

    folders: bool = True
    corrections: Corrections | None = None

    @property
    def cached(self) -> bool:
        """Return whether columns are the same for everyone, so that they may be kept."""
        return self.corrections is None and standing_corrections() is None


ANYWHERE = Sources()


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a model on a device; ``reason``: why there is none."""

    columns: tuple[Column, ...]
    reason: str | None = None


def make_columns(
    model: FleetModel,
    device: str | Mapping[str, Any],
    per_node: int,
    nodes: int,
    *,
    top_load: float,
    round_trips: Sequence[float] = (0.0,),
    confidence: float | None = None,
    sources: Sources = ANYWHERE,
) -> Columns:
    """Return the layouts of one replica of a model on nodes of a device, best kept only.

    Args:
        model: with its limits.
        device: as a plan's request names it.
        per_node: devices of a node.
        nodes: that a replica may span, where none fits into one.
        top_load: largest load that is looked at, requests a second or users at once.
        round_trips: milliseconds that are taken from limits on the first token.
        confidence: with which limits must hold; None: the model's own.
        sources: of models and corrections.

    Raises:
        InputError: for what is wrong with the model's request.
    """
    names = {"name", "model", "workload", "objective", "options", "candidate", "adapters", "sleep"}
    plain = model.model_dump(mode="json", include=names, exclude_none=True)
    make = _find_columns if sources.cached else _find_columns.__wrapped__
    first: Columns | None = None
    for count in (1, *_list_spans(model, device, per_node, nodes, sources)):
        key = json.dumps([plain, device, per_node, count, confidence], sort_keys=True)
        try:
            columns_there = make(key, float(top_load), tuple(round_trips), sources)
        except InputError:
            raise
        except RecipeError as error:
            columns_there = Columns((), error.message)
        if columns_there.columns:
            return columns_there
        first = first or columns_there
    return first or Columns(())


def _list_spans(
    model: FleetModel, device: str | Mapping[str, Any], per_node: int, nodes: int, sources: Sources
) -> list[int]:
    """The first numbers of nodes whose memory holds the weights as they are in the checkpoint."""
    weights = 0.0
    if isinstance(model.model, str):
        weights = load_model_spec(model.model, folders=sources.folders).checkpoint_bytes or 0.0
    memory = device_profile(device).usable_memory_bytes * per_node
    return [span for span in SPANS if span <= nodes and span * memory > weights][:MOST_SPANS]


@lru_cache(maxsize=8192)
def _find_columns(
    key: str, top_load: float, round_trips: tuple[float, ...], sources: Sources
) -> Columns:
    """The layouts that hold most of each size, each with the largest load within its limits."""
    plain, device, per_node, nodes, confidence = json.loads(key)
    hardware = HardwareRequest(
        device=device, per_node=per_node, nodes=nodes, usd_per_device_hour=1.0
    )
    request = pose_replica(FleetModel.model_validate(plain), hardware, confidence)
    layouts = _find_layouts(request, sources, spans=nodes > 1)
    if not layouts.pairs:
        return Columns((), NO_LAYOUT)
    lowest_load = max(LEAST_RATE, top_load * SMALLEST) if layouts.is_open else 1.0
    lowest = np.full(len(layouts.devices), lowest_load)
    scan = _scan(layouts, lowest, np.maximum(lowest, top_load), POINTS)
    candidates = _undominated(layouts.devices, scan.guess, COARSE)
    if not len(candidates):
        return Columns((), refusal_text(scan.plan))
    layouts = layouts.take(candidates)
    scan = _scan(layouts, scan.low[candidates], scan.high[candidates], CLOSE_POINTS)
    best = _undominated(layouts.devices, scan.low)
    layouts, rows, plan = layouts.take(best), scan.row[best], scan.plan
    capacities = [scan.low[best]]
    for trip in round_trips[1:]:
        far = replace(layouts, problem=_nearer(layouts.problem, trip))
        scan = _scan(far, np.full(len(best), lowest_load), capacities[0], POINTS)
        scan = _scan(far, np.maximum(scan.low, lowest_load), scan.high, CLOSE_POINTS)
        capacities.append(np.minimum(scan.low, capacities[0]))
    loads_held = np.array(capacities)
    if request.objective.limits.percentile is not None:  # the search was on means
        plan = Plan(plan.spec, replace(plan.problem, request=request), plan.blocks)
        tails = [largest_load(plan, int(row)).value or 0.0 for row in rows]
        loads_held = np.minimum(loads_held, tails)
    replicas = zip(rows.tolist(), loads_held.T.tolist(), strict=True)
    return Columns(tuple(make_column(device, plan, row, tuple(loads)) for row, loads in replicas))


def pose_replica(
    model: FleetModel, hardware: HardwareRequest, confidence: float | None = None
) -> PlanRequest:
    """Return the request of one replica: nearly no load, limits that are its own.

    Raises:
        InputError: for limits on money and devices, which belong to the fleet, and for options that
            it does not place.
    """
    options, objective = model.options, model.objective
    for name, message in NOT_PLACED.items():
        if getattr(options, name):
            raise InputError(message, field=f"options.{name}", hint="Leave it out.")
    for name in Limits.model_fields:
        if getattr(objective.limits, name) is not None and name not in OWN_LIMITS:
            raise InputError(
                f"of {model.name} bounds what the fleet decides.",
                field=f"objective.limits.{name}",
                hint="Leave it out; bound the fleet's objective, or a pool's power.",
            )
    if confidence is not None:
        objective = objective.model_copy(update={"confidence": confidence})
    engines = options.engines or fitted_engines_for(device_profile(hardware.device))
    options = options.model_copy(update={"engines": engines, "nodes": "any"})
    if model.sleep is not None:
        options = _with_switch(options, model, SLEEPS, "sleep", {})
    if model.adapters is not None:
        adapters = {"adapter_slots": model.adapters.count, "adapter_rank": model.adapters.rank}
        options = _with_switch(options, model, ADAPTS, "adapters", adapters)
    load = {LOADS[model.mode]: LEAST_RATE if model.mode == "open" else 1}
    workload = model.workload.model_copy(update=load)
    return model.on(hardware, workload=workload, objective=objective, options=options)


def _with_switch(
    options: Options, model: FleetModel, switch: str, field: str, counted: Mapping[str, int]
) -> Options:
    """Options with a switch on, of the first engine that has it, and values of what it counts."""
    for name in options.engines:
        grammar = grammars().get(engine_of(name).wraps or name)
        if grammar is None or switch not in {*grammar.counted, *grammar.unmodelled}:
            continue
        counted_options = {o: counted[m] for o, m in grammar.counted.items() if m in counted}
        engine_options = {**options.engine_options, switch: True, **counted_options}
        return options.model_copy(update={"engines": (name,), "engine_options": engine_options})
    raise InputError(
        f"of {model.name} needs an engine that has {switch}; {', '.join(options.engines)} do not.",
        field=field,
        hint="Name vllm in options.engines, or leave it out.",
    )


@dataclass(frozen=True, slots=True)
class _Layouts:
    """Layouts of one replica, as cases of their settings; rows are those of all pairs in order."""

    problem: Problem[Any]
    pairs: tuple[tuple[Any, Any], ...]

    @property
    def devices(self) -> Int:
        return np.concatenate([np.asarray(cases.devices, np.int64) for _, cases in self.pairs])

    @property
    def is_open(self) -> bool:
        return bool(self.problem.workload.mode == "open")

    def take(self, rows: Int) -> _Layouts:
        """Return some rows, which rise."""
        ends = np.cumsum([len(cases) for _, cases in self.pairs])
        inside = np.split(rows, np.searchsorted(rows, ends[:-1]))
        starts = [0, *ends.tolist()]
        pairs = [
            (setting, cases.take(part - start))
            for (setting, cases), part, start in zip(self.pairs, inside, starts, strict=False)
            if len(part)
        ]
        return replace(self, pairs=tuple(pairs))

    def judge(self, loads: Float) -> Plan:
        """Judge every row under its loads (rows × loads), which are the rows of the plan."""
        pairs, start = [], 0
        for setting, cases in self.pairs:
            own_loads = loads[start : (start := start + len(cases))]
            repeated = cases.take(np.repeat(np.arange(len(cases)), loads.shape[1]))
            pairs.append((setting, replace(repeated, load=own_loads.ravel())))
        blocks = evaluate_pairs(self.problem, pairs, searching=True)
        return Plan(SERVING, self.problem, judge_evaluated(self.problem, blocks))


def _find_layouts(request: PlanRequest, sources: Sources, *, spans: bool) -> _Layouts:
    """Every layout of one replica that fills nodes; ``spans``: only those over several nodes."""
    problem = resolve_problem(request, folders=sources.folders, corrections=sources.corrections)
    means = replace(problem, request=without_percentile(problem.request))
    problem = replace(means, on_one_machine=not spans)
    per_node, pairs = problem.cluster.per_node, []
    for setting, cases in search_pairs(problem, problem.candidate):
        size = np.asarray(cases.devices)
        is_whole = size % per_node == 0
        fills = is_whole & (size > per_node) if spans else (per_node % size == 0) | is_whole
        is_single = (np.asarray(cases.replicas) == 1) | (np.asarray(cases.ep) > 1)
        pairs.append((setting, cases.take(np.flatnonzero(fills & is_single))))
    return _Layouts(problem, tuple(pair for pair in pairs if len(pair[1])))


@dataclass(frozen=True, slots=True)
class _Scan:
    """Loads between which each row stops holding its limits.

    ``low`` is 0 where not even the smallest holds; ``row``: its estimate in ``plan``. ``guess``:
    where between them, by the chances at both.
    """

    low: Float
    high: Float
    guess: Float
    plan: Plan
    row: Int


def _scan(layouts: _Layouts, low: Float, high: Float, points: int) -> _Scan:
    """The gap behind the last load that holds without a break, of a grid from low to high."""
    loads = low[:, None] * (high / low)[:, None] ** np.linspace(0.0, 1.0, points)
    loads = loads if layouts.is_open else np.round(loads)
    plan = layouts.judge(loads)
    places = np.arange(loads.size).reshape(loads.shape)
    holds = plan.holds[places]
    first = np.where(holds.all(axis=1), points, (~holds).argmax(axis=1))
    index, last = np.arange(len(loads)), np.maximum(first - 1, 0)
    beyond = np.minimum(first, points - 1)
    low, high = np.where(first > 0, loads[index, last], 0.0), loads[index, beyond]
    chances = np.nan_to_num(plan.chances)[places]
    sure, unsure = chances[index, last], chances[index, beyond]
    confidence = layouts.problem.request.objective.required_confidence
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num((sure - confidence) / (sure - unsure), nan=1.0)
        guess = np.where(low > 0, low * (high / low) ** np.clip(share, 0.0, 1.0), 0.0)
    return _Scan(low, high, guess, plan, places[index, last])


def make_column(
    device: str | Mapping[str, Any], plan: Plan, row: int, capacities: tuple[float, ...]
) -> Column:
    """Return the column of a row of a plan of one replica, or of one worker of a job."""
    block, place = plan.at(row)
    case = np.array([place])
    alone = replace(  # columns are kept: without the other cases, and what is made again at need
        block,
        cases=block.cases.take(case),
        quantities={name: values[case] for name, values in block.quantities.items()},
        broken=block.broken[case],
        legal=np.zeros(1, dtype=np.int64),
        estimates=None,
        outside=(),
        limits=(),
        chances=None if block.chances is None else block.chances[case],
    )
    case_plan = Plan(plan.spec, plan.problem, (alone,))
    common, single = (float(np.trace(part)) for part in plan.spec.ranking.errors(block.setting))
    candidate = case_plan.candidate(0)
    return Column(
        device=device,
        devices=int(case_plan.columns["gpus"][0]),
        capacities=capacities,
        watts=float(case_plan.columns["watts"][0]),
        layout=split_name(candidate),
        engine=candidate.get("engine", ""),
        software=tuple(map(str, plan.spec.ranking.software(block.setting))),
        shared_error=common / (common + single) if common + single > 0 else 0.0,
        plan=case_plan,
    )


def _undominated(devices: Int, capacity: Float, slack: float = 1.0) -> Int:
    """Rows worth keeping: of each size those that hold most, while larger ones hold more a device.

    ``slack``: by how much a row may be better than it looks; 1 keeps one row a size.
    """
    per_device = np.where(capacity > 0, capacity / devices, 0.0)
    kept_rows: list[int] = []
    best = 0.0
    for size in np.unique(devices).tolist():
        of_size = np.flatnonzero((devices == size) & (per_device > 0))
        if not len(of_size):
            continue
        top = float(per_device[of_size].max())
        if top * slack > best * (1 + GAIN):
            candidates = of_size[per_device[of_size] * slack >= top]
            kept_rows += (
                candidates.tolist() if slack > 1 else [int(of_size[per_device[of_size].argmax()])]
            )
        best = max(best, top)
    if slack == 1:  # the largest stays
        kept_rows = [*kept_rows[: KEPT - 1], *kept_rows[KEPT - 1 :][-1:]]
    return np.sort(np.array(kept_rows, dtype=np.int64))


def _nearer(problem: Problem[Any], trip_ms: float) -> Problem[Any]:
    """The problem with limits to the first and the last token that a round trip takes part of."""
    objective = problem.request.objective
    limits = objective.limits
    update = {
        name: max(value - trip_ms, 1e-3)
        for name in ("ttft_ms", "request_latency_ms")
        if (value := getattr(limits, name)) is not None
    }
    objective = objective.model_copy(update={"limits": limits.model_copy(update=update)})
    return replace(problem, request=problem.request.model_copy(update={"objective": objective}))


def refusal_text(plan: Plan) -> str:
    """Say why no layout of one replica holds any load."""
    if plan.uncertain.any():
        likeliest = float(plan.columns["start_probability"][plan.uncertain].max())
        return f"it starts with a probability of {chance_text(likeliest)} only"
    runs = np.flatnonzero(plan.runs)
    reasons = row_reasons(plan, int(runs[0]) if len(runs) else 0) if len(plan) else []
    return "; ".join(reasons) or NO_LAYOUT


def load_replica(column: Column, loads: Float) -> Plan:
    """Return the plan of a column's layout, a row for each load."""
    block = column.plan.blocks[0]
    cases = replace(block.cases.take(np.zeros(len(loads), dtype=np.int64)), load=loads)
    return plan_cases(column.plan.problem, block.setting, cases)


def price_replica(plan: Plan, usd_per_device_hour: float) -> PlanRequest:
    """Return the request of one replica at a price, its layout and load those of a plan's row."""
    request, devices = row_request(plan, 0), int(plan.columns["gpus"][0])
    per_node = request.hardware.per_node
    update = {
        "per_node": min(devices, per_node),
        "nodes": -(-devices // per_node),
        "usd_per_device_hour": usd_per_device_hour or None,
    }
    return request.model_copy(update={"hardware": request.hardware.model_copy(update=update)})
