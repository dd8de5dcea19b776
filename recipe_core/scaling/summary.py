"""Summary of a simulation: shares, money, devices rented, and series with fewer points."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.documents import to_json
from recipe_core.base.errors import NoAnswer
from recipe_core.base.units import share_text
from recipe_core.estimates.serving.feature_results import RentedReplicas, SimulatedReplicas
from recipe_core.hardware.cluster import Cluster
from recipe_core.plans.replicas import with_share
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import timed_limits
from recipe_core.request.over_time import Simulated
from recipe_core.request.scaling import Scaling
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.scaling.fleet import Fleet
from recipe_core.scaling.outcome import HOUR_S, MONTH_S, SLACK, Outcome, Series, rank_outcome
from recipe_core.scaling.policies.rows import policy_row, replica_bounds_of
from recipe_core.scaling.result import (
    Against,
    Band,
    Checked,
    LoadAnswer,
    OverTimeAnswer,
    PolicyAnswer,
    ReplicaCounts,
    SeriesAnswer,
    WorstInterval,
)
from recipe_core.scaling.scenario import with_load
from recipe_core.scaling.traces.loads import Load
from recipe_core.scaling.traces.trace import Rates, Trace

# Of a month, as simulations count them.
HOURS = MONTH_S / HOUR_S


def rented_devices(place: Cluster, scaling: Scaling, replicas: int, devices: int) -> int:
    """Devices that are paid for while so many replicas run under a policy.

    Args:
        place: what is rented.
        scaling: the policy; of some each replica is a machine of its own.
        replicas: how many.
        devices: of each.
    """
    if policy_row(scaling.policy).own_machines:
        return replicas * int(place.rented(1, devices))
    return int(place.rented(replicas, devices))


def rented_replicas(request: PlanRequest, place: Cluster, devices: int) -> RentedReplicas:
    """Return what the policy of a request rents; money is not known without a price.

    Args:
        request: of one replica, with ``options.scaling``.
        place: its hardware.
        devices: of the replica.
    """
    scaling = request.options.scaling
    assert scaling is not None  # noqa: S101 - asked for where one is stated
    low, high = replica_bounds_of(scaling)
    fewest_devices, most_devices = (
        rented_devices(place, scaling, count, devices) for count in (low, high)
    )
    price = place.usd_per_device_hour
    simulated = request.options.simulated
    return RentedReplicas(
        policy=scaling.policy,
        min_replicas=low,
        max_replicas=high,
        devices_per_replica=devices,
        devices_rented_at_least=fewest_devices,
        devices_rented_at_most=most_devices,
        usd_per_month_at_least=_rented_usd(fewest_devices * HOURS, price),
        usd_per_month_at_most=_rented_usd(most_devices * HOURS, price),
        simulated=None if simulated is None else _price_simulated(simulated, request, price),
    )


def _price_simulated(
    simulated: Simulated, request: PlanRequest, price: float | None
) -> SimulatedReplicas:
    return SimulatedReplicas(
        current=simulated.of == digest_of(request),
        **simulated.model_dump(),
        usd_per_month=_rented_usd(simulated.device_hours_per_month, price),
    )


def _rented_usd(hours: float, price: float | None) -> float | None:
    return None if price is None else hours * price


def simulated_of(request: PlanRequest, policy: PolicyAnswer, span_s: float) -> Simulated:
    """Return what a policy came to, for the request that has it and the split that was simulated.

    Args:
        request: with the policy, the split and the load.
        policy: what was simulated.
        span_s: its time, in seconds.
    """
    counts = policy.replicas
    return Simulated(
        of=digest_of(request),
        min_replicas=counts.min,
        mean_replicas=counts.mean,
        max_replicas=counts.max,
        device_hours_per_month=policy.gpu_hours / span_s * MONTH_S,
        attainment=policy.attainment.value,
    )


def digest_of(request: PlanRequest) -> str:
    """A digest of what a simulation depends on: a changed request has another."""
    values, device = request.to_json(), request.hardware.device
    workload = {k: v for k, v in values["workload"].items() if k not in LOADS.values()}
    limits, options = values["objective"].get("limits", {}), values["options"]
    parts = {
        "model": values["model"],
        "device": device if isinstance(device, str) else device.get("name"),
        "candidate": values.get("candidate"),
        "workload": {k: v for k, v in workload.items() if k != "mode"},
        "limits": {name: limits.get(name) for name in timed_limits()},
        "scaling": options.get("scaling"),
        "start": options.get("start"),
    }
    if request.options.dispatch != "least-loaded":
        parts["dispatch"] = request.options.dispatch
    text = to_json(parts, indent=None)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def request_with_policy(
    request: PlanRequest,
    answer: OverTimeAnswer,
    *,
    policy: str | None = None,
    trace: Trace | Rates | None = None,
    days: float | None = None,
) -> PlanRequest:
    """The request of one replica as it was simulated, with the load over time, and a policy.

    Args:
        request: the one that was simulated.
        answer: what came of it.
        policy: by name; the best unless given.
        trace: the load that was simulated in place of the request's own.
        days: time that was simulated, where it was given.

    Raises:
        NoAnswer: where the answer has no such policy, or none that reaches the wanted share.
    """
    policy_answer = answer.chosen if policy is None else answer.policy(policy)
    if policy_answer is None or policy_answer.scaling is None:
        raise NoAnswer(
            f"no policy keeps the limits for {share_text(answer.attainment_wanted, 2)} of requests."
            if policy is None
            else f"{policy} was not simulated.",
            field="policies",
            hint="Loosen a limit, or lower workload.over_time.attainment.",
        )
    options = request.options.model_copy(
        update={"scaling": policy_answer.scaling, "simulated": None}
    )
    candidate = CandidateRequest.model_validate(answer.candidate)
    replica_request = with_load(request, trace, days)
    replica_request = replica_request.model_copy(
        update={"options": options, "candidate": candidate}
    )
    replica_request = with_share(replica_request, answer.per_replica)
    simulated = simulated_of(replica_request, policy_answer, answer.load.span_s)
    options = options.model_copy(update={"simulated": simulated})
    return replica_request.model_copy(update={"options": options})


# Points of a series in an answer at most.
MOST_POINTS = 720
# Share of missed requests below which none are.
LEAST_MISSED = 1e-6
# Lengths that intervals of an answer have.
STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True)
class Replays:
    """One policy over the whole time, and over its hardest day under several chances.

    day: of those the one with the chances of ``outcome``. reruns: with other starts and events, and
    with quick and with slow starts.
    """

    outcome: Outcome
    day: Outcome | None = None
    reruns: tuple[Outcome, ...] = ()

    @property
    def attainment(self) -> float:
        """Share of requests that kept the limits."""
        return self.outcome.attainment

    @property
    def rented_s(self) -> float:
        """Seconds of devices that were paid."""
        return self.outcome.rented_s

    def order(self, attainment: float, confidence: float = 0.0) -> tuple[float, ...]:
        """Return what sorts the better first: surely reaching a share, reaching it, missing it."""
        missed, *rest = rank_outcome(self.attainment, self.rented_s, attainment)
        return (2 * missed + (self.chance(attainment) < confidence), *rest)

    def chance(self, attainment: float) -> float:
        """Share of the repetitions, the whole time's own among them, that reach a share."""
        shares = self._repeated()
        return sum(share >= attainment - SLACK for share in shares) / len(shares)

    def shares(self) -> Band:
        """The share with its range: what chances change on the hardest day, in proportion.

        Where nothing is missed on that day, it alone changes.
        """
        shares = self._repeated()
        return Band(
            value=_clip_share(shares[0]),
            low=_clip_share(min(shares)),
            high=_clip_share(max(shares)),
        )

    def _repeated(self) -> list[float]:
        """The share of the whole time, then as it were with the chances of each repetition."""
        value, shares = self.attainment, [self.attainment]
        if self.day is not None:
            missed = 1 - self.day.attainment
            for rerun in self.reruns:
                change = (1 - rerun.attainment) - missed
                if missed > LEAST_MISSED:
                    missed_overall = (1 - value) * (missed + change) / missed
                else:
                    missed_overall = 1 - value + change * self.day.requests / self.outcome.requests
                shares.append(1 - min(missed_overall, 1 - value + max(change, 0.0)))
        return shares


