"""From a request to what is simulated: the split of a replica, its service, start, price, load.

The split is that of ``request.candidate``, else the best of the plan; percentiles do not count
there, as the wanted share of requests over the whole time takes their place. A replica is one
server of it (``plans.replicas``), and planned alone: what is simulated is what a bundle starts.
What is paid is what can be rented: devices, or machines that are rented whole, which replicas share
where there is room.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.base.numbers import bounded_integer
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.serving.cold_start import ColdStart, cold_start
from recipe_core.estimates.serving.towers import captured_share
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.failures import (
    DEVICES_PER_NODE,
    HOST,
    failure_file,
    node_failures,
    repair_hours,
    spot_market,
)
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.replicas import one_replica, replicas_of, shared_load
from recipe_core.plans.splits import row_reasons
from recipe_core.request.over_time import OverTime
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.scaling.attainment import capacity_per_s
from recipe_core.scaling.fleet import Events, Fleet, StartTime
from recipe_core.scaling.outcome import HOUR_S
from recipe_core.scaling.service import service_of, share_alone
from recipe_core.scaling.traces.from_trace import over_time_of, workload_fields
from recipe_core.scaling.traces.loads import Load, build_load
from recipe_core.scaling.traces.trace import Rates, Trace

# Quantiles of a load's rates for which the devices of splits are counted.
RATES = 256
# Servers of which the share of requests is counted that keep the limits alone.
TRIED = 24
# Servers whose capacity within the limits is simulated.
SIMULATED = 4
# Times the device-hours of the best server beyond which others are not looked at.
WORSE = 2.0


def least_devices(
    serving_plan: Plan, load: Load, limits: Mapping[str, float], attainment: float
) -> int:
    """The row whose servers need the least device-hours for the rates of a load; ties by rank.

    Servers are ordered by what their row serves at the load of the plan, which is the largest
    within the limits where that is searched. Those on which too many requests miss a limit even
    alone (long prompts) are passed over; of the first few others what each serves within the limits
    is simulated. Under arrivals at a rate every row serves the same, and the plan's best stays.
    """
    rows = serving_plan.order
    workload = serving_plan.request.workload
    if not isinstance(workload, ServingWorkload) or workload.mode != "closed":
        return int(rows[0])
    used = np.array([replicas_of(serving_plan, int(row)).devices for row in rows], dtype=float)
    servers = serving_plan.columns["gpus"][rows] / used
    tokens_per_s = serving_plan.columns["output_tokens_per_s"][rows]
    needed = _device_time(load, tokens_per_s / servers / load.lengths.mean_output, used)
    enough = 1 - (1 - attainment) / 2
    able: dict[int, float] = {}  # device-hours by row
    shares: dict[int, float] = {}  # of requests within the limits, alone
    seen_servers: set[tuple[int, ...]] = set()
    for place in np.argsort(np.round(needed, 6), kind="stable").tolist():
        row = int(rows[place])
        server = tuple(int(serving_plan.columns[name][row]) for name in ("tp", "pp", "ep", "cp"))
        if server in seen_servers:
            continue
        seen_servers.add(server)
        least_time = min((needed[place], *able.values()))
        if (
            len(able) == SIMULATED
            or needed[place] > WORSE * least_time
            or len(seen_servers) > TRIED
        ):
            break
        service = service_of(serving_plan, row, load.lengths)
        shares[row] = share_alone(service, load.lengths, limits)
        if shares[row] >= enough:
            able[row] = needed[place]
    if len(able) > 1:
        return min(
            able, key=lambda row: _simulated_time(serving_plan, row, load, limits, attainment)
        )
    return next(iter(able), max(shares, key=lambda row: shares[row]))


def _device_time(load: Load, capacity_per_s: Float, devices: Float) -> Float:
    """Devices that are needed for the rates of a load, added up; one number a server."""
    rates = np.quantile(load.rates, np.linspace(0, 1, RATES))
    count = np.ceil(rates[:, None] / np.maximum(capacity_per_s, 1e-12))
    return np.asarray(count.sum(axis=0) * devices, dtype=np.float64)


def _simulated_time(
    serving_plan: Plan, row: int, load: Load, limits: Mapping[str, float], attainment: float
) -> float:
    devices = replicas_of(serving_plan, row).devices
    service = service_of(serving_plan, row, load.lengths)
    alone = Fleet(service, StartTime(0.0, 0.0, 0.0), devices, None, limits)
    capacity = np.array([capacity_per_s(alone, load, attainment)])
    return float(_device_time(load, capacity, np.array([float(devices)]))[0])


def events_of(
    architecture: str | None,
    *,
    nodes: int = 1,
    devices_per_node: int = DEVICES_PER_NODE,
    spot: bool = False,
    provider: str | None = None,
    ownership: Literal["own", "rented"] = "rented",
) -> Events:
    """Return what happens to one replica on ``nodes`` of ``devices_per_node`` each.

    A failed node comes back after ``repair_s``: a replacement where it is rented, else a restart or
    a repair.

    Args:
        architecture: of the devices, as in ``hw_profiles/``; None for the median of all fleets.
        nodes: of one replica.
        devices_per_node: that a node has.
        spot: whether instances can be reclaimed, and orders refused.
        provider: of spot instances; all traces count where it has none, or is None.
        ownership: whether nodes are rented or one's own.

    Raises:
        InputError: for numbers that are not positive.
    """
    count = bounded_integer("nodes", nodes)
    node = node_failures(architecture, devices_per_node)
    failures = Events(count / node.mtbf_hours, repair_hours(ownership) * HOUR_S)
    if not spot:
        return failures
    notices = {name: notice.value for name, notice in failure_file().reclaim_notice_s.items()}
    providers = {trace.provider for trace in failure_file().spot}
    traces_of = provider if provider in providers else None
    return replace(
        failures,
        reclaims_per_hour=count * _median_reclaims(architecture, traces_of),
        notice_s=notices.get(provider or "", min(notices.values())),
        available=spot_market(architecture, traces_of).held,
    )


def _median_reclaims(architecture: str | None, provider: str | None) -> float:
    """Reclaims per hour of one instance: the median of traces, each of which counts alike.

    Traces of an architecture, of all GPUs where it has none; those that count refused launches
    only say nothing of reclaims.
    """
    traces = [
        trace
        for trace in failure_file().spot
        if provider in (None, trace.provider)
        and trace.counts != "refusals"
        and trace.instance_hours
    ]
    same = [trace for trace in traces if trace.architecture == architecture]
    return statistics.median(
        trace.losses / trace.instance_hours
        for trace in same or [trace for trace in traces if trace.architecture != HOST]
    )


@dataclass(frozen=True, slots=True)
class Deployment:
    """The deployment that is simulated, and what it was made from.

    row: of ``plan``, one replica and nothing else. per_replica: what of the request changes for it,
    by dotted field: its share of the load. attainment: share of requests that must keep the
    limits. price_basis: where the price is from. notes: what to know of these.
    """

    request: PlanRequest
    plan: Plan
    row: int
    per_replica: dict[str, Any]
    fleet: Fleet
    start: ColdStart
    load: Load
    attainment: float
    price_basis: str | None
    notes: tuple[str, ...]

    @property
    def candidate(self) -> dict[str, Any]:
        return self.plan.candidate(self.row)


def prepare_deployment(
    request: PlanRequest,
    *,
    trace: Trace | Rates | None = None,
    days: float | None = None,
    folders: bool = True,
    corrections: Corrections | None = None,
) -> Deployment:
    """The deployment of a request under its load over time, or under a trace.

    Args:
        request: of serving.
        trace: the load in place of ``workload.over_time``; lengths and reuse are its own then.
        days: time that is looked at; that of the load unless given.
        folders: whether the model may be named by a path on this machine.
        corrections: what runs of one's own teach.

    Raises:
        InputError: without a load over time or a limit on time.
        NoAnswer: where no split can run within the limits.
    """
    limits = required_time_limits(request)
    request = with_load(request, trace, days)
    workload = request.workload
    if not isinstance(workload, ServingWorkload) or workload.over_time is None:  # see with_load
        raise InputError("is missing.", field="workload.over_time")
    load = build_load(workload.over_time, workload)
    attainment = workload.over_time.attainment
    serving_plan, row = _plan_replica_split(request, load, limits, attainment, folders, corrections)
    shared = shared_load(request, replicas_of(serving_plan, row).count)
    serving_plan, row = one_replica(serving_plan, row)
    devices, nodes = replicas_of(serving_plan, row).devices, replicas_of(serving_plan, row).nodes
    cluster = serving_plan.setting(row).cluster
    price = cluster.usd_per_device_hour
    start, _ = start_of(serving_plan, row)
    fleet = Fleet(
        service=service_of(serving_plan, row, load.lengths),
        start=StartTime(start.seconds, start.low_s, start.high_s),
        devices=devices,
        usd_per_hour=None if price is None else price * devices,
        limits_s=limits,
        events=_replica_events(cluster, nodes),
        rent=cluster.rented,
        dispatch=request.options.dispatch,
    )
    basis, notes = _replica_price_text(cluster, devices)
    return Deployment(
        request, serving_plan, row, shared, fleet, start, load, attainment, basis, notes
    )


def check_simulation_request(request: PlanRequest, *, traced: bool) -> None:
    """Check that a request has what a simulation needs; ``traced``: a trace is its load.

    Raises:
        InputError: without a limit on time, or without a load over time.
    """
    required_time_limits(request)
    if not traced:
        with_load(request)


def required_time_limits(request: PlanRequest) -> dict[str, float]:
    """Seconds by figure that every request must keep.

    Raises:
        InputError: where no limit bounds a time, or the workload is no serving.
    """
    if request.is_training:
        raise InputError(
            "is training; a load over time is of serving.", field="workload.kind", hint="Use plan."
        )
    bounds = {
        rule.column: bound
        for rule in LIMITS.values()
        if rule.timed and (bound := rule.bound(request.objective.limits)) is not None
    }
    if not bounds:
        raise InputError(
            "bounds no time, so every number of replicas would do.",
            field="objective.limits",
            hint="State one, for example ttft_ms: 2000 and tpot_ms: 50.",
        )
    return bounds


def with_load(
    request: PlanRequest, trace: Trace | Rates | None = None, days: float | None = None
) -> PlanRequest:
    """The request with the load that is simulated: its own, or a trace's.

    Raises:
        InputError: where it has neither.
    """
    workload = request.workload
    if not isinstance(workload, ServingWorkload):
        raise InputError("is no serving.", field="workload.kind", hint="Use plan.")
    if trace is not None:
        workload = _with_trace(workload, trace)
    if workload.over_time is None:
        raise InputError(
            "is missing.",
            field="workload.over_time",
            hint="State a shape with its mean_rate, or rates; or give a trace.",
        )
    if days is not None:
        longer = workload.over_time.model_copy(update={"days": days})
        workload = workload.model_copy(update={"over_time": longer})
    return request.model_copy(update={"workload": workload})


def _with_trace(workload: ServingWorkload, trace: Trace | Rates) -> ServingWorkload:
    """The workload with a trace's rates, lengths and reuse; what else is stated stays.

    So do a stated shape, under which the trace gives lengths and bursts, a share of found prompts,
    the longest request, and a load other than arrivals at a rate.
    """
    over_time = workload.over_time
    shape = over_time.shape if over_time else None
    days = over_time.days if over_time and shape else None
    if isinstance(trace, Rates):
        fields = {"over_time": over_time_of(trace, days=days, shape=shape).to_json()}
    else:
        fields = workload_fields(trace, days=days, shape=shape)
    if over_time is not None:
        fields["over_time"] |= _load_fields_kept(over_time)
    if workload.mode != "open":
        fields.pop("mode", None)
        fields.pop("request_rate", None)
    if workload.prefix_hit:
        fields.pop("prefix_reuse", None)
    if workload.max_context is not None:
        fields.pop("max_context", None)
    return ServingWorkload.model_validate(workload.model_dump(exclude_none=True) | fields)


def _load_fields_kept(over_time: OverTime) -> dict[str, Any]:
    """Return what of a load a trace does not replace."""
    names = ["attainment", "growth_per_month"]
    if over_time.shape is not None:
        names += ["mean_rate", "start_hour"]
    values = over_time.to_json()
    return {name: values[name] for name in names if name in values}


def _plan_replica_split(
    request: PlanRequest,
    load: Load,
    bounds: Mapping[str, float],
    attainment: float,
    folders: bool,
    corrections: Corrections | None,
) -> tuple[Plan, int]:
    """The plan with the split of a replica, and its row.

    Without a candidate that which serves the load with the least devices: a plan's best split may
    be a server of all of them, which is idle most of the day.

    Raises:
        NoAnswer: where none can run within the limits; with the nearest one's reasons.
    """
    limits = request.objective.limits.model_copy(update={"percentile": None})
    objective = request.objective.model_copy(update={"limits": limits})
    options = request.options.model_copy(update={"disaggregated": False})
    plain = request.model_copy(update={"objective": objective, "options": options})
    if request.candidate is not None:
        serving_plan, row = plan_candidate(plain, folders=folders, corrections=corrections)
    else:
        serving_plan = plan_splits(plain, folders=folders, corrections=corrections)
        best = (
            nearest_row(serving_plan)
            if serving_plan.best_row is None
            else least_devices(serving_plan, load, bounds, attainment)
        )
        if best is None:
            raise NoAnswer("no layout of the hardware can run.", field="hardware")
        row = best
    if not serving_plan.runs[row]:
        reasons = "; ".join(row_reasons(serving_plan, row))
        raise NoAnswer(
            f"{split_label(serving_plan, row)} cannot run: {reasons}.",
            field="hardware",
            hint="See recipe plan.",
        )
    return serving_plan, row


def start_of(serving_plan: Plan, row: int) -> tuple[ColdStart, int]:
    """The cold start of one server of a row, as the request's start finds it, and its devices.

    Raises:
        InputError: for training, and for places of weights that do not exist.
    """
    if serving_plan.kind == "training":
        hint = "Ask for a serving workload."
        raise InputError("is training, which no replica serves.", field="workload.kind", hint=hint)
    replica = replicas_of(serving_plan, row)
    block, case = serving_plan.at(row)
    setting = block.setting
    model = setting.model
    start = cold_start(
        serving_plan.request.options.start,
        engine=setting.engine.name,
        weights_bytes=float(model.checkpoint_bytes or model.counted_bytes),
        devices=replica.devices,
        nodes=replica.nodes,
        device=setting.cluster.device,
        weight_dtype=setting.weight_dtype,
        graphs=float(captured_share(setting, block.cases.max_num_seqs[[case]])[0]),
    )
    return start, replica.devices


def _replica_events(cluster: Cluster, nodes: int) -> Events:
    """Failures of the nodes of a replica, and reclaims where the price is spot."""
    offer = cluster.offer
    return events_of(
        cluster.device.architecture,
        nodes=nodes,
        devices_per_node=cluster.per_node,
        spot=cluster.commitment == "spot",
        provider=offer.provider if offer else None,
    )


def _replica_price_text(cluster: Cluster, devices: int) -> tuple[str | None, tuple[str, ...]]:
    """Return where the price of a replica is from, and what to know of it."""
    if cluster.usd_per_device_hour is None:
        note = f"No price of {cluster.device.title} is known: policies are compared by GPU-hours."
        return None, (note,)
    basis = f"{devices} × {cluster.price_text()}"
    if cluster.unit <= devices:
        return basis, ()
    return basis, (
        f"Machines of {cluster.unit} devices are rented whole, and paid whole: replicas of "
        f"{devices} share them where there is room, but those of SkyServe, which are machines of "
        "their own.",
    )
