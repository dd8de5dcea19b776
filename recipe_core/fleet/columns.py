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

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine as engine_of
from recipe_core.estimates.measured.support import fitted_engines_for
from recipe_core.fleet.request import FleetModel
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.plans.limits import without_percentile
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_cases, search_plan
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.replicas import replicas_of
from recipe_core.plans.splits import row_reasons, row_request
from recipe_core.request.metrics import timed_limits
from recipe_core.request.objective import Limits, Objective
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import split_name
from recipe_core.sizing.size import LEAST_RATE, largest_load

# Loads of the first scan, and of the gap that it leaves: a rate is then known within 0.5 %.
POINTS = 40
# The smallest load that counts, as a share of the largest.
SMALLEST = 1e-3
# Share by which a larger replica must hold more per device than smaller ones to be kept.
GAIN = 0.02
# A first scan tells layouts apart beyond so much of what they hold.
COARSE = 1.3
# Layouts of a device that are kept: a larger one that holds no more per device is never chosen.
KEPT = 6
# Nodes of a replica that spans several, where none fits into one.
SPANS = (2, 4, 8, 16)
# Limits that a replica keeps by itself; the others are the fleet's.
OWN_LIMITS = frozenset({*timed_limits(), "accuracy_recovery", "percentile", "joules_per_token"})