def policy_answer(
    name: str,
    scaling: Scaling | None,
    replays: Replays,
    fleet: Fleet,
    attainment: float,
    checked: Checked | None = None,
) -> PolicyAnswer:
    """A policy, before it is held against the bounds."""
    first = replays.outcome
    at_s, share = first.worst_interval
    price = fleet.usd_per_device_hour
    replicas = first.series.ready + first.series.starting
    return PolicyAnswer(
        name=name,
        scaling=scaling,
        meets=replays.attainment >= attainment,
        attainment=replays.shares(),
        confidence=replays.chance(attainment),
        replica_hours=first.replica_s / HOUR_S,
        gpu_hours=first.device_hours,
        usd=first.usd(price),
        usd_per_month=first.usd_per_month(price),
        worst_interval=WorstInterval(
            at_s=at_s, share=_clip_share(share), seconds=first.series.interval_s
        ),
        cold_starts=first.starts,
        requests_delayed=first.delayed,
        replicas_lost=first.lost,
        replicas=ReplicaCounts(
            min=float(np.rint(replicas.min())),
            mean=float(replicas.mean()),
            max=float(np.rint(max(replicas.max(), first.most_replicas))),
        ),
        against=Against(always_peak=None, clairvoyant=None),
        checked=checked,
        series=series_answer(first.series),
    )