@dataclass(frozen=True, slots=True)
class Column:
    """A layout of one replica on a device, and the load that it holds within every limit.

    ``capacities``: loads by added round-trip time, as ``Demands.round_trips`` lists them; 0 where
    the limits do not hold. ``watts``: of its devices under the largest. ``software`` and
    ``shared_error``: what its errors have in common with those of other columns, and the share of
    their variance that is common. ``plan`` and ``row``: the estimate that it is of.
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
    row: int = field(compare=False)

    @property
    def capacity(self) -> float:
        return self.capacities[0]

    @property
    def candidate(self) -> dict[str, Any]:
        return self.plan.candidate(self.row)


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
    most: float,
    round_trips: Sequence[float] = (0.0,),
    confidence: float | None = None,
) -> Columns:
    """Return the layouts of one replica of a model on nodes of a device, best kept only.

    Args:
        model: with its limits.
        device: as a plan's request names it.
        per_node: devices of a node.
        nodes: that a replica may span, where none fits into one.
        most: largest load that is looked at, requests a second or users at once.
        round_trips: milliseconds that are taken from limits on the first token.
        confidence: with which limits must hold; None: the model's own.

    Raises:
        InputError: for what is wrong with the model's request.
    """
    plain = model.model_dump(mode="json", include=set(_REQUEST_FIELDS), exclude_none=True)
    key = json.dumps([plain, device, per_node, nodes, confidence], sort_keys=True)
    return _columns_of(key, float(most), tuple(round_trips))


_REQUEST_FIELDS = ("name", "model", "workload", "objective", "options", "candidate", "adapters")


@lru_cache(maxsize=8192)
def _columns_of(key: str, most: float, round_trips: tuple[float, ...]) -> Columns:
    plain, device, per_node, nodes, confidence = json.loads(key)
    model = FleetModel.model_validate(plain)
    reasons = []
    for count in (1, *(span for span in SPANS if span <= nodes)):
        hardware = HardwareRequest(
            device=device, per_node=per_node, nodes=count, usd_per_device_hour=1.0
        )
        try:
            plan = search_replicas(replica_request(model, hardware, confidence), count > 1)
        except InputError:
            raise
        except RecipeError as error:
            reasons.append(error.message)
            continue
        columns = _kept_columns(device, plan, round_trips, most)
        if columns:
            return Columns(columns)
        reasons.append(_reason(plan))
    return Columns((), reasons[0] if reasons else "no layout fits.")


def replica_request(
    model: FleetModel, hardware: HardwareRequest, confidence: float | None = None
) -> PlanRequest:
    """Return the request of one replica: nearly no load, limits that are its own."""
    objective = check_limits(model)
    if confidence is not None:
        objective = objective.model_copy(update={"confidence": confidence})
    workload = model.workload
    least = LEAST_RATE if getattr(workload, "mode", "") == "open" else 1
    load = {LOADS[workload.mode]: least}  # type: ignore[union-attr]
    options = model.options
    profile = device_profile(hardware.device)
    if not options.engines:
        options = options.model_copy(update={"engines": fitted_engines_for(profile)})
    options = options.model_copy(update={"hardware": (), "loads": (), "nodes": "any"})
    if model.adapters is not None:
        options = _with_adapters(options, model)
    return model.on(
        hardware,
        workload=workload.model_copy(update=load),
        objective=objective,
        options=options,
    )


def check_limits(model: FleetModel) -> Objective:
    """Return a model's objective as a replica keeps it.

    Raises:
        InputError: for limits on money and devices, which belong to the fleet.
    """
    for name in Limits.model_fields:
        if getattr(model.objective.limits, name) is not None and name not in OWN_LIMITS:
            raise InputError(
                f"of {model.name} bounds what the fleet decides.",
                field=f"objective.limits.{name}",
                hint="Leave it out; bound the fleet's objective, or a pool's power.",
            )
    return model.objective


def _with_adapters(options: Any, model: FleetModel) -> Any:
    """Options with places for adapters, of the engines whose grammar counts them."""
    adapters = model.adapters
    assert adapters is not None  # noqa: S101 - its caller has looked
    counted: dict[str, dict[str, Any]] = {}
    for name in options.engines:
        grammar = grammars().get(engine_of(name).wraps or name)
        meanings = {} if grammar is None else {m: o for o, m in grammar.counted.items()}
        if {"adapter_slots", "adapter_rank"} <= set(meanings):
            counted[name] = {
                meanings["adapter_slots"]: adapters.count,
                meanings["adapter_rank"]: adapters.rank,
                **({meanings["adapters"]: True} if "adapters" in meanings else {}),
            }
    if not counted:
        raise InputError(
            f"of {model.name} are not estimated on {', '.join(options.engines)}.",
            field="adapters",
            hint="Name an engine that serves LoRA adapters, such as vllm.",
        )
    first = next(iter(counted))
    own = {**options.engine_options, **counted[first]}
    return options.model_copy(update={"engines": (first,), "engine_options": own})


def search_replicas(request: PlanRequest, spans: bool) -> Plan:
    """Return every layout of one replica, judged under nearly no load.

    ``spans``: whether only layouts over several nodes count.
    """
    problem = resolve_problem(request.model_copy(update={"candidate": request.candidate}))
    means = replace(problem, request=without_percentile(problem.request))
    return search_plan(replace(means, on_one_machine=not spans), problem.candidate)


def _kept_columns(
    device: str | Mapping[str, Any], plan: Plan, round_trips: tuple[float, ...], most: float
) -> tuple[Column, ...]:
    rows = _replica_rows(plan)
    if not len(rows):
        return ()
    devices = np.asarray(plan.columns["gpus"], dtype=np.int64)[rows]
    scan = scan_loads(plan, rows, most)
    near = _undominated(devices, scan.low, COARSE)
    rows, devices, scan = rows[near], devices[near], scan.take(near)
    scan = refine_loads(plan, rows, scan)
    kept = _undominated(devices, scan.low)
    capacity, watts = scan.low, scan.watts
    percentile = plan.problem.request.objective.limits.percentile
    extra = {
        trip: largest_loads(_nearer(plan, trip), rows[kept], most).low for trip in round_trips[1:]
    }
    out = []
    for place, k in enumerate(kept.tolist()):
        row = int(rows[k])
        first = float(capacity[k])
        if percentile is not None:
            first = largest_load(plan, row).value or 0.0
        setting = plan.setting(row)
        out.append(
            Column(
                device=device,
                devices=int(devices[k]),
                capacities=(
                    first,
                    *(min(float(extra[trip][place]), first) for trip in round_trips[1:]),
                ),
                watts=float(watts[k]),
                layout=split_name(plan.candidate(row)),
                engine=setting.engine.name,
                software=tuple(map(str, plan.spec.ranking.software(setting))),
                shared_error=shared_error(plan, row),
                plan=plan,
                row=row,
            )
        )
    return tuple(column for column in out if column.capacity > 0)


def _replica_rows(plan: Plan) -> Int:
    """Rows that run, are one replica, and fill nodes without a rest."""
    per_node = plan.problem.cluster.per_node
    devices = np.asarray(plan.columns["gpus"], dtype=np.int64)
    fills = (per_node % np.maximum(devices, 1) == 0) | (devices % per_node == 0)
    rows = np.flatnonzero(plan.runs & fills)
    return np.array([row for row in rows if replicas_of(plan, int(row)).count == 1], dtype=np.int64)


def _undominated(devices: Int, capacity: Float, slack: float = 1.0) -> Int:
    """Rows worth keeping: of each size those that hold most, while larger ones hold more a device.

    ``slack``: by how much a row may be better than it looks; 1 keeps one row a size.
    """
    each = np.where(capacity > 0, capacity / devices, 0.0)
    kept: list[int] = []
    best = 0.0
    for size in np.unique(devices).tolist():
        of_size = np.flatnonzero((devices == size) & (each > 0))
        if not len(of_size):
            continue
        top = float(each[of_size].max())
        if top * slack > best * (1 + GAIN):
            near = of_size[each[of_size] * slack >= top]
            kept += near.tolist() if slack > 1 else [int(of_size[each[of_size].argmax()])]
        best = max(best, top)
    return np.array(kept if slack > 1 else [*kept[: KEPT - 1], *kept[KEPT - 1 :][-1:]], dtype=int)


@dataclass(frozen=True, slots=True)
class Scan:
    """Loads between which each row stops holding its limits, and its power at the lower one.

    ``low`` is 0 where not even the smallest holds.
    """

    low: Float
    high: Float
    watts: Float

    def take(self, rows: Int) -> Scan:
        return Scan(self.low[rows], self.high[rows], self.watts[rows])


def largest_loads(plan: Plan, rows: Int, most: float) -> Scan:
    """Return the largest load that each row holds within all limits, within 0.5 %.

    Args:
        plan: of layouts of one replica under nearly no load.
        rows: of it.
        most: largest load that is looked at.
    """
    return refine_loads(plan, rows, scan_loads(plan, rows, most))


def scan_loads(plan: Plan, rows: Int, most: float) -> Scan:
    """Return the gap in which each row stops holding, of a geometric grid up to ``most``."""
    integral = plan.problem.workload.mode != "open"
    least = 1.0 if integral else min(LEAST_RATE, most) if most < 1 else most * SMALLEST
    return _narrow(plan, rows, np.full(len(rows), least), np.full(len(rows), max(most, least)))


def refine_loads(plan: Plan, rows: Int, scan: Scan) -> Scan:
    """Return the gap inside the one that a scan left."""
    wide = np.flatnonzero((scan.low > 0) & (scan.high > scan.low))
    if not len(wide):
        return scan
    inside = _narrow(plan, rows[wide], scan.low[wide], scan.high[wide])
    low, high, watts = scan.low.copy(), scan.high.copy(), scan.watts.copy()
    low[wide], high[wide], watts[wide] = inside.low, inside.high, inside.watts
    return Scan(low, high, watts)


def _narrow(plan: Plan, rows: Int, low: Float, high: Float) -> Scan:
    """The gap behind the last load that holds without a break, from ``low`` to ``high``."""
    loads = low[:, None] * (high / low)[:, None] ** np.linspace(0.0, 1.0, POINTS)
    if plan.problem.workload.mode != "open":
        loads = np.round(loads)
    holds, power = _judge(plan, rows, loads)
    first = np.where(holds.all(axis=1), POINTS, (~holds).argmax(axis=1))
    index, last = np.arange(len(rows)), np.maximum(first - 1, 0)
    found = first > 0
    return Scan(
        np.where(found, loads[index, last], 0.0),
        loads[index, np.minimum(first, POINTS - 1)],
        np.where(found, power[index, last], np.nan),
    )


def _judge(plan: Plan, rows: Int, loads: Float) -> tuple[Bool, Float]:
    """Return which loads each row holds (rows × loads), and the power there."""
    holds = np.zeros(loads.shape, dtype=np.bool_)
    watts = np.full(loads.shape, np.nan)
    blocks = np.array([id(plan.at(int(row))[0]) for row in rows])
    for block_id in dict.fromkeys(blocks.tolist()):
        members = np.flatnonzero(blocks == block_id)
        block, _ = plan.at(int(rows[members[0]]))
        places = np.array([plan.at(int(row))[1] for row in rows[members]])
        cases = block.cases.take(np.repeat(places, loads.shape[1]))
        judged = plan_cases(
            plan.problem, block.setting, replace(cases, load=loads[members].ravel())
        )
        holds[members] = judged.holds.reshape(len(members), -1)
        watts[members] = np.asarray(judged.columns["watts"]).reshape(len(members), -1)
    return holds, watts


def _nearer(plan: Plan, trip_ms: float) -> Plan:
    """The plan with limits to the first and the last token that a round trip takes its part of."""
    objective = plan.problem.request.objective
    limits = objective.limits
    update = {
        name: max(value - trip_ms, 1e-3)
        for name in ("ttft_ms", "request_latency_ms")
        if (value := getattr(limits, name)) is not None
    }
    objective = objective.model_copy(update={"limits": limits.model_copy(update=update)})
    request = plan.problem.request.model_copy(update={"objective": objective})
    return Plan(plan.spec, replace(plan.problem, request=request), plan.blocks)


def shared_error(plan: Plan, row: int) -> float:
    """Return the share of an estimate's variance that runs of the same software have in common."""
    common, alone = plan.spec.ranking.errors(plan.setting(row))
    total = float(np.trace(common) + np.trace(alone))
    return float(np.trace(common)) / total if total > 0 else 0.0


def _reason(plan: Plan) -> str:
    """Say why no layout of one replica holds any load."""
    row = next((row for row in range(len(plan)) if plan.runs[row]), None)
    if row is None:
        row = 0 if len(plan) else None
    reasons = [] if row is None else row_reasons(plan, row)
    return "; ".join(reasons) or "no layout of one replica fits."


def loaded_plan(column: Column, load: float) -> tuple[Plan, int]:
    """Return the plan of a column's layout under a load, and its row there."""
    block, place = column.plan.at(column.row)
    cases = replace(block.cases.take(np.array([place])), load=np.array([load]))
    return plan_cases(column.plan.problem, block.setting, cases), 0


def loaded_request(column: Column, load: float, usd_per_device_hour: float) -> PlanRequest:
    """Return the plan's request of one replica under a load at a price, its layout stated."""
    plan, row = loaded_plan(column, load)
    request = row_request(plan, row)
    per_node = request.hardware.per_node
    devices = column.devices
    hardware = request.hardware.model_copy(
        update={
            "per_node": min(devices, per_node),
            "nodes": -(-devices // per_node),
            "usd_per_device_hour": usd_per_device_hour or None,
        }
    )
    return request.model_copy(update={"hardware": hardware})