def compare_cost(
    policy: PolicyAnswer, always_peak: PolicyAnswer, clairvoyant: PolicyAnswer
) -> Against:
    """The cost of a policy beside that of the bounds."""
    hours = policy.gpu_hours
    return Against(
        always_peak=_ratio(hours, always_peak.gpu_hours),
        clairvoyant=_ratio(hours, clairvoyant.gpu_hours),
    )


def load_answer(load: Load) -> LoadAnswer:
    """The load with fewer points."""
    step = step_s(load.span_s, load.interval_s)
    return LoadAnswer(
        source=load.source or "rates of the request",
        span_s=load.span_s,
        requests=load.requests,
        mean_rate_per_s=float(load.rates.mean()),
        peak_rate_per_s=float(load.rates.max()),
        burstiness=load.burstiness,
        input_tokens=load.lengths.mean_input,
        output_tokens=load.lengths.mean_output,
        start_hour=load.start_hour,
        interval_s=step,
        rates_per_s=_round_series(_mean_rows(load.rates, round(step / load.interval_s))),
    )


def series_answer(series: Series) -> SeriesAnswer:
    """A series with fewer points: sums of requests, means of the rest."""
    step = step_s(series.interval_s * len(series.arrived), series.interval_s)
    count = round(step / series.interval_s)
    has_ttft = np.isfinite(series.ttft_s)
    weight = np.where(has_ttft, np.maximum(series.arrived, 1e-9), 0.0)
    waited = _sum_rows(np.where(has_ttft, series.ttft_s, 0.0) * weight, count)
    total = _sum_rows(weight, count)
    ttft_s = np.divide(waited, total, out=np.full(len(total), np.nan), where=total > 0)
    return SeriesAnswer(
        interval_s=step,
        arrived=_round_series(_sum_rows(series.arrived, count)),
        kept=_round_series(_sum_rows(series.kept_requests, count)),
        ready=_round_series(_mean_rows(series.ready, count)),
        starting=_round_series(_mean_rows(series.starting, count)),
        wanted=_round_series(_mean_rows(series.desired, count)),
        waiting=_round_series(_mean_rows(series.waiting, count)),
        running=_round_series(_mean_rows(series.running, count)),
        ttft_s=tuple(_five_digits(value) if np.isfinite(value) else None for value in ttft_s),
    )


def step_s(span_s: float, interval_s: float) -> float:
    """The shortest length of intervals, whole ones of ``interval_s``, that are few enough."""
    for step in STEPS_S:
        intervals = step / interval_s
        if intervals >= 1 and float(intervals).is_integer() and span_s / step <= MOST_POINTS:
            return float(step)
    return float(interval_s * max(1, -(-int(span_s / interval_s) // MOST_POINTS)))


def _pad_into_rows(values: Float, count: int) -> Float:
    """Rows of ``count`` values, the last one filled with what is nothing."""
    rest = -len(values) % count
    return np.pad(values, (0, rest), constant_values=np.nan).reshape(-1, count)


def _sum_rows(values: Float, count: int) -> Float:
    return np.asarray(np.nansum(_pad_into_rows(values, count), axis=1))


def _mean_rows(values: Float, count: int) -> Float:
    return np.asarray(np.nanmean(_pad_into_rows(values, count), axis=1))


def _round_series(values: Float) -> tuple[float, ...]:
    return tuple(_five_digits(value) for value in np.maximum(values, 0.0))


def _five_digits(value: float) -> float:
    """Five digits: a chart shows no more, and answers are a third as long."""
    return float(f"{value:.5g}")


def _clip_share(value: float) -> float:
    return float(min(max(value, 0.0), 1.0))


def _ratio(hours: float, of: float) -> float | None:
    return hours / of if of > 0 else None
